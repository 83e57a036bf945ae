"""YAML files beside the real tables: what a table was made with, and what the file says of it."""

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
from airflow_provider_opal.templates.yaml.models.version_1 import MaintenanceModel, TableModel
from airflow_provider_opal.templates.yaml.text.problem import Problem, advice, shown
from opal_lake.errors import InvalidInputError, NotFoundError, OpalError
from opal_lake.operations.create import COLUMN_ROLES

if TYPE_CHECKING:
    from opal_lake.definition.table_spec import TableSpec

UNREACHABLE = "unreachable"
_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"


@contextmanager
def connections() -> Iterator[None]:
    """With those of Airflow's database, as the scheduler sees them; else only the environment's are found."""
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
    """The same with the tables' whole addresses, where their connections are known: two connections may lead to one lake."""
    return [
        replace(pipeline, writes=_addresses(pipeline.writes), waits=_addresses(pipeline.waits))
        for pipeline in pipelines
    ]


def _addresses(tables: tuple[TableOf, ...]) -> tuple[TableOf, ...]:
    resolved = []
    for table in tables:
        try:
            resolved.append(
                replace(table, resolved=OpalHook(table.opal_conn_id).lake.uri(table.name))
            )
        except (AirflowException, ValueError):
            resolved.append(table)
    return tuple(resolved)


def beside_the_lake(file: YamlFile) -> Iterator[Problem]:
    """What every pipeline of a file says otherwise than its table."""
    for dag_id, dag in file.dags.items():
        try:
            table = OpalHook(dag.opal_conn_id).table(dag.table_name)
            spec = table.snapshot_at().spec
        except NotFoundError:
            if isinstance(dag.table, str) or dag.table.keys is None:
                what = (
                    f"the table {dag.table_name!r} does not exist, and cannot be created without 'keys' and 'delta'; add them, "
                    f"or create it first"
                )
                yield file.problem(dag_id, what, "table")
        except AirflowFailException as error:  # a root or a bucket that does not exist
            what = f"the lake cannot be reached ({shown(str(error), 300)}); correct it, then lint again"
            yield replace(file.problem(dag_id, what, "table"), kind=UNREACHABLE)
        except AirflowException as error:
            what = f"the connection {dag.opal_conn_id!r} is not known here ({shown(str(error))}); add it in Airflow, type Opal lake"
            yield file.problem(dag_id, what, *_conn_keys(file, dag_id))
        except (OpalError, OSError, ValueError) as error:
            kind = "error" if isinstance(error, InvalidInputError) else UNREACHABLE
            what = f"the lake cannot be reached ({shown(str(error), 300)}); check the connection {dag.opal_conn_id!r}, then lint again"
            yield replace(file.problem(dag_id, what, "table"), kind=kind)
        else:
            if isinstance(dag.table, TableModel):
                yield from _differences(file, dag_id, dag.table, spec)
            yield from _unclustered(file, dag_id, dag.maintenance, spec)


def _unclustered(
    file: YamlFile, dag_id: str, maintenance: Any, made: "TableSpec"
) -> Iterator[Problem]:
    known = [column.name for column in made.schema.fields]
    for column in (maintenance.zorder if isinstance(maintenance, MaintenanceModel) else None) or []:
        if column not in known:
            yield file.problem(
                dag_id,
                f"the table has no column {shown(column)!r}; {advice(column, known)}",
                "maintenance",
                "zorder",
            )


def _conn_keys(file: YamlFile, dag_id: str) -> tuple[str, ...]:
    return ("opal_conn_id",) if ("dags", dag_id, "opal_conn_id") in file.document.values else ()


def _differences(
    file: YamlFile, dag_id: str, table: TableModel, made: "TableSpec"
) -> Iterator[Problem]:
    absent = list(_absent(file, dag_id, table, made))
    yield from absent
    if table.schema_ is not None:
        yield from _other_columns(file, dag_id, table.schema_, made)
    if absent or table.keys is None:
        return
    try:
        differences = _spec_differences(table, made)
    except InvalidInputError as error:
        yield file.problem(dag_id, f"such a table is not possible: {error}", "table")
        return
    for difference in differences:
        role = difference.partition(" ")[0]
        keys = (
            ("table", role)
            if ("dags", dag_id, "table", role) in file.document.values
            else ("table",)
        )
        yield file.problem(
            dag_id,
            f"the table's {difference}; write it as the table has it, or name another table",
            *keys,
        )


def _absent(file: YamlFile, dag_id: str, table: TableModel, made: "TableSpec") -> Iterator[Problem]:
    known = [column.name for column in made.schema.fields]
    for role in COLUMN_ROLES:
        given: Any = getattr(table, role) or []
        for column in [given] if isinstance(given, str) else given:
            if column not in known:
                yield file.problem(
                    dag_id,
                    f"the table has no column {shown(column)!r}; {advice(column, known)}",
                    "table",
                    role,
                )


def _other_columns(
    file: YamlFile, dag_id: str, schema: str, made: "TableSpec"
) -> Iterator[Problem]:
    known, declared = [column.name for column in made.schema.fields], schema_columns(schema)
    differences = [f"has no column {name!r}" for name in declared if name not in known]
    differences += [
        f"has a column {name!r}, and the schema does not" for name in known if name not in declared
    ]
    for what in differences:
        yield file.problem(
            dag_id, f"the table {what}; write the schema as the table has it", "table", "schema"
        )


def _spec_differences(table: TableModel, made: "TableSpec") -> list[str]:
    from opal_lake.definition.schema import arrow_schema
    from opal_lake.definition.table_spec import TableLayout, plan_spec, spec_differences

    given = table.model_dump(by_alias=True, exclude={"name", "schema_"}, exclude_none=True)
    return spec_differences(made, plan_spec(arrow_schema(made.schema), TableLayout(**given)))
