"""A pipeline whose source is Kafka.

The ingest itself makes the rows visible, so that the pipeline needs no MetaGen.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_opal.operators.streaming.ingest import StreamingIngestOperator
from airflow_provider_opal.streaming.source import Kafka, stream_faults
from airflow_provider_opal.templates.schedule import keyed_schedule

CONTINUOUS, RUN_FOR = "@continuous", "1h"
# Airflow then pauses the DAG: otherwise its next run would begin, and fail, immediately
MAX_FAILED_IN_A_ROW = 3
_OF_TASKS = {"table", "opal_conn_id", "lakechime_conn_id", "retries", "retry_delay", "pool"}
_UNUSED = ("reject_threshold", "business_snapshot", "business_snapshot_column")


def stream_arguments(kafka: Kafka, ingest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a stream's task, from those of an ingest.

    Raises ValueError for an argument that a stream does not have.
    """
    unused = [name for name in _UNUSED if name in ingest]
    if ingest.get("on_empty", "fail") != "fail":
        unused.append("on_empty")
    if ingest.get("mode", "append") != "append":
        unused.append("mode")
    if unused:
        name = unused[0]
        raise ValueError(f"{name}={ingest[name]!r} does not apply to a stream; leave it out")
    source = replace(kafka, on_new_columns=kafka.on_new_columns or ingest["on_new_columns"])
    return {
        "source": source,
        "create": ingest["create"],
        "metadata": "inline",
        "on_bad_message": ingest["on_bad_rows"],
    }


def scheduled_stream(
    ingest: Mapping[str, Any],
    by: Mapping[str, str],
    schedule: Any,
    timezone: str,
    partition_key_format: str | None,
) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return the stream's arguments, the DAG's schedule and the DAG's further options.

    `by` maps the name of each consumer to 'version' or 'partition'.
    """
    kafka = ingest["source"]
    faults = stream_faults(kafka, schedule, by, has_schema=_has_schema(ingest["create"]))
    for path, fault in faults:
        raise ValueError(f"{'.'.join(path)} {fault}")
    mode = kafka.mode_of(has_interval=isinstance(schedule, str))
    if mode == "continuous":
        source = replace(kafka, run_for=kafka.run_for or RUN_FOR)
        options = {"max_consecutive_failed_dag_runs": MAX_FAILED_IN_A_ROW}
        return {**ingest, "source": source}, CONTINUOUS, options
    arguments = dict(ingest)
    if mode == "interval":
        arguments["schedule"] = schedule
        arguments["timezone"] = timezone
        arguments["partition_key_format"] = partition_key_format
    return arguments, keyed_schedule(schedule, timezone, partition_key_format), {}


def _has_schema(create: Any) -> bool:
    """Return whether the table exists or `create` has a schema."""
    if create is None:
        return True
    if isinstance(create, Mapping):
        return create.get("schema") is not None
    return create.schema is not None


def stream_task(ingest: Mapping[str, Any], common: Mapping[str, Any]) -> StreamingIngestOperator:
    """Return the task that runs the stream; `common` are arguments of all tasks."""
    arguments = {name: common[name] for name in _OF_TASKS & common.keys()}
    arguments.update(ingest)
    # A stream always makes its rows visible itself
    del arguments["metadata"]
    return StreamingIngestOperator(task_id="ingest", **arguments)
