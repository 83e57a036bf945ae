"""The DAGs of a table, made from a short declaration in Python (`pipeline`) or in YAML.

`pipeline` makes the DAG or the task group of a pipeline, `stream` that of a pipeline whose source
is Kafka. `mutation` makes the DAG of a folder. `schedule` gives DAG runs their partition keys.
`maintenance` and `relay` make separate DAGs, and `wait_for` makes a DAG wait for other tables.
"""
