"""The sink of a streaming query, and the source of a bootstrap.

`opal_lake.write` runs the operations; `opal_spark.engine.executor` runs their tasks.
"""
