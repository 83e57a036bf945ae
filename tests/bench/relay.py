"""The time from a commit to the start of a DAG that waits for the table.

By a relay and by a watcher, next to Airflow's own event.

    python -m tests.bench.relay [--commits 20]

One Airflow. A commit to an Iceberg table is registered from its metadata, as `lakechime watch`
does, and wakes `by_relay` (a relay in a continuous DAG, deferred) and `by_watcher` (an
AssetWatcher). For comparison a task that commits to an Opal table emits Airflow's own event
(`by_asset`); its clock runs from the end of that task. All end when the woken run's first task
starts.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakechime import LakeChime
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow

DAGS = """
from datetime import datetime
from airflow.sdk import DAG, Asset, AssetWatcher, PartitionedAssetTimetable, task
from airflow_provider_opal import LakeChimeTrigger, lakechime_asset, opal_asset, relay_dag
START = datetime(2026, 11, 1)
relay_dag("relay", tables=["shop.raw"], start_date=START)
trigger = LakeChimeTrigger(tables=["shop.raw"], consumer="raw")
raw = Asset("raw", watchers=[AssetWatcher(name="raw", trigger=trigger)])

@task
def begin():
    pass

for name, schedule in {
    "by_relay": PartitionedAssetTimetable(assets=lakechime_asset("shop.raw", snapshots=True)),
    "by_watcher": [raw],
    "by_asset": PartitionedAssetTimetable(assets=opal_asset("shop.orders")),
}.items():
    with DAG(name, schedule=schedule, start_date=START):
        begin()

with DAG("emit", schedule=None, start_date=START):
    @task(outlets=[opal_asset("shop.orders")])
    def emit(dag_run=None, outlet_events=None):
        outlet_events[opal_asset("shop.orders")].add_partitions(dag_run.conf["key"])
    emit()
"""
NAMES = ("relay", "by_relay", "by_watcher", "by_asset", "emit")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=20)
    commits = parser.parse_args(argv).commits
    with tempfile.TemporaryDirectory(prefix="opal-relay-") as name:
        folder = Path(name)
        (folder / "dags").mkdir()
        (folder / "dags" / "relay.py").write_text(DAGS)
        with local_airflow(
            folder / "airflow", folder / "dags", {"AIRFLOW__CORE__PARALLELISM": "4"}
        ) as airflow:
            measure(airflow, folder, commits)
    return 0


def measure(airflow: LocalAirflow, folder: Path, commits: int) -> None:
    airflow.wait_until(
        lambda: {*NAMES} <= {dag["dag_id"] for dag in airflow.api("GET", "/dags")["dags"]}
    )
    for dag_id in NAMES:
        airflow.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
    with LakeChime.open(f"sqlite:///{airflow.home}/lakechime.db") as client:
        airflow.wait_until(
            lambda: (
                bool(client.watermark("raw", "events"))
                and bool(client.watermark("relay.relay.relay", "events"))
            )
        )
        begun = {name: [] for name in ("by_relay", "by_watcher", "by_asset")}
        table = iceberg_table(folder)
        for number in range(commits + 1):  # the first one warms up
            begun["by_relay"].append(datetime.now(UTC))
            begun["by_watcher"].append(begun["by_relay"][-1])
            table.append(pa.table({"id": [number]}))
            register(client, table)
            begun["by_asset"].append(emitted(airflow, f"key {number}"))
            airflow.wait_until(
                lambda number=number: all(len(started(airflow, name)) > number for name in begun),
                300,
                0.5,
            )
        for name, moments in begun.items():
            seconds = [
                (start - moment).total_seconds()
                for start, moment in zip(started(airflow, name), moments, strict=False)
            ][1:]
            p95 = sorted(seconds)[min(len(seconds) - 1, round(0.95 * len(seconds)))]
            print(
                f"{name:<12} p50 {statistics.median(seconds):6.1f} s   p95 {p95:6.1f} s   of "
                f"{len(seconds)} commits"
            )


def iceberg_table(folder: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(
        "bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
    )
    catalog.create_namespace("shop")
    return catalog.create_table("shop.raw", schema=pa.schema([("id", pa.int64())]))


def register(client: LakeChime, table: Any) -> None:
    from lakechime.producers.iceberg import IcebergLocation, IcebergSource
    from lakechime.producers.outbox import Target, sync

    sync(
        client,
        IcebergSource(
            location=IcebergLocation(path=table.location()), target=Target(table="shop.raw")
        ),
    )


def emitted(airflow: LocalAirflow, key: str) -> datetime:
    """Return when the task that emitted Airflow's own event had ended."""
    run_id = airflow.api(
        "POST", "/dags/emit/dagRuns", {"logical_date": None, "conf": {"key": key}}
    )["dag_run_id"]
    airflow.wait_until(lambda: airflow.tasks("emit", run_id)[0]["state"] == "success", 300, 0.3)
    return datetime.fromisoformat(airflow.tasks("emit", run_id)[0]["end_date"])


def started(airflow: LocalAirflow, dag_id: str) -> list[datetime]:
    """Return when the tasks of its runs began, oldest first."""
    tasks = [
        task for run in airflow.runs(dag_id) for task in airflow.tasks(dag_id, run["dag_run_id"])
    ]
    return sorted(
        datetime.fromisoformat(task["start_date"]) for task in tasks if task["start_date"]
    )


if __name__ == "__main__":
    sys.exit(main())
