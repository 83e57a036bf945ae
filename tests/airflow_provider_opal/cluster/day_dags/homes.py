"""A pipeline whose partition keys are business snapshots, and a DAG that publishes held rows."""

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal import CreateTable, Files, MetaGenOperator, opal_dag

START = datetime(2026, 11, 1)
SPARK: dict[str, Any] = {"conf": {"spark.ui.enabled": "false"}}

opal_dag(
    "homes",
    table="lake.homes",
    source=Files("{{ var.value.lake_source }}/{{ partition_key }}/*.json"),
    create=CreateTable(keys=["user"], delta="at", properties={"drift": "1h"}),
    business_snapshot="{{ partition_key }}",
    schedule="@daily",
    start_date=START,
    end_date=START + timedelta(days=8),
    reconcile=None,
    retries=0,
    spark=SPARK,
)

with DAG("take_up", schedule=None, start_date=START):
    MetaGenOperator(task_id="metagen", table="lake.homes", all=True, retries=0, **SPARK)
