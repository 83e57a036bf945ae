"""`opal stream` under Airflow: its source, its process and its lag.

`source` is `Kafka(...)`, `job` the command and its environment. `process` starts it, watches it and
starts it again. `lag` asks how far it is behind.
"""
