"""`*.opal.yaml` files: read with the position of every value, checked, made into DAGs by `opal_dag`, and linted."""
