"""Scripts of SQL in YAML: their DAGs, and the positions of mistakes."""

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_opal import opal_asset
from airflow_provider_opal.operators.sql import SqlOperator
from airflow_provider_opal.templates.yaml.lint.lint import lint
from airflow_provider_opal.templates.yaml.lint.page import render
from airflow_provider_opal.templates.yaml.loader import load_yaml_dags
from airflow_provider_opal.templates.yaml.models.run_options import RunOptions
from airflow_provider_opal.templates.yaml.models.script import ScriptModel
from tests.airflow_provider_opal.templates.yaml.build import VALIDATOR, read_as_editor
from tests.docs.build import examples

GOOD = """
version: 1
defaults: {retries: 3, metadata: inline}
scripts:
  corrections:
    schedule: "@daily"
    start_date: 2026-11-01
    sql: [sql/first.sql, "DELETE FROM lake.shop.b WHERE id = :n"]
    args: {day: "{{ partition_key }}", n: 7}
    limit: 5
    spark: {executor_memory: 4g}
"""
OTHERS = """
mutations:
  products:
    {schedule: null, start_date: 2026-11-01, master: /lake/m, increments: /lake/i, ids: [id]}
dags:
  orders:
    {schedule: null, start_date: 2026-11-01, table: shop.orders, source: {files: /in/*.json}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file of statements."""
    (tmp_path / "sql").mkdir()
    text = "UPDATE lake.shop.a SET x = 1 WHERE day = CAST(:day AS DATE) -- {{ run_id }}"
    (tmp_path / "sql" / "first.sql").write_text(text)
    return tmp_path


def findings_of(folder: Path, text: str) -> list[str]:
    """Return the findings of lint, without the file's name."""
    (folder / "a.opal.yaml").write_text(text)
    problems = lint(folder / "a.opal.yaml").problems
    return [str(problem).partition(".opal.yaml:")[2] for problem in problems]


def test_a_script_is_a_dag_with_an_operator_whose_files_lie_next_to_it(folder: Path) -> None:
    (folder / "a.opal.yaml").write_text(GOOD)
    [dag] = load_yaml_dags(folder)
    [task] = dag.tasks
    assert isinstance(task, SqlOperator)
    assert (dag.dag_id, task.task_id, task.retries, task.limit) == ("corrections", "run", 3, 5)
    assert task.args == {"day": "{{ partition_key }}", "n": "7"}
    dag.resolve_template_files()
    known: list[Any] = []
    for name in ("shop.a", "shop.b"):
        known += [opal_asset(name), opal_asset(name, versions=True)]
    assert task.outlets == known
    context: Any = {"dag": dag, "task": task, "partition_key": "2026-11-01", "run_id": "r"}
    task.render_template_fields(context)
    assert str(task.sql[0]).endswith("-- r")
    assert task.args["day"] == "2026-11-01"


def test_all_kinds_may_be_in_one_file_and_their_ids_are_distinct(folder: Path) -> None:
    (folder / "a.opal.yaml").write_text(GOOD + OTHERS)
    assert {dag.dag_id for dag in load_yaml_dags(folder)} == {"orders", "products", "corrections"}
    facts, problems = render(folder)
    assert ([fact["dag_id"] for fact in facts], problems) == (
        ["orders", "products", "corrections"],
        [],
    )
    [problem] = findings_of(folder, GOOD + OTHERS.replace("orders:", "corrections:", 1))
    assert "the DAG 'corrections' is already made in a.opal.yaml" in problem


def test_the_example_of_the_guide_is_sound(folder: Path) -> None:
    [example] = examples("docs/how-to/sql-tables.md", "yaml")
    (folder / "sql" / "corrections.sql").write_text("SELECT 1")
    assert findings_of(folder, example.text) == []


@pytest.mark.parametrize("text", [GOOD, GOOD + OTHERS])
def test_the_schema_accepts_scripts(text: str) -> None:
    VALIDATOR.validate(read_as_editor(text))


def test_every_argument_of_the_operator_is_a_key() -> None:
    keys = {*ScriptModel.model_fields} - {*RunOptions.model_fields}
    assert keys == {"schedule", "sql", "args", "catalog", "limit"}


# A change of the good file, the position of the mistake, and its message
MISTAKES = [
    (("sql: [", "sqls: ["), "8:5: scripts.corrections.sqls", "is unknown here; did you mean 'sql'"),
    (("first.sql", "none.sql"), "8:11: scripts.corrections.sql[0]", "does not exist in"),
    (("WHERE id = :n", "WHERE"), "8:26: scripts.corrections.sql[1]", "line 1"),
    (("DELETE FROM", "DELET '"), "8:26: scripts.corrections.sql[1]", "no end"),
    (("partition_key", "ds"), "9:17: scripts.corrections.args.day", "is empty in a run"),
    (("{day:", "{password:"), "9:11: scripts.corrections.args", "name of a secret"),
    (("limit: 5", "limit: -1"), "10:12: scripts.corrections.limit", "at least 0"),
    (("start_date: 2026-11-01", ""), "5:3: scripts.corrections.start_date", "is missing"),
]


@pytest.mark.parametrize("change, position, message", MISTAKES)
def test_a_mistake_is_reported_with_its_position(
    folder: Path, change: tuple[str, str], position: str, message: str
) -> None:
    findings = findings_of(folder, GOOD.replace(*change, 1))
    assert any(position in finding and message in finding for finding in findings), findings
