"""The Airflow guide's examples: files of a DAG folder, and commands.

The tests of the cluster run its pipelines.
"""

import shlex
from pathlib import Path
from textwrap import indent

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions.mappedoperator import MappedOperator

from opal_lake.cli import main
from opal_lake.exit_codes import OK
from tests.airflow_provider_opal.guide import (
    BACKFILLS,
    CONSUMERS,
    FOREIGN_TABLES,
    OPERATORS,
    PIPELINE,
    write_examples,
)
from tests.docs.build import ROOT, example_with, examples
from tests.fixtures_cli import metadata, opal_commands

__all__ = ["metadata", "opal_commands"]

MAPPED = "orders_by_shop"


def test_the_guide_s_pipelines_in_python_and_in_yaml_are_the_same(tmp_path: Path) -> None:
    write_examples(tmp_path, {})
    bag = DagBag(str(tmp_path))
    assert bag.import_errors == {}
    made = {
        dag_id: (repr(type(dag.timetable)), [type(task) for task in dag.tasks])
        for dag_id, dag in bag.dags.items()
    }
    for kind in ("", ".revenue", ".reconcile", ".maintenance"):
        assert made.pop(f"guide_python{kind}") == made.pop(f"guide_yaml{kind}")
    assert list(made) == [MAPPED]
    tasks = bag.dags[MAPPED].task_dict
    assert isinstance(tasks["ingest"], MappedOperator)
    assert (tasks["ingest"].upstream_task_ids, tasks["metagen"].upstream_task_ids) == (
        {"paths"},
        {"ingest"},
    )
    [paths] = [tasks["paths"].python_callable(partition_key="2026-11-01")]
    assert paths == ["s3a://in/north/2026-11-01/*.json", "s3a://in/south/2026-11-01/*.json"]


def test_the_guide_shows_the_consumer_of_the_example_as_it_is() -> None:
    assert (
        example_with(CONSUMERS, "def count_by_city").text
        == (ROOT / "dags" / "city_jobs.py").read_text()
    )


def test_the_guide_s_relay_wakes_its_report(tmp_path: Path) -> None:
    (tmp_path / "relay.py").write_text(example_with(FOREIGN_TABLES, "relay_dag(").text)
    bag = DagBag(str(tmp_path))
    assert bag.import_errors == {}
    [relay] = bag.dags["relay"].tasks
    woken_by = bag.dags["raw_report"].timetable.asset_condition
    assert woken_by in relay.outlets
    assert [outlet.uri for outlet in relay.outlets] == [
        f"lakechime://{table}{kind}"
        for table in ("default/shop.raw", "prod/shop.rates")
        for kind in ("", "/snapshots")
    ]


def test_the_guide_s_stream_is_a_dag(tmp_path: Path) -> None:
    (tmp_path / "live.py").write_text(example_with(OPERATORS, "StreamingIngestOperator(").text)
    bag = DagBag(str(tmp_path))
    assert bag.import_errors == {}
    [task] = bag.dags["orders_live"].tasks
    assert (task.mode, task.run_for_s, task.deferrable) == ("continuous", 3600.0, True)


def test_the_guide_shows_the_example_s_first_task_as_it_is() -> None:
    assert (
        indent(example_with(FOREIGN_TABLES, "fetched_events = ").text, " " * 4)
        in (ROOT / "dags" / "pageviews.py").read_text()
    )


def test_airflow_knows_the_guide_s_commands() -> None:
    commands = [
        shlex.split(command)
        for page in (PIPELINE, BACKFILLS)
        for example in examples(page, "console")
        for command in example.commands
    ]
    known = [
        vars(get_parser().parse_args(words)) for program, *words in commands if program == "airflow"
    ]
    assert [command["subcommand"] for command in known] == ["add", "add", "create", "clear"]


@pytest.mark.usefixtures("opal_commands")
def test_the_commands_of_the_yaml_reference_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dags").mkdir()
    for example in examples("docs/reference/yaml.md", "console"):
        for command in example.commands:
            assert main(shlex.split(command)[1:]) == OK, f"{example}: {command}"
    assert (tmp_path / "dags" / "orders.opal.yaml").is_file()
