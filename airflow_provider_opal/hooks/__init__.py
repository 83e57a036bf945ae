"""The lake for Airflow's tasks: connection, tables and storage options."""
