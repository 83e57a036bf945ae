"""Spark itself: sessions, Java, scans, columns and hashes, tasks and results, failures, progress.

The other rooms stand on it. `executor` runs the tasks of `opal_lake`'s operations by `tasks`,
`by_key` and `zorder`. `scan` and `columns` turn data files into DataFrames, `failures` turns
Spark's errors into ours, `session` and `java` start Spark, `versions` lists the supported ones.
"""
