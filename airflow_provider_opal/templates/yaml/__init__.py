"""`*.opal.yaml` files: read, checked, linted, and made into DAGs by `opal_dag`.

Every value keeps its position in the file.
"""
