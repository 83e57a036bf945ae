"""The verbs of `opal stream`, each declared once, as arguments with types, help and checks.

Flags, `Kafka(...)`, the YAML model and the reference pages are made from a declaration. Airflow
imports these modules to parse a DAG file: they know no client of Kafka.
"""
