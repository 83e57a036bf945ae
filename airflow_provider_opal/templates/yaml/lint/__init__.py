"""`opal dag lint` and `opal dag render`.

Lint checks the rules between YAML files, DAGs of Python files and real tables. Render shows the
DAGs of YAML files.
"""
