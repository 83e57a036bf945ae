"""The `*.opal.yaml` files: how they are read, checked, linted, and made into DAGs.

Every value keeps its position in the file.
"""
