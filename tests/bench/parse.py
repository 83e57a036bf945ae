"""The cost of the provider for a DAG file.

It is the time of importing all of its operators, beyond Airflow and the Spark provider themselves.

    python tests/bench/parse.py [--rounds 15]

Each round is a process of its own that imports Airflow and the Spark provider first; only then the
clock runs. A collection of Airflow's garbage, which falls into one step or the other by chance, is
kept out of it. The modules are compiled, as pip leaves them: with `PYTHONDONTWRITEBYTECODE` set,
Python would compile them in each process, which takes longer than to run them.
"""

import argparse
import os
import statistics
import subprocess
import sys

AIM_MS = 60
SCRIPT = """
import gc
import time
from airflow.sdk import DAG, Asset, BaseSensorOperator
from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.triggers.base import BaseTrigger
gc.collect()
gc.freeze()
started = time.perf_counter()
import airflow_provider_opal
for name in airflow_provider_opal.__all__:
    if name != "load_yaml_dags":
        getattr(airflow_provider_opal, name)
made = time.perf_counter()
airflow_provider_opal.load_yaml_dags
print((made - started) * 1000, (time.perf_counter() - made) * 1000)
"""
AIRFLOW = """
import time
started = time.perf_counter()
from airflow.sdk import DAG, Asset, BaseSensorOperator
from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.triggers.base import BaseTrigger
print((time.perf_counter() - started) * 1000, 0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    measured(SCRIPT)  # compiles
    rounds_measured = [(measured(AIRFLOW)[0], *measured(SCRIPT)) for _ in range(rounds)]
    airflow, provider, yaml = (
        statistics.median(column) for column in zip(*rounds_measured, strict=True)
    )
    print(f"all operators, sensors, templates {provider:6.0f} ms   (aim: at most {AIM_MS} ms)")
    print(f"next to them the YAML loader      {yaml:6.0f} ms   (a file that uses it)")
    print(f"Airflow and its Spark provider    {airflow:6.0f} ms")
    print(
        f"ratio                             {provider / airflow:6.2f}   medians of {rounds} "
        "processes each, interleaved"
    )


def measured(script: str) -> tuple[float, ...]:
    """Return the milliseconds that a new process prints."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return tuple(map(float, done.stdout.split()[-2:]))


if __name__ == "__main__":
    main()
