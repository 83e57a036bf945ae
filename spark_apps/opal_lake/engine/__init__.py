"""The engines that run the tasks of an operation.

`executor` is the port, `in_process` the adapter that runs tasks in this process, `open_table` a
table as operations get it. Spark's adapter is `opal_spark.engine.executor`.
"""
