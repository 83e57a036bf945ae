"""`opal stream` under Airflow: what it is started with, the process itself, and how far it is behind."""
