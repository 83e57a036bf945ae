"""Spark itself: sessions, Java, scans, columns and hashes, tasks and results, failures, progress.

The other packages of `opal_spark` use it. `executor` runs the tasks of `opal_lake`'s operations
through `tasks`, `by_key` and `zorder`. `scan` and `columns` turn data files into DataFrames.
`failures` turns Spark's errors into OpalErrors. `session` and `java` start Spark, and `versions`
lists the supported versions of Spark.
"""
