"""Mutations of folders in YAML: their DAGs, and the positions of mistakes."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from airflow.sdk import DAG

from airflow_provider_opal.operators.folders.bulk_mutation import BulkMutationOperator
from airflow_provider_opal.templates.yaml.lint.lint import lint
from airflow_provider_opal.templates.yaml.loader import load_yaml_dags
from airflow_provider_opal.templates.yaml.models.mutation import MutationModel
from airflow_provider_opal.templates.yaml.models.run_options import RunOptions
from opal_lake.operations.mutate import Mutate
from tests.airflow_provider_opal.templates.yaml.build import ROOT, VALIDATOR, read_as_editor

GOOD = """
version: 1
defaults: {retries: 3, metadata: inline, spark: {conf: {a: b}}}
mutations:
  products:
    schedule: "@daily"
    start_date: 2026-11-01
    master: /lake/product/master
    increments: "/lake/product/incr/{{ partition_key }}"
    ids: ["0"]
    header: false
    order: "5"
    delete_prefix: del
    schema: id STRING, at BIGINT
    count_first: true
    spark: {executor_memory: 4g}
"""
TABLE = """
dags:
  orders:
    schedule: null
    start_date: 2026-11-01
    table: shop.orders
    source: {files: /in/*.json}
"""


def dags_of(folder: Path, text: str) -> dict[str, DAG]:
    (folder / "a.opal.yaml").write_text(text)
    return {dag.dag_id: dag for dag in load_yaml_dags(folder)}


def findings_of(folder: Path, text: str) -> list[str]:
    """Return the findings of lint, without the file's name."""
    (folder / "a.opal.yaml").write_text(text)
    problems = lint(folder / "a.opal.yaml").problems
    return [str(problem).partition(".opal.yaml:")[2] for problem in problems]


def test_a_mutation_is_a_dag_that_counts_and_merges(tmp_path: Path) -> None:
    dags = dags_of(tmp_path, GOOD)
    assert list(dags) == ["products"]
    tasks: dict[str, Any] = {task.task_id: task for task in dags["products"].tasks}
    count, merge = tasks["count"], tasks["merge"]
    assert isinstance(merge, BulkMutationOperator)
    assert [task.task_id for task in count.downstream_list] == ["merge"]
    given = {
        "ids": ["0"],
        "order": "5",
        "header": False,
        "delete_prefix": "del",
        "schema": "id STRING, at BIGINT",
        "dry_run": False,
    }
    assert {name: merge.arguments[name] for name in given} == given
    assert count.arguments["dry_run"] is True
    assert (merge.retries, merge.table) == (3, "/lake/product/master")


def test_tables_and_folders_may_be_in_one_file_and_their_ids_are_distinct(tmp_path: Path) -> None:
    assert {*dags_of(tmp_path, GOOD + TABLE)} == {"orders", "products"}
    [problem] = findings_of(tmp_path, GOOD + TABLE.replace("orders:", "products:", 1))
    assert "the DAG 'products' is already made in a.opal.yaml" in problem


def test_every_argument_of_the_operation_is_a_key() -> None:
    keys = {field.alias or name for name, field in MutationModel.model_fields.items()}
    arguments = {*Mutate.fields()} - {"dry_run", "token"}
    further = {"master", "schedule", "properties", "count_first"}
    assert keys - {*RunOptions.model_fields} == arguments | further


# A change of the good file, the position of the mistake below the pipeline, and its message
MISTAKES = [
    (
        ("increments:", "increment:"),
        "9:5: mutations.products.increment",
        "the key 'increment' is unknown here; did you mean 'increments'?",
    ),
    (
        ('ids: ["0"]', ""),
        "5:3: mutations.products.ids",
        "is missing; add 'ids: [id]', the fields",
    ),
    (
        ("master: /lake/product/master", ""),
        "5:3: mutations.products.master",
        "is missing; add 'master: \"/lake/product/master\"'",
    ),
    (('ids: ["0"]', "ids: id"), "10:10: mutations.products.ids", "a list is needed"),
    (
        ("partition_key", "ds"),
        "9:17: mutations.products.increments",
        "'{{ ds }}' is empty in a run with a partition key",
    ),
    (
        ("header: false", "order_type: number"),
        "11:17: mutations.products.order_type",
        "the text \"number\" is unknown here; did you mean 'numeric'?",
    ),
    (
        ("header: false", "backups: -1"),
        "11:14: mutations.products.backups",
        "the number -1 is out of range; write at least 0",
    ),
    (
        ("header: false", "properties: {id.field.ordinal: '0'}"),
        "11:17: mutations.products.properties",
        "property 'id.field.ordinal' is unknown; did you mean 'id.field.ordinals'?",
    ),
    (("start_date: 2026-11-01", ""), "5:3: mutations.products.start_date", "is missing"),
    (
        ("header: false", "metadata: inline"),
        "11:5: mutations.products.metadata",
        "the key 'metadata' is unknown here",
    ),
]


@pytest.mark.parametrize("change, position, message", MISTAKES)
def test_a_mistake_is_reported_with_its_position(
    tmp_path: Path, change: tuple[str, str], position: str, message: str
) -> None:
    findings = findings_of(tmp_path, GOOD.replace(*change, 1))
    assert any(f"{position}: {message}" in finding for finding in findings), findings


def test_a_broken_mutation_hides_no_other(tmp_path: Path) -> None:
    other = GOOD.partition("mutations:\n")[2].replace("products:", "other:").replace("ids:", "id:")
    dags = dags_of(tmp_path, GOOD + other)
    assert "products" in dags
    assert "other" not in dags or not dags["other"].tasks


@pytest.mark.parametrize(
    "text", [GOOD, GOOD + TABLE, (ROOT / "dags" / "stock.opal.yaml").read_text(encoding="utf-8")]
)
def test_the_schema_accepts_mutations(text: str) -> None:
    VALIDATOR.validate(read_as_editor(text))


def test_the_schema_needs_tables_or_mutations() -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({"version": 1})
