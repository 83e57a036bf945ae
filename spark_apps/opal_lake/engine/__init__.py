"""Who runs the tasks of an operation: the port, the adapter that is this process, and the table as operations get it.

The port stands here and not in `job`, whose modules know no table: its methods name snapshots, data files, columns and key-store entries.
Spark's adapter is `opal_spark.engine.executor`.
"""
