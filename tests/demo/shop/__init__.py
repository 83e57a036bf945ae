"""A whole Airflow on this machine that runs a small lake: for the demo, and for the tests."""
