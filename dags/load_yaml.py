"""Create the DAGs of the *.opal.yaml files in this folder."""

from airflow_provider_opal import load_yaml_dags

load_yaml_dags(__file__)
