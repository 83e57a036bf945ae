"""An Airflow home of the tests' own, before anything imports Airflow."""

import os
import tempfile

HOME = tempfile.TemporaryDirectory(prefix="opal-airflow-")  # goes with the process
os.environ["AIRFLOW_HOME"] = HOME.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
