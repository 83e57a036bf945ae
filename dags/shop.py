"""A shop's users: files are ingested into a table, and DAGs that wait for the table run.

Trigger it by hand, or give it a schedule. Once a week the table's files are maintained.

It needs the connections `opal_default` (type Opal lake: the root of the lake) and `spark_default`
(type spark: local[2], spark://..., yarn, k8s://...), and the Variable `shop_source`: the folder of
the files.
"""

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_opal import (
    CompactionOperator,
    CreateTable,
    Files,
    IngestOperator,
    MetaGenOperator,
    RetentionOperator,
    SnapshotTriggerSensor,
    ZOrderOperator,
    opal_asset,
)

with DAG(
    "shop_users", schedule=None, start_date=datetime(2026, 11, 1), max_active_runs=1, tags=["opal"]
):
    ingest = IngestOperator(
        task_id="ingest",
        table="shop.users",
        source=Files("{{ var.value.shop_source }}/*.json"),
        create=CreateTable(keys=["id"], delta="at", deletes="op = 'D'"),
        retries=2,
        retry_delay=timedelta(seconds=10),
    )
    ingest >> MetaGenOperator(
        task_id="metagen", table="shop.users", retries=2, retry_delay=timedelta(seconds=10)
    )

with DAG(
    "shop_report",
    schedule=[opal_asset("shop.users")],
    start_date=datetime(2026, 11, 1),
    max_active_runs=1,
    tags=["opal"],
):
    SnapshotTriggerSensor(
        task_id="new_versions", table="shop.users", start="all", deferrable=True, poke_interval=5
    )

with DAG(
    "shop_maintenance",
    schedule="@weekly",
    start_date=datetime(2026, 11, 1),
    catchup=False,
    max_active_runs=1,
    tags=["opal"],
):
    compact = CompactionOperator(task_id="compact", table="shop.users")
    cluster = ZOrderOperator(task_id="cluster", table="shop.users", columns=["name", "at"])
    compact >> cluster >> RetentionOperator(task_id="retain", table="shop.users", window="30d")
