"""`opal dag lint` and `opal dag render`.

Lint checks what holds between YAML files, DAGs of Python files and real tables; render shows the
DAGs of YAML files.
"""
