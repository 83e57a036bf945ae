"""The text of SQL: from tokens to a closed list of statements, without Spark.

The text is cut at tokens and never written again. `opal_spark.spark_sql` runs the statements.
"""
