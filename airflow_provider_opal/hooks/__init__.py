"""Connections for Airflow's tasks.

`opal` is the connection of a lake. `submit` starts Spark jobs and passes secrets to them. `causes`
explains signals and lines of Spark's log; `opal_lake.exit_codes` explains exit codes.
`airflow_provider_opal.secrets` knows which settings are secrets.
"""
