"""Connections for Airflow's tasks.

`opal` is that of a lake, with its tables and secrets; `submit` starts jobs and passes secrets to
them. `causes` explains signals and lines of Spark's log; `opal_lake.exit_codes` explains exit
codes. `airflow_provider_opal.secrets` knows which arguments are secrets, and keeps them out of
command lines.
"""
