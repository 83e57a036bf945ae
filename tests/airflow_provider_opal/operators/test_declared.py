"""Operators take the arguments of their declaration, as Airflow takes those of any operator."""

import copy
import inspect
from collections.abc import Iterator
from datetime import datetime
from typing import Any, ClassVar

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_opal import (
    CompactionOperator,
    ConsumeOperator,
    IngestOperator,
    MaintenanceOperator,
    MetaGenOperator,
    RestoreOperator,
    RetentionOperator,
    SchemaChangeOperator,
    ZOrderOperator,
)
from airflow_provider_opal.operators.declared import DeclaredOperator
from airflow_provider_opal.operators.folders.bulk_mutation import BulkMutationOperator
from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.compact import Compact
from opal_lake.operations.restore import Restore

OPERATORS: dict[Any, dict[str, Any]] = {
    BulkMutationOperator: {"increments": ["/in/*"], "ids": ["id"], "backups": 1},
    CompactionOperator: {"mode": "major", "look_back": "30d"},
    ConsumeOperator: {"function": "shop:revenue", "rows": "changes", "by": "version"},
    IngestOperator: {"source": {"files": {"paths": ["/in/*"]}}, "on_bad_rows": "quarantine"},
    MaintenanceOperator: {"small_files": 3},
    MetaGenOperator: {"partition_key": "2026-11-01"},
    RestoreOperator: {"version": 7},
    RetentionOperator: {"window": "30d"},
    SchemaChangeOperator: {"schema": "id BIGINT, amount INT", "renamed": {"amount": "total"}},
    ZOrderOperator: {"columns": ["a", "b"]},
}
PLACES = {BulkMutationOperator: "master"}  # of others it is a table
KNOWN_BEFORE = {"by", "rows"}  # no templates: a consumer's kind is known when its DAG is read
KINDS = pytest.mark.parametrize("kind", OPERATORS)


def all_kinds(base: Any) -> Iterator[Any]:
    """Yield the operators of the provider below a base that have a declaration."""
    for kind in base.__subclasses__():
        if hasattr(kind, "declared") and kind.__module__.startswith("airflow_provider_opal."):
            yield kind
        yield from all_kinds(kind)


def made(kind: Any, task_id: str, **arguments: Any) -> Any:
    """Return a task on a table, or on a folder."""
    return kind(task_id=task_id, **{PLACES.get(kind, "table"): "shop.t"}, **arguments)


@KINDS
def test_the_signature_has_the_arguments_of_the_declaration(kind: Any) -> None:
    shown = inspect.signature(kind.__init__).parameters
    assert {PLACES.get(kind, "table"), *OPERATORS[kind], "kwargs"} <= {*shown}
    assert kind.declared.token_argument not in shown
    assert all(shown[name].default == default for name, default in kind.defaults.items())


@KINDS
def test_default_args_and_arguments_reach_the_job(kind: Any) -> None:
    with DAG("d", start_date=datetime(2026, 1, 1), default_args=OPERATORS[kind]):
        by_default = made(kind, "a")
        given = made(kind, "b", **OPERATORS[kind])
    assert by_default.arguments == given.arguments
    assert OPERATORS[kind].keys() & kind.declared.fields() <= given.arguments.keys()
    assert copy.deepcopy(given).arguments == given.arguments
    assert {"table", "arguments"} <= {*kind.template_fields}


@KINDS
def test_it_can_be_mapped_over_tables_and_arguments(kind: Any) -> None:
    name, value = next(iter(OPERATORS[kind].items()))
    rest = {other: OPERATORS[kind][other] for other in OPERATORS[kind] if other != name}
    with DAG("d", start_date=datetime(2026, 1, 1)) as dag:
        table_argument = PLACES.get(kind, "table")
        kind.partial(task_id="m", **OPERATORS[kind]).expand(
            **{table_argument: ["shop.a", "shop.b"]}
        )
        kind.partial(task_id="n", **{table_argument: "shop.t"}, **rest).expand(
            **{name: [value, value]}
        )
    DagSerialization.from_dict(DagSerialization.to_dict(dag))


def templated(value: Any) -> Any:
    """Return a template of a value, or a list or a mapping of them."""
    if isinstance(value, dict):
        return {name: templated(member) for name, member in value.items()}
    if isinstance(value, list):
        return [*map(templated, value)]
    return f"{{{{ {value!r} }}}}"


@KINDS
def test_a_template_in_any_argument_is_filled_in(kind: Any) -> None:
    table_argument = PLACES.get(kind, "table")
    given = {
        name: value if name in KNOWN_BEFORE else templated(value)
        for name, value in OPERATORS[kind].items()
    }
    with DAG("d", start_date=datetime(2026, 1, 1)) as dag:
        task = kind(task_id="a", **{table_argument: templated("shop.t"), **given})
    plain = made(kind, "b", **OPERATORS[kind])
    task.render_template_fields({"dag": dag, "task": task})
    assert task.table == "shop.t"
    assert kind.declared.filled_in(task.arguments) == plain.arguments


def test_every_operator_of_a_declaration_is_tested_here() -> None:
    assert {*all_kinds(DeclaredOperator)} == {*OPERATORS}


@KINDS
def test_an_unknown_argument_is_refused_when_the_dag_is_read(kind: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="mod"):
        made(kind, "a", **OPERATORS[kind], mod="major")


class Named(WholeTableOperator):
    """An operator with an argument of its own."""

    def __init__(self, *, table: str, owner_note: str = "", **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        self.owner_note = owner_note


class NamedCompaction(Named):
    declared = Compact


class Eager(CompactionOperator):
    defaults: ClassVar = {"only_if_due": False}


class Again(RestoreOperator):
    declared = Restore


def test_a_subclass_does_what_its_parents_do() -> None:
    assert NamedCompaction(task_id="c", table="shop.t", owner_note="me").owner_note == "me"
    assert inspect.signature(Eager.__init__).parameters["only_if_due"].default is False
    assert Eager(task_id="e", table="shop.t").arguments["only_if_due"] is False
    outlets = RestoreOperator(task_id="r", table="shop.t", version=1).outlets
    assert Again(task_id="s", table="shop.t", version=1).outlets == outlets != []


def test_an_init_without_kwargs_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"must take \*\*kwargs"):

        class Closed(WholeTableOperator):
            declared = Compact

            def __init__(self, *, table: str, task_id: str) -> None:
                super().__init__(table=table, task_id=task_id)
