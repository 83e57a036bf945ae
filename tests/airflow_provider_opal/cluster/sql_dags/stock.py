"""Scripts of SQL: one that is killed between statements, and one that fails."""

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_opal import SqlOperator, opal_asset

DEFAULTS: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=3)}
SPARK: dict[str, Any] = {"conf": {"spark.ui.enabled": "false"}}

with DAG(
    "correct",
    schedule=None,
    start_date=datetime(2026, 11, 1),
    params={"more": 5},
    default_args=DEFAULTS,
):
    SqlOperator(
        task_id="correct", sql="sql/corrections.sql", args={"more": "{{ params.more }}"}, **SPARK
    )

with DAG("broken", schedule=None, start_date=datetime(2026, 11, 1), default_args=DEFAULTS):
    texts = ["UPDATE lake.shop.other SET amount = amount + 1", "DELETE FROM lake.shop.none"]
    SqlOperator(task_id="broken", sql=texts, **SPARK)

with DAG("hears", schedule=[opal_asset("shop.stock")], start_date=datetime(2026, 11, 1)):

    @task
    def hear() -> None:
        """Show by a run that the table's event was emitted."""

    hear()
