"""`format("opal")`: reads, change feeds and streams of a table, and appends to it, by Spark's names and in Spark's Python workers.

`source` is the entry, `options` its options. `stream` reads a table as micro-batches, with `offset` as its checkpoint; `feed` reads changes
in a batch, `writer` appends.
"""
