"""The sources of writes.

They are a DataFrame, files, a database, a stream's micro-batches, or the table of a bootstrap.
`opal_lake.write` runs the operations, over `opal_spark.engine.executor`.
"""
