"""`*.opal.yaml` files: read with the place of every word, checked, made into DAGs by `opal_dag`, and linted."""
