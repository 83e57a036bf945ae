"""The DAG of a mutation of a folder."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal.operators.folders.bulk_mutation import BulkMutationOperator
from airflow_provider_opal.templates.pipeline import DEFAULTS, deadline_of
from airflow_provider_opal.templates.schedule import keyed_schedule, run_bounds
from opal_lake.arguments.values import Span

TASK_OPTIONS = {"opal_conn_id", "spark_conn_id", "retries", "retry_delay", "pool"}


def mutation_dag(
    dag_id: str, *, arguments: Mapping[str, Any], count_first: bool = False, **options: Any
) -> DAG:
    """Return a DAG with the task `merge`, a BulkMutationOperator with these arguments.

    With `count_first` a task `count` runs before it, which reports the changes and makes none. The
    options are those of `dag_of`.
    """
    dag, task = dag_of(dag_id, **options)
    with dag:
        merge = BulkMutationOperator(task_id="merge", **arguments, **task)
        if count_first:
            BulkMutationOperator(task_id="count", **{**arguments, "dry_run": True}, **task) >> merge
    return dag


def dag_of(
    dag_id: str,
    *,
    schedule: Any,
    start_date: datetime,
    end_date: datetime | None = None,
    timezone: str = "UTC",
    partition_key_format: str | None = None,
    deadline: Span | None = None,
    spark: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[DAG, dict[str, Any]]:
    """Return a DAG without tasks, and the options of its Spark tasks.

    As in `opal_dag`, a scheduled run works on the partition that just ended, and `start_date` is
    the date of the first partition.
    """
    given = TASK_OPTIONS & options.keys()
    task = {name: options.pop(name) for name in given} | dict(spark or {})
    defaults = {**DEFAULTS, **(options.pop("default_args", None) or {})}
    common = {
        "tags": ["opal"],
        "catchup": False,
        "max_active_runs": 1,
        "default_args": defaults,
        **options,
    }
    first, last = run_bounds(schedule, start_date, end_date, timezone)
    when: Any = {
        "schedule": keyed_schedule(schedule, timezone, partition_key_format),
        "start_date": first,
        "end_date": last,
    }
    return DAG(dag_id, **when, deadline=deadline_of(dag_id, deadline), **common), task
