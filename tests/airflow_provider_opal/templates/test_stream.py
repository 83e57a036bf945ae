"""Pipelines whose source is Kafka, by Python and by YAML."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, CronPartitionTimetable
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_opal import (
    Consumer,
    CreateTable,
    Kafka,
    OpalTaskGroup,
    load_yaml_dags,
    opal_dag,
)
from airflow_provider_opal.operators.streaming.ingest import StreamingIngestOperator
from airflow_provider_opal.templates.yaml.files import read_yaml
from airflow_provider_opal.templates.yaml.loader import registered

START = datetime(2026, 11, 1, tzinfo=UTC)
MADE = CreateTable(keys=["id"], delta="at", schema="id BIGINT, at TIMESTAMP")
TEXT = """\
version: 1
dags:
  clicks:
    schedule: {schedule}
    start_date: 2026-11-01
    table: {{name: web.clicks, keys: [id], delta: at, schema: "id BIGINT, at TIMESTAMP"}}
    source:
      kafka: {kafka}
{more}"""


def clicks(source: Kafka | None = None, **more: Any) -> DAG:
    usual = {
        "table": "web.clicks",
        "source": source or Kafka(topics="clicks"),
        "schedule": "@daily",
        "start_date": START,
        "create": MADE,
    }
    return opal_dag("clicks", **{**usual, **more})


def ingest_of(dag: DAG) -> StreamingIngestOperator:
    task = dag.task_dict["ingest"]
    assert isinstance(task, StreamingIngestOperator)
    return task


def test_by_a_cron_schedule_each_run_reads_its_interval_and_consumers_get_its_key() -> None:
    with registered() as made:
        dag = clicks(
            consumers=[Consumer(name="count", function="m:f")],
            on_bad_rows="quarantine",
            timezone="Europe/Berlin",
            maintenance=True,
        )
    assert {dag.dag_id for dag in made} == {"clicks", "clicks.maintenance"}
    assert isinstance(dag.timetable, CronPartitionTimetable)
    assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
        "ingest": {"count"},
        "count": set(),
    }
    task = ingest_of(dag)
    assert (task.mode, task.arguments["on_bad_message"], task.arguments["on_new_columns"]) == (
        "interval",
        "quarantine",
        "fail",
    )
    assert task.interval is not None
    assert task.interval.bounds("2026-11-02")[0] == datetime(2026, 11, 1, 23, tzinfo=UTC)
    assert {asset.uri for asset in task.outlets} == {
        "opal://opal_default/web.clicks",
        "opal://opal_default/web.clicks/versions",
    }
    DagSerialization.to_dict(dag)


def test_a_continuous_dag_pauses_after_three_failed_runs() -> None:
    dag = clicks(
        Kafka(topics=["clicks", "views"], mode="continuous"),
        schedule=None,
        consumers=[Consumer(name="c", function="m:f", by="version")],
    )
    assert (
        type(dag.timetable).__name__,
        dag.max_active_runs,
        dag.max_consecutive_failed_dag_runs,
    ) == ("ContinuousTimetable", 1, 3)
    assert (ingest_of(dag).mode, ingest_of(dag).run_for_s, ingest_of(dag).topics) == (
        "continuous",
        3600.0,
        ["clicks", "views"],
    )
    assert (
        ingest_of(
            clicks(Kafka(topics="clicks", mode="continuous", run_for="5m"), schedule=None)
        ).run_for_s
        == 300.0
    )
    DagSerialization.to_dict(dag)


def test_by_hand_it_reads_what_there_is_and_in_a_group_too() -> None:
    assert ingest_of(clicks(schedule=None)).mode == "until_empty"
    with DAG("d", schedule=None, start_date=START):
        group = OpalTaskGroup(
            "clicks",
            table="web.clicks",
            source=Kafka(topics="clicks", on_new_columns="add"),
            create=MADE,
        )
    assert isinstance(group.ingest, StreamingIngestOperator)
    assert (group.metagen, group.visible) == (None, group.ingest)
    assert (group.ingest.mode, group.ingest.arguments["on_new_columns"]) == ("until_empty", "add")


@pytest.mark.parametrize(
    "source, more, message",
    [
        ({"mode": "continuous"}, {}, "schedule does not apply to a stream that always runs"),
        (
            {"mode": "interval"},
            {"schedule": None},
            "source.kafka.mode is interval, but the schedule does not name one",
        ),
        (
            {},
            {"schedule": None, "consumers": [Consumer(name="c", function="m:f")]},
            "consumers.c.by is partition",
        ),
        ({}, {"create": CreateTable(keys=["id"], delta="at")}, "table.schema is missing"),
        ({}, {"on_empty": "accept"}, "on_empty='accept' does not apply"),
        ({}, {"mode": "replace"}, "mode='replace' does not apply"),
        ({"mode": "x"}, {}, "use one of continuous, until_empty, interval"),
        ({"run_for": "1h"}, {}, "run_for is only for the mode continuous"),
        ({"format": "xml"}, {}, "format='xml' is unknown"),
        (
            {"spark": True},
            {},
            (
                "source.kafka.spark is true, which does not go with an interval: "
                "Spark does not read intervals"
            ),
        ),
        (
            {"processes": 2},
            {},
            "source.kafka.processes is 2, which does not go with an interval: one process",
        ),
        (
            {"start": "latest"},
            {},
            "source.kafka.start is latest, which does not go with an interval",
        ),
        (
            {"commit": "gathered"},
            {},
            "source.kafka.commit is gathered, which does not go with an interval",
        ),
        ({"topics": ""}, {}, "at least one name"),
        ({"flush_interval": "soon"}, {}, "is not a duration"),
    ],
)
def test_contradicting_arguments_say_what_to_write(
    source: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        clicks(Kafka(**{"topics": "clicks", **source}), **more)


def test_every_key_of_kafka_arrives_in_the_task(tmp_path: Path) -> None:
    kafka = (
        "{topic: [a, b], connection: mine, mode: continuous, format: avro, "
        'registry: "http://r:8081", run_for: 10m, start: latest, columns: {at: "@timestamp"}, '
        "on_new_columns: add, flush_interval: 2s, name: second, commit: gathered}"
    )
    (tmp_path / "clicks.opal.yaml").write_text(TEXT.format(schedule="null", kafka=kafka, more=""))
    with registered() as made:
        load_yaml_dags(tmp_path)
    [dag] = made
    task = ingest_of(dag)
    assert (
        task.topics,
        task.kafka_conn_id,
        task.registry,
        task.stream,
        task.arguments["columns"],
    ) == (
        ["a", "b"],
        "mine",
        "http://r:8081",
        "second",
        {"at": "@timestamp"},
    )
    said = {
        "format": "avro",
        "on_new_columns": "add",
        "flush_interval": "2s",
        "start": "latest",
        "commit": "gathered",
        "processes": 1,
    }
    assert said.items() <= task.arguments.items()
    assert task.run_for_s == timedelta(minutes=10).total_seconds()
    assert task.create is not None


@pytest.mark.parametrize(
    "schedule, kafka, more, at, message",
    [
        ("'@daily'", "{topic: a, mode: continuous}", "", ("schedule",), "write null"),
        (
            "null",
            "{topic: a, mode: interval}",
            "",
            ("source", "kafka", "mode"),
            "the schedule does not name one",
        ),
        (
            "null",
            "{topic: a}",
            "    consumers: {c: {function: 'm:f'}}",
            ("consumers", "c", "by"),
            "write version",
        ),
        (
            "'@daily'",
            "{topic: a, commit: gathered}",
            "",
            ("source", "kafka", "commit"),
            "leave it out",
        ),
        ("null", "{topic: a}", "    on_empty: accept", ("on_empty",), "remove 'on_empty'"),
        ("null", "{topic: a}", "    mode: replace", ("mode",), "remove 'mode'"),
        ("'@daily'", "{topic: a, start: latest}", "", ("source", "kafka", "start"), "leave it out"),
        (
            "null",
            "{topic: a, registry: 'http://r:1'}",
            "",
            ("source", "kafka"),
            "registry: messages of format=json need no schema registry",
        ),
        (
            "null",
            "{topic: a, mode: continuous, run_for: 0s}",
            "",
            ("source", "kafka"),
            "is too short; give more than 0",
        ),
        ("null", "{topic: a, formt: json}", "", ("source", "kafka", "formt"), "format"),
        ("null", "{topics: a}", "", ("source", "kafka"), "topic"),
    ],
)
def test_a_mistake_in_yaml_is_reported_at_the_path_of_its_setting(
    schedule: str, kafka: str, more: str, at: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "clicks.opal.yaml").write_text(
        TEXT.format(schedule=schedule, kafka=kafka, more=more)
    )
    problems = read_yaml(tmp_path / "clicks.opal.yaml", tmp_path).problems
    assert any(
        message in problem.what and problem.at[2 : 2 + len(at)] == at for problem in problems
    ), problems
