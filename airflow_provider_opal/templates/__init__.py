"""Makes the DAGs of a table from a short declaration, in Python (`pipeline`) or in YAML."""
