"""`opal stream` under Airflow: what it is started with, the process itself, and how far it is behind.

`source` is `Kafka(...)`, `job` what is started, `process` what starts it, watches it and starts it again.
"""
