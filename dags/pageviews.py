"""A table that others write, of any format, starts DAGs: LakeChime reports its changes.

Here it is a Delta table, `data.pageviews`. `pageviews_relay` waits for the table's events.
`pageviews_report` runs once for each day whose rows changed. `pageviews_hourly` reads once an hour
the rows that were added in the hour. It needs the Variable `pageviews`: the path of the table.
"""

import sys
from datetime import datetime
from functools import partial
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, CronDataIntervalTimetable, PartitionedAssetTimetable, task

from airflow_provider_opal import DataChangeEventOperator, encode_events, lakechime_asset, relay_dag

PAGEVIEWS = "data.pageviews"
COMMON: dict[str, Any] = {
    "start_date": datetime(2026, 11, 1),
    "catchup": False,
    "tags": ["opal", "pageviews"],
}


def events_exist(task_id: str, ti: Any) -> bool:
    return bool(ti.xcom_pull(task_ids=task_id))


relay_dag(
    "pageviews_relay",
    tables=[PAGEVIEWS],
    start="all",
    start_date=COMMON["start_date"],
    tags=["opal", "pageviews"],
)

with DAG(
    "pageviews_report",
    schedule=PartitionedAssetTimetable(assets=lakechime_asset(PAGEVIEWS)),
    **COMMON,
):

    @task
    def report(partition_key: str | None = None, var: Any = None) -> dict[str, int]:
        from pageviews_jobs import views_of

        return views_of(var["value"].pageviews, str(partition_key))

    report()

with DAG(
    "pageviews_hourly",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    user_defined_macros={"encode_events": encode_events},
    **COMMON,
):
    fetched_events = DataChangeEventOperator(
        task_id="fetched_events",
        dataset=PAGEVIEWS,
        cluster="default",
        start_time="{{ data_interval_start.int_timestamp * 1000 }}",
        end_time="{{ data_interval_end.int_timestamp * 1000 }}",
    )
    skip_downstream_when_no_events = ShortCircuitOperator(
        task_id="skip_downstream_when_no_events",
        python_callable=partial(events_exist, "fetched_events"),
    )
    count_rows = BashOperator(
        task_id="count_rows",
        bash_command=(
            f"'{sys.executable}' '{{{{ dag.folder }}}}/pageviews_jobs.py' "
            "'{{ var.value.pageviews }}' "
            "{{ encode_events(ti.xcom_pull(task_ids='fetched_events')) }}"
        ),
    )
    fetched_events >> skip_downstream_when_no_events >> count_rows
