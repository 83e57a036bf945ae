"""The plugin that Airflow's own processes load (entry point `airflow.plugins`)."""
