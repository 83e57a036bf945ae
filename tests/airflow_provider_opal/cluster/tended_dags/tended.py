"""A task group whose table is maintained by a DAG of its own, without approval."""

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_opal import Files, Maintenance, OpalTaskGroup

with DAG("grouped", schedule=None, start_date=datetime(2026, 11, 1)):
    OpalTaskGroup(
        "orders",
        table="lake.others",
        source=Files("{{ var.value.lake_source }}/others/*.json"),
        create={"keys": ["id"], "delta": "at"},
        maintenance=Maintenance(schedule=None, small_files=1, zorder=["name"]),
        spark={"conf": {"spark.ui.enabled": "false"}},
    )
