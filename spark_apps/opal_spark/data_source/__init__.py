"""`format("opal")`: a table's rows, change feeds and streams by Spark's names, and appends to it.

It runs in Spark's Python workers. `source` is the entry, and `options` parses its options. `stream`
reads a table as micro-batches, and `offset` is the stream's position in a checkpoint. `feed` reads
changes in a batch, `writer` appends rows.
"""
