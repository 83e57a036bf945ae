"""The DAGs of a table, made from a short declaration in Python (`pipeline`) or in YAML.

`pipeline` makes a pipeline's DAG or group of tasks; `stream` is for a pipeline whose source is
Kafka, `mutation` for a folder. `schedule` gives DAG runs their partition keys, `maintenance` and
`relay` are DAGs of their own, `wait_for` waits for other tables.
"""
