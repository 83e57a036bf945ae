"""`opal stream` under Airflow: its source, its process and its lag.

`source` is `Kafka(...)`, `job` the command and its environment. `process` starts the command,
watches the process and starts it again. `lag` asks how far a stream is behind.
"""
