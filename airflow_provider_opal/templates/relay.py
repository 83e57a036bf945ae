"""The DAG of a relay: it waits for data-change events all the time, and emits asset events for them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal.assets import DEFAULT_CLUSTER, DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.events.runs import Start
from airflow_provider_opal.operators.lakechime.relay import RelayOperator

RETRIES: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=10)}


def relay_dag(
    dag_id: str,
    *,
    tables: Sequence[Any],
    start_date: datetime,
    event_tags: Mapping[str, str] | None = None,
    cluster: str = DEFAULT_CLUSTER,
    consumer: str | None = None,
    start: Start = "head",
    lakechime_conn_id: str = DEFAULT_LAKECHIME_CONN_ID,
    relay: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """A DAG that runs all the time, one run after the other, and takes a worker only when there is something to emit.

    DAGs that `PartitionedAssetTimetable(assets=lakechime_asset("shop.raw"))` schedules run once for each partition that changed. Only
    events with all of `event_tags` count; `relay` are more arguments of the RelayOperator.
    """
    common = {
        "tags": ["opal"],
        "catchup": False,
        "max_active_runs": 1,
        "default_args": RETRIES,
        **dag_kwargs,
    }
    with DAG(dag_id, schedule="@continuous", start_date=start_date, **common) as dag:
        what: dict[str, Any] = {
            "tables": tables,
            "tags": event_tags,
            "cluster": cluster,
            "start": start,
        }
        RelayOperator(
            task_id="relay",
            consumer=consumer,
            lakechime_conn_id=lakechime_conn_id,
            **what,
            **(relay or {}),
        )
    return dag
