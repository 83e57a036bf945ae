"""The lake for Airflow's tasks: `opal` is the connection, with its tables and secrets; `submit` starts jobs and passes secrets to them."""
