"""Tasks on tables. Each submits one packaged Spark app; `spark` is what they share: token, partition key, submit, result.

A run without a partition key is refused by `spark.OpalSparkOperator.check_key`.
"""
