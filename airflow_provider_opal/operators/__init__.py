"""Tasks on tables. Each submits one packaged Spark app.

`spark` is what they share: token, partition key, submission and result. Its
`OpalSparkOperator.check_key` refuses a DAG run that lacks a partition key.
"""
