"""`wait_for` of pipelines and consumers makes the same tasks in Python and in YAML.

Each mistake is reported with what to write.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_opal import (
    Consumer,
    OpalTaskGroup,
    PartitionTriggerSensor,
    SnapshotTriggerSensor,
    WaitFor,
    keyed_schedule,
    opal_dag,
)
from airflow_provider_opal.templates.yaml.files import read_yaml
from airflow_provider_opal.templates.yaml.schema import PUBLISHED
from tests.airflow_provider_opal.templates.yaml.build import GOOD

LOADER = "from airflow_provider_opal import load_yaml_dags\n\nload_yaml_dags(__file__)\n"
WHOLE = {
    "table": "shop.raw",
    "partition": ["{{ partition_key }}", 7, True],
    "tags": {"completeness.hourly": "99"},
    "cluster": "prod",
    "timeout": "12h",
    "lakechime_conn_id": "chime",
    "start_timestamp": "2026-11-02T06:00:00Z",
    "frequency": 2,
    "frequency_unit": "hour",
}


def pipeline(**more: Any) -> DAG:
    return opal_dag(
        "orders",
        table="shop.orders",
        source="/in/*.json",
        schedule="@daily",
        start_date=datetime(2026, 11, 1, tzinfo=UTC),
        **more,
    )


def wires(dag: DAG) -> dict[str, set[str]]:
    return {task.task_id: task.downstream_task_ids for task in dag.tasks}


def facts(dag: DAG, task_id: str) -> dict[str, Any]:
    sensor = dag.task_dict[task_id]
    names = (
        "table",
        "tables",
        "partition",
        "tags",
        "cluster",
        "timeout",
        "skip_when_empty",
        "lakechime_conn_id",
        "deferrable",
        "consumer",
    )
    attributes = {name: getattr(sensor, name, None) for name in names}
    return {"type": type(sensor), "ticks": sensor.ticks, **attributes}


def test_a_pipeline_and_a_consumer_wait_before_they_begin() -> None:
    consumers = [
        Consumer(name="a", function="m:f", wait_for={"table": "shop.rates"}),
        Consumer(name="b", function="m:f"),
    ]
    dag = pipeline(wait_for=WaitFor(**WHOLE), consumers=consumers)
    assert wires(dag) == {
        "wait_for": {"ingest"},
        "ingest": {"metagen"},
        "metagen": {"a", "b"},
        "a.wait_for": {"a"},
        "a": set(),
        "b": set(),
    }
    first = facts(dag, "wait_for")
    assert first["type"] is PartitionTriggerSensor
    assert (first["partition"], first["cluster"], first["timeout"]) == (
        WHOLE["partition"],
        "prod",
        12 * 3600,
    )
    assert first["ticks"] == [1_793_599_200_000, 2, "HOUR"]
    second = facts(dag, "a.wait_for")
    assert (second["type"], second["tables"], second["consumer"]) == (
        SnapshotTriggerSensor,
        ["shop.rates"],
        "orders.a.wait_for",
    )
    assert (second["timeout"], second["deferrable"]) == (7 * 86_400, True)
    DagSerialization.to_dict(dag)


def test_a_group_waits_within_its_dag() -> None:
    with DAG(
        "d", schedule=keyed_schedule("@daily"), start_date=datetime(2026, 11, 1, tzinfo=UTC)
    ) as dag:
        OpalTaskGroup(
            "orders",
            table="shop.orders",
            source="/in/*.json",
            wait_for={"table": "shop.raw", "skip": True},
        )
    assert wires(dag)["orders.wait_for"] == {"orders.ingest"}
    assert facts(dag, "orders.wait_for")["consumer"] == "d.orders.wait_for"


def test_in_yaml_it_is_the_same(tmp_path: Path) -> None:
    text = GOOD.replace(
        "    source:",
        f"    wait_for: {json.dumps(WHOLE)}\n    lakechime_conn_id: null\n    source:",
    ).replace(
        '"shop.jobs:revenue"}',
        '"shop.jobs:revenue", lakechime_conn_id: chime, wait_for: {table: shop.rates, skip: true}}',
    )
    jsonschema.validate(
        yaml.load(text.replace("2026-11-01", '"2026-11-01"'), yaml.SafeLoader),
        json.loads(PUBLISHED.read_text()),
    )
    (tmp_path / "load.py").write_text(LOADER)
    (tmp_path / "shop.opal.yaml").write_text(text)
    bag = DagBag(str(tmp_path))
    assert bag.import_errors == {}
    made = bag.dags["orders"]
    consumer = Consumer(
        name="revenue",
        function="shop.jobs:revenue",
        lakechime_conn_id="chime",
        wait_for=WaitFor(table="shop.rates", skip=True),
    )
    same = pipeline(wait_for=WHOLE, consumers=[consumer], lakechime_conn_id=None)
    assert wires(made) == wires(same)
    for task_id in ("wait_for", "revenue.wait_for"):
        assert facts(made, task_id) == facts(same, task_id)
    ids = {
        task_id: made.task_dict[task_id].lakechime_conn_id
        for task_id in ("ingest", "metagen", "revenue")
    }
    assert ids == {"ingest": None, "metagen": None, "revenue": "chime"}


def test_a_time_without_a_zone_is_in_the_time_zone_of_the_pipeline(tmp_path: Path) -> None:
    waits = (
        "{table: shop.raw, start_timestamp: 2026-11-01T06:00, frequency: 1, frequency_unit: day}"
    )
    (tmp_path / "load.py").write_text(LOADER)
    (tmp_path / "shop.opal.yaml").write_text(
        GOOD.replace(
            "    source:", f"    timezone: Europe/Berlin\n    wait_for: {waits}\n    source:"
        )
    )
    bag = DagBag(str(tmp_path))
    assert bag.import_errors == {}
    assert facts(bag.dags["orders"], "wait_for")["ticks"] == [1_793_509_200_000, 1, "DAY"]


# The value of `wait_for`, the keys of the mistake below the pipeline, and a part of its message
YAML_MISTAKES = [
    ("{partition: [a]}", "wait_for.table", "is missing; add 'table: shop.orders'"),
    (
        "{table: shop.raw, partition: day}",
        "wait_for.partition",
        'a list is needed, not the text "day"; write [day]',
    ),
    (
        "{table: shop.raw, partition: []}",
        "wait_for.partition",
        'the value is empty; write ["{{ partition_key }}"]',
    ),
    (
        "{table: shop.raw, partition: [{a: 1}]}",
        "wait_for.partition.0",
        "is not the value of a partition",
    ),
    ("{table: shop.raw, partitions: [a]}", "wait_for.partitions", "did you mean 'partition'?"),
    ("{table: shop.raw, tags: {a: 1}}", "wait_for.tags.a", "put it into quotes: '1'"),
    ("{table: shop.raw, timeout: 12}", "wait_for.timeout", "a duration is needed"),
    (
        "{table: shop.raw, partition: ['{{ ds }}']}",
        "wait_for.partition.0",
        "write '{{ partition_key }}'",
    ),
    (
        "{table: shop.orders}",
        "wait_for.table",
        "is the pipeline's own table, so the pipeline would wait for itself; name another table",
    ),
    ("shop.raw", "wait_for", "a mapping is needed"),
    ("{table: shop.raw, frequency: 1}", "wait_for.frequency", "belong together; give all three"),
    ("{table: shop.raw, frequency_unit: fortnight}", "wait_for.frequency_unit", "month"),
    ("{table: shop.raw, start_timestamp: soon}", "wait_for.start_timestamp", "is not a day"),
]


@pytest.mark.parametrize("value, at, message", YAML_MISTAKES)
def test_each_mistake_in_yaml_is_reported_once_with_what_to_write(
    tmp_path: Path, value: str, at: str, message: str
) -> None:
    path = tmp_path / "shop.opal.yaml"
    path.write_text(GOOD.replace("    source:", f"    wait_for: {value}\n    source:"))
    [problem] = read_yaml(path, tmp_path).problems
    assert ".".join(map(str, problem.at)) == f"dags.orders.{at}"
    assert message in problem.what
    assert problem.position.line == 12


@pytest.mark.parametrize(
    "given, message",
    [
        ("shop.raw", r"write WaitFor\(table='shop.raw'"),
        ({"partition": ["a"]}, "does not name a table; add 'table'"),
        (
            {"table": "t", "tag": {}},
            "wait_for has no argument 'tag'; use one of table, start_timestamp, .* partition",
        ),
        ({"table": ""}, "is not the name of a table"),
        ({"table": "t", "partition": "a"}, "is not a list of values"),
        ({"table": "t", "tags": {"a": 1}}, "is not a mapping of names to texts"),
        ({"table": "t", "timeout": "soon"}, "timeout='soon' is not a duration"),
        ({"table": "t", "frequency_unit": "hour"}, "belong together; give all three"),
        ({"table": "t", "start_timestamp": datetime(2026, 11, 1)}, "has no time zone; write"),
    ],
)
def test_a_mistake_in_python_says_what_to_write(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline(wait_for=given)
    with pytest.raises(ValueError, match=message):
        Consumer(name="a", function="m:f", wait_for=given)


@pytest.mark.parametrize(
    "more, conn_ids",
    [({}, "lakechime_default"), ({"default_args": {"lakechime_conn_id": None}}, None)],
)
def test_commits_are_registered_unless_the_dag_s_default_args_say_otherwise(
    more: dict[str, Any], conn_ids: str | None
) -> None:
    dag = pipeline(consumers=[Consumer(name="a", function="m:f")], **more)
    assert [dag.task_dict[name].lakechime_conn_id for name in ("ingest", "metagen", "a")] == [
        conn_ids,
        conn_ids,
        None,
    ]
