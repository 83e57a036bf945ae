"""The lake for Airflow's tasks: `opal` is the connection, with its tables and secrets; `submit` starts jobs and passes secrets to them.

`causes` says what a signal or a line of Spark's log means; what an exit code means says `opal_lake.exit_codes`. Which arguments are
secrets, and how they are taken out of a command line: `airflow_provider_opal.secrets`.
"""
