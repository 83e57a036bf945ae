"""Makes the DAGs of a table from a short declaration, in Python (`pipeline`) or in YAML.

`pipeline` makes the DAG, or the group of tasks; `stream` that of a pipeline whose source is Kafka, `mutation` that of a folder. `schedule`
gives runs their partition keys, `maintenance` and `relay` are DAGs beside it, `wait_for` waits for other tables.
"""
