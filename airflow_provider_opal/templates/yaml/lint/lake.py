"""The differences between YAML files and the real tables."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.templates.yaml.files import YamlFile
from airflow_provider_opal.templates.yaml.lint.graph import Pipeline, TableOf
from airflow_provider_opal.templates.yaml.models.rules import schema_columns
from airflow_provider_opal.templates.yaml.models.version_1 import (
    DagModel,
    MaintenanceModel,
    TableModel,
)
from airflow_provider_opal.templates.yaml.text.problem import Problem, advice, shown
from opal_lake.errors import InvalidInputError, NotFoundError, OpalError
from opal_lake.operations.create import COLUMN_ROLES

if TYPE_CHECKING:
    from opal_lake.definition.table_spec import TableSpec

UNREACHABLE = "unreachable"
_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
_MAX_REASON_CHARACTERS = 300


@contextmanager
def connections() -> Iterator[None]:
    """Let Airflow find the connections of its database and of the environment."""
    before = os.environ.get(_CONTEXT)
    os.environ[_CONTEXT] = "server"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CONTEXT]
        else:
            os.environ[_CONTEXT] = before


def resolved(pipelines: list[Pipeline]) -> list[Pipeline]:
    """Return the pipelines with the addresses of their tables.

    Addresses are compared because two connections may lead to one lake. A table of an unknown
    connection has none.
    """
    return [
        replace(pipeline, writes=_addresses(pipeline.writes), waits=_addresses(pipeline.waits))
        for pipeline in pipelines
    ]


def _addresses(tables: tuple[TableOf, ...]) -> tuple[TableOf, ...]:
    resolved = []
    for table in tables:
        try:
            uri = OpalHook(table.opal_conn_id).lake.uri(table.name)
        except (AirflowException, ValueError):
            resolved.append(table)
        else:
            resolved.append(replace(table, resolved=uri))
    return tuple(resolved)


def lake_findings(file: YamlFile) -> Iterator[Problem]:
    """Yield the differences between the pipelines of a file and their tables."""
    for dag_id, dag in file.dags.items():
        try:
            table = OpalHook(dag.opal_conn_id).table(dag.table_name)
            spec = table.snapshot_at().spec
        except NotFoundError:
            if isinstance(dag.table, str) or dag.table.keys is None:
                what = (
                    f"the table {dag.table_name!r} does not exist, and cannot be created without "
                    "'keys' and 'delta'; add them, or create it first"
                )
                yield file.problem(dag_id, what, "table")
        except AirflowFailException as error:  # a root or a bucket that does not exist
            reason = shown(str(error), _MAX_REASON_CHARACTERS)
            what = f"the lake cannot be reached ({reason}); correct it, then lint again"
            yield replace(file.problem(dag_id, what, "table"), kind=UNREACHABLE)
        except AirflowException as error:
            what = (
                f"the connection {dag.opal_conn_id!r} is not known here ({shown(str(error))}); "
                "add it in Airflow, type Opal lake"
            )
            yield file.problem(dag_id, what, *_conn_keys(file, dag_id))
        except (OpalError, OSError, ValueError) as error:
            kind = "error" if isinstance(error, InvalidInputError) else UNREACHABLE
            reason = shown(str(error), _MAX_REASON_CHARACTERS)
            what = (
                f"the lake cannot be reached ({reason}); "
                f"check the connection {dag.opal_conn_id!r}, then lint again"
            )
            yield replace(file.problem(dag_id, what, "table"), kind=kind)
        else:
            yield from _table_findings(file, dag_id, dag, spec)


def _table_findings(
    file: YamlFile, dag_id: str, dag: DagModel, existing: "TableSpec"
) -> Iterator[Problem]:
    """Yield the differences between a pipeline and its table."""
    spec = existing
    if isinstance(dag.table, TableModel):
        if dag.table.evolve:
            try:
                spec = _evolved(dag.table, existing)
            except InvalidInputError as error:
                yield file.problem(dag_id, str(error), "table", "schema")
                return
        yield from _differences(file, dag_id, dag.table, spec)
    yield from _unclustered(file, dag_id, dag.maintenance, spec)


def _evolved(table: TableModel, existing: "TableSpec") -> "TableSpec":
    """Return the definition of a table after its pipeline has changed it."""
    from opal_lake.definition.changes.apply import changed
    from opal_lake.definition.changes.toward import WantedColumns, changes_toward
    from opal_lake.definition.sql_schema import arrow_of_sql

    wanted = WantedColumns(columns=arrow_of_sql(table.schema_), **table.beyond_schema)
    changes, _ = changes_toward(existing.schema, wanted)
    return changed(existing, changes)[0]


def _unclustered(
    file: YamlFile, dag_id: str, maintenance: Any, existing: "TableSpec"
) -> Iterator[Problem]:
    if not isinstance(maintenance, MaintenanceModel):
        return
    for column in maintenance.zorder or []:
        if column not in _column_names(existing):
            yield file.problem(dag_id, _no_column(existing, column), "maintenance", "zorder")


def _column_names(existing: "TableSpec") -> list[str]:
    return [column.name for column in existing.schema.fields]


def _no_column(existing: "TableSpec", column: str) -> str:
    return f"the table has no column {shown(column)!r}; {advice(column, _column_names(existing))}"


def _conn_keys(file: YamlFile, dag_id: str) -> tuple[str, ...]:
    """Return the keys of the connection in a pipeline; none if `defaults` gives it."""
    is_given = ("dags", dag_id, "opal_conn_id") in file.document.values
    return ("opal_conn_id",) if is_given else ()


def _differences(
    file: YamlFile, dag_id: str, table: TableModel, existing: "TableSpec"
) -> Iterator[Problem]:
    absent = list(_absent(file, dag_id, table, existing))
    yield from absent
    if table.schema_ is not None:
        yield from _other_columns(file, dag_id, table.schema_, existing)
    if absent or table.keys is None:
        return
    try:
        differences = _spec_differences(table, existing)
    except InvalidInputError as error:
        yield file.problem(dag_id, f"such a table is not possible: {error}", "table")
        return
    for difference in differences:
        role = difference.partition(" ")[0]  # the message begins with the argument
        is_given = ("dags", dag_id, "table", role) in file.document.values
        keys = ("table", role) if is_given else ("table",)
        what = f"the table's {difference}; write it as the table has it, or name another table"
        yield file.problem(dag_id, what, *keys)


def _absent(
    file: YamlFile, dag_id: str, table: TableModel, existing: "TableSpec"
) -> Iterator[Problem]:
    known = _column_names(existing)
    for role in COLUMN_ROLES:
        given: Any = getattr(table, role) or []
        columns = [given] if isinstance(given, str) else given
        for column in columns:
            if column not in known:
                yield file.problem(dag_id, _no_column(existing, column), "table", role)


def _other_columns(
    file: YamlFile, dag_id: str, schema: str, existing: "TableSpec"
) -> Iterator[Problem]:
    known, declared = _column_names(existing), schema_columns(schema)
    hint = "write the schema as the table has it"
    for name in declared:
        if name not in known:
            what = f"the table has no column {name!r}; {hint}"
            yield file.problem(dag_id, what, "table", "schema")
    for name in known:
        if name not in declared:
            what = f"the table has a column {name!r}, and the schema does not; {hint}"
            yield file.problem(dag_id, what, "table", "schema")


def _spec_differences(table: TableModel, existing: "TableSpec") -> list[str]:
    from opal_lake.definition.requested_spec import spec_differences
    from opal_lake.definition.schema import arrow_schema
    from opal_lake.definition.table_spec import TableLayout, plan_spec

    given = table.model_dump(
        by_alias=True, exclude={"name", "schema_", "evolve"}, exclude_none=True
    )
    return spec_differences(
        existing, plan_spec(arrow_schema(existing.schema), TableLayout(**given))
    )
