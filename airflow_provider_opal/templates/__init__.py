"""DAGs from few words: in Python, and in YAML."""
