"""DAGs that foreign tables wake: by a relay, by a watcher, and by sensors.

Also a pipeline whose commits are events, too.
"""

from datetime import datetime

from airflow.sdk import DAG, Asset, AssetWatcher, PartitionedAssetTimetable, task

from airflow_provider_opal import (
    AcknowledgeOperator,
    LakeChimeTrigger,
    PartitionTriggerSensor,
    SnapshotTriggerSensor,
    lakechime_asset,
    relay_dag,
)

START = datetime(2026, 11, 1)
WAITING = 24

relay_dag("relay", tables=["shop.raw", "shop.flat"], start_date=START, start="all")

with DAG(
    "by_partition",
    schedule=PartitionedAssetTimetable(assets=lakechime_asset("shop.raw")),
    start_date=START,
):

    @task
    def note(partition_key: str | None = None) -> str | None:
        return partition_key

    note()

with DAG(
    "by_snapshot",
    schedule=PartitionedAssetTimetable(assets=lakechime_asset("shop.flat", snapshots=True)),
    start_date=START,
):
    note()

watched = Asset(
    "watched_raw",
    watchers=[
        AssetWatcher(
            name="raw", trigger=LakeChimeTrigger(tables=["shop.watched"], consumer="watcher.raw")
        )
    ],
)
with DAG("by_watcher", schedule=[watched], start_date=START):

    @task
    def count(triggering_asset_events=None) -> list[str]:
        events = [
            event.extra["payload"]["events"]
            for asset in triggering_asset_events
            for event in triggering_asset_events[asset]
        ]
        return [event["snapshot_id"] for page in events for event in page]

    count()

with DAG("waiting", schedule=None, start_date=START, max_active_tasks=64):
    for number in range(WAITING):
        PartitionTriggerSensor(
            task_id=f"wait_{number:02}",
            table="shop.many",
            partition=[number],
            deferrable=True,
            poke_interval=2,
            timeout=900,
        )

with DAG("flow", schedule=None, start_date=START, max_active_runs=1):
    new = SnapshotTriggerSensor(
        task_id="new",
        tables=["shop.flow"],
        start="all",
        acknowledge=False,
        deferrable=True,
        poke_interval=1,
        timeout=600,
    )

    @task
    def work(params=None, ti=None) -> list[str]:
        snapshots = [event["snapshot_id"] for event in ti.xcom_pull(task_ids="new", key="events")]
        if params["fails"]:
            raise RuntimeError(f"the work on {snapshots} failed")
        return snapshots

    new >> work() >> AcknowledgeOperator(task_id="done", sensor=new)
    new.dag.params["fails"] = False
