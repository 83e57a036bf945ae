"""The DAGs of the cluster's tests.

A keyed pipeline with consumers of both kinds, and a producer of many versions.
"""

from datetime import datetime, timedelta

from airflow.sdk import DAG, task

from airflow_provider_opal import Consumer, CreateTable, Files, opal_asset, opal_dag, reconcile_dag

START, END = datetime(2026, 11, 1), datetime(2026, 11, 9)
SPARK = {"conf": {"spark.ui.enabled": "false"}}
TO = {"to": "{{ var.value.lake_out }}"}

opal_dag(
    "orders",
    table="lake.orders",
    source=Files("{{ var.value.lake_source }}/{{ partition_key }}/*.json"),
    create=CreateTable(keys=["id"], delta="at", deletes="op = 'D'"),
    schedule="@daily",
    start_date=START,
    end_date=END,
    consumers=[
        Consumer(name="copy", function="lake_jobs:copy", own_dag=True, arguments=TO),
        Consumer(
            name="follow", function="lake_jobs:follow", by="version", own_dag=True, arguments=TO
        ),
    ],
    reconcile=None,
    retry_delay=timedelta(seconds=3),
    spark=SPARK,
)

reconcile_dag(
    "tell_again",
    table="lake.orders",
    consumers={"orders.copy": "partition", "orders.follow": "version"},
    start_date=START,
    schedule=None,
    grace=timedelta(0),
)

opal_dag(
    "ticks",
    table="lake.ticks",
    source=Files("{{ var.value.lake_source }}/ticks/*.json"),
    create=CreateTable(keys=["id"], delta="at"),
    schedule=None,
    start_date=START,
    consumers=[
        Consumer(
            name="follow", function="lake_jobs:follow", by="version", own_dag=True, arguments=TO
        )
    ],
    reconcile=None,
    spark=SPARK,
)

with DAG("burst", schedule=None, start_date=START):

    @task(outlets=[opal_asset("lake.ticks", versions=True)])
    def tick(number: int, *, outlet_events: dict) -> None:  # type: ignore[type-arg]  # Airflow's
        """Commit without the provider's operators; emit an event for the version."""
        import pyarrow as pa

        from airflow_provider_opal import OpalHook
        from airflow_provider_opal.assets import version_key

        table = OpalHook().table("lake.ticks")
        table.ingest(pa.table({"id": [number], "at": [number]}))
        version = table.metagen(token=f"tick {number}").version
        assert version is not None
        outlet_events[opal_asset("lake.ticks", versions=True)].add_partitions(version_key(version))

    tick.expand(number=list(range(100, 120)))
