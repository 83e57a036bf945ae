"""The check of a large table: Spark's tasks check the rows."""
