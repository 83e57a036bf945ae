"""DAGs that `test_tried_dags` runs with `dag.test()`, and what it looks at afterwards."""

import json
import os
import sys
import time
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal import AcknowledgeOperator, MetaGenOperator, SnapshotTriggerSensor
from lakechime import DataChangeEvent, LakeChime, TableFormat

# What the sensor says is all that its end needs
with DAG("flow", schedule=None) as flow:
    new = SnapshotTriggerSensor(
        task_id="new", tables=["shop.flow"], start="all", acknowledge=False, consumer="mine"
    )
    AcknowledgeOperator(task_id="done", sensor=new)


def paced(dag_id: str, **more: Any) -> DAG:
    """Build a DAG whose sensor first looks at the moment that its run's conf has.

    There are commits before that moment.
    """
    with DAG(dag_id, schedule=None) as dag:
        SnapshotTriggerSensor(
            task_id="new",
            tables=["shop.flow"],
            start="all",
            start_timestamp="{{ dag_run.conf['start_ms'] }}",
            frequency=1,
            frequency_unit="hour",
            poke_interval=1,
            **more,
        )
    return dag


here, deferred = paced("here", deferrable=False), paced("deferred", deferrable=True)

# The table does not exist: it fails before Spark starts, and nothing ever reports a page of Spark
with DAG("no_spark", schedule=None) as no_spark:
    MetaGenOperator(task_id="metagen", table="shop.none")


def chime() -> LakeChime:
    return LakeChime.open(f"sqlite:///{os.environ['AIRFLOW_HOME']}/lakechime.db")


def event(table: str, snapshot: str) -> DataChangeEvent:
    return DataChangeEvent(table=table, table_format=TableFormat.ICEBERG, snapshot_id=snapshot)


def seen_by(consumer: str) -> Any:
    with chime() as client:
        watermark = client.watermark(consumer, "events")
    return None if watermark is None else watermark.value


def try_all() -> dict[str, Any]:
    with chime() as client:
        client.register([event("shop.flow", "1"), event("shop.flow", "2")])
    outcome = {"flow": str(flow.test().state), "seen": seen_by("mine")}
    for dag in (here, deferred):
        start_s = time.time() + 5
        run = dag.test(run_conf={"start_ms": int(start_s * 1000)})
        late_s = run.end_date.timestamp() - start_s
        outcome[dag.dag_id] = [str(run.state), seen_by(f"{dag.dag_id}.new"), late_s]
    outcome["no_spark"] = str(no_spark.test().state)
    return outcome


if __name__ == "__main__":
    with open(sys.argv[1], "w") as outcome:
        json.dump(try_all(), outcome)
