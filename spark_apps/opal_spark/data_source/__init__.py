"""`format("opal")`: reads, change feeds and streams of a table, and appends to it, by Spark's names and in Spark's Python workers."""
