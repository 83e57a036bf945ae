"""The DAG of a relay, which waits for data-change events and emits asset events for them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal.assets import DEFAULT_CLUSTER, DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.events.runs import Start
from airflow_provider_opal.operators.lakechime.relay import RelayOperator

# Short, because no DAG gets new events between two tries
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
    """Return a DAG that emits asset events for data-change events, run after run.

    It takes a worker slot only while it emits events. DAGs with the schedule
    `PartitionedAssetTimetable(assets=lakechime_asset("shop.raw"))` run once for each partition
    that changed. Only events with all of `event_tags` count. `relay` holds more arguments of the
    RelayOperator.
    """
    common = {
        "tags": ["opal"],
        "catchup": False,
        "max_active_runs": 1,
        "default_args": RETRIES,
        **dag_kwargs,
    }
    options = relay or {}
    with DAG(dag_id, schedule="@continuous", start_date=start_date, **common) as dag:
        RelayOperator(
            task_id="relay",
            tables=tables,
            tags=event_tags,
            cluster=cluster,
            consumer=consumer,
            start=start,
            lakechime_conn_id=lakechime_conn_id,
            **options,
        )
    return dag
