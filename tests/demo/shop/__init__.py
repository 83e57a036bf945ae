"""An Airflow on this machine that runs a small lake, for the demo and the tests."""
