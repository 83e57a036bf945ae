"""The lake as Airflow's tasks see it."""
