"""Pipelines with a check between ingest and MetaGen.

Each has consumers by partition and by version, and a reconcile.
"""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal import (
    ConsumeOperator,
    Files,
    IngestOperator,
    MetaGenOperator,
    OpalHook,
    SnapshotTriggerSensor,
    consumer_schedule,
    keyed_schedule,
    reconcile_dag,
)

START = datetime(2026, 11, 1)
SPARK: dict[str, Any] = {"conf": {"spark.ui.enabled": "false"}}
# One pipeline shows that Spark's jobs keep to the gate; the script of the test does the jobs of
# the others
PIPELINES = {
    "in_order": SPARK,
    "in_reverse": {"spark_binary": "spark3-submit"},
    "at_once": {"spark_binary": "spark3-submit"},
}


@task
def check(folder: str) -> None:
    """Fail for a day with a bad row."""
    ids = [
        json.loads(line)["id"]
        for path in Path(folder).glob("*.json")
        for line in path.read_text().splitlines()
    ]
    if "BAD-1" in ids:
        raise AirflowFailException(f"{folder} has a bad row")


@task(retries=6, retry_delay=timedelta(seconds=2))  # the sensor has moved on: no range may be lost
def follow(name: str, versions: Any, out: str) -> None:
    """Write down the rows of the versions that the sensor gave."""
    rows = OpalHook().table(f"shop.{name}").read(versions["to"], after=versions["from"])
    note = {**versions, "ids": rows["id"].to_pylist(), "days": rows["day"].to_pylist()}
    (Path(out) / f"{name}.follow-{versions['to']}.json").write_text(json.dumps(note))


for name, submit in PIPELINES.items():
    source = f"{{{{ var.value.gate_source }}}}/{name}/{{{{ partition_key }}}}"
    given: dict[str, Any] = {"table": f"shop.{name}", "retries": 0, **submit}
    with DAG(
        name,
        schedule=keyed_schedule("@daily"),
        start_date=START,
        end_date=START + timedelta(days=9),
        catchup=False,
        max_active_runs=8,
    ):
        ingest = IngestOperator(task_id="ingest", source=Files(f"{source}/*.json"), **given)
        ingest >> check(source) >> MetaGenOperator(task_id="metagen", **given)

    with DAG(
        f"{name}.report",
        schedule=consumer_schedule(f"shop.{name}", consumer=f"{name}.report"),
        start_date=START,
    ):
        ConsumeOperator(
            task_id="report",
            consumer=f"{name}.report",
            function="gate_jobs:report",
            arguments={"to": "{{ var.value.gate_out }}", "name": name},
            **given,
        )

    with DAG(f"{name}.follow", schedule="@continuous", start_date=START, max_active_runs=1):
        new = SnapshotTriggerSensor(
            task_id="new", table=f"shop.{name}", start="all", deferrable=True, poke_interval=5
        )
        follow(name, new.output, "{{ var.value.gate_out }}")

    # Nobody acknowledges for the second one, so that all that may be emitted is emitted to it
    reconcile_dag(
        f"{name}.reconcile",
        table=f"shop.{name}",
        consumers={f"{name}.report": "partition", f"{name}.nobody": "partition"},
        start_date=START,
        schedule=None,
        grace=timedelta(0),
    )
