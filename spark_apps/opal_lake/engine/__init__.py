"""The engines that run the tasks of an operation.

`executor` is the port, `in_process` the adapter that is this process, `open_table` a table as
operations get it. Spark's adapter is `opal_spark.engine.executor`. The port stands on this floor,
since its methods name snapshots, data files, columns and key-store entries.
"""
