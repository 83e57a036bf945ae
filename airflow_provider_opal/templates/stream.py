"""A pipeline whose source is Kafka: its rows are visible by the ingest itself, so that it needs no MetaGen."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_opal.operators.streaming.ingest import StreamingIngestOperator
from airflow_provider_opal.streaming.source import Kafka, stream_faults
from airflow_provider_opal.templates.schedule import keyed_schedule

CONTINUOUS, RUN_FOR = "@continuous", "1h"
FAILED_IN_A_ROW = 3  # then Airflow pauses the DAG: its next run would begin, and fail, at once
_OF_TASKS = ("table", "opal_conn_id", "lakechime_conn_id", "retries", "retry_delay", "pool")
_UNUSED = ("reject_threshold", "business_snapshot", "business_snapshot_column")


def stream_arguments(kafka: Kafka, ingest: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the ingest that a stream has, too; ValueError if others are given."""
    given = [name for name in _UNUSED if name in ingest]
    given += ["on_empty"] if ingest.get("on_empty", "fail") != "fail" else []
    for name in given:
        raise ValueError(
            f"{name}={ingest[name]!r} has no meaning for a stream of Kafka; leave it out"
        )
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
    """The ingest as the schedule has it read, the schedule of its DAG, and more of the DAG's arguments. `by` is that of the consumers."""
    kafka, create = ingest["source"], ingest["create"]
    has_schema = (
        create is None
        or (create.get("schema") if isinstance(create, Mapping) else create.schema) is not None
    )
    for place, what in stream_faults(kafka, schedule, by, has_schema=has_schema):
        raise ValueError(f"{'.'.join(place)} {what}")
    mode = kafka.mode_of(has_interval=isinstance(schedule, str))
    if mode == "continuous":
        source = replace(kafka, run_for=kafka.run_for or RUN_FOR)
        return (
            {**ingest, "source": source},
            CONTINUOUS,
            {"max_consecutive_failed_dag_runs": FAILED_IN_A_ROW},
        )
    keyed = (
        {"schedule": schedule, "timezone": timezone, "partition_key_format": partition_key_format}
        if mode == "interval"
        else {}
    )
    return {**ingest, **keyed}, keyed_schedule(schedule, timezone, partition_key_format), {}


def stream_task(ingest: Mapping[str, Any], common: Mapping[str, Any]) -> StreamingIngestOperator:
    given: dict[str, Any] = {name: value for name, value in ingest.items() if name != "metadata"}
    return StreamingIngestOperator(
        task_id="ingest", **given, **{name: common[name] for name in _OF_TASKS if name in common}
    )
