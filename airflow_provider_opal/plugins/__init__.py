"""What Airflow's own processes load of this provider (entry point `airflow.plugins`)."""
