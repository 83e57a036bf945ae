"""Columns and types of the tables that pipelines declare.

The findings are keys, order columns and conditions that do not fit the types of a table's
columns. Only lint checks types: this needs Arrow, which no DAG file may load.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_opal.templated import is_templated
from airflow_provider_opal.templates.yaml.files import YamlFile
from airflow_provider_opal.templates.yaml.models.rules import schema_columns, schema_parts
from airflow_provider_opal.templates.yaml.models.version_1 import TableModel
from airflow_provider_opal.templates.yaml.text.problem import Keys, Problem, advice
from opal_lake.definition.conditions.condition import condition
from opal_lake.definition.conditions.faults import DELETES, Use
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.conditions.tree import Column, nodes_of
from opal_lake.definition.constraints import use_of
from opal_lake.definition.schema import COMMIT, Schema, schema_of_arrow
from opal_lake.definition.sql_schema import arrow_of_sql
from opal_lake.definition.table_spec import ROLES, check_role
from opal_lake.errors import InvalidInputError
from opal_lake.operations.create import COLUMN_ROLES

# In place of a type that lint cannot read
_UNREAD = pa.struct([pa.field("unread", pa.int32())])


def of_the_schemas(file: YamlFile) -> Iterator[Problem]:
    """Yield the contradictions to the declared schemas in the pipelines of a file."""
    for dag_id, dag in file.dags.items():
        if isinstance(dag.table, TableModel):
            for keys, what in column_findings(dag.table.model_dump(by_alias=True)):
                yield file.problem(dag_id, what, "table", *keys)


def column_findings(table: Mapping[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield the findings on the arguments of a CreateTable, each with its argument.

    Without a schema there are none: the columns come from the first source, and are not known.
    """
    if not table.get("schema") or is_templated(table["schema"]):
        return
    schema, unread = _declared(table["schema"])
    for role in COLUMN_ROLES:
        given = table.get(role) or []
        columns = [given] if isinstance(given, str) else given
        for column in columns:
            if (role, column) == ("delta", COMMIT):
                # The table fills the built-in column itself
                continue
            misfit = None if column in unread else _misfit(schema, role, column)
            if misfit is not None:
                yield (role,), misfit
    for keys, text, use in _conditions(table):
        if is_templated(text):
            continue
        mistake = _condition_mistake(schema, unread, text, use)
        if mistake is not None:
            yield keys, mistake


def _conditions(table: Mapping[str, Any]) -> Iterator[tuple[Keys, str, Use]]:
    """Yield the conditions of a CreateTable, each with its argument and its use."""
    if table.get("deletes") is not None:
        yield ("deletes",), table["deletes"], DELETES
    for name, text in (table.get("constraints") or {}).items():
        yield ("constraints", name), text, use_of(name)


def _declared(sql: str) -> tuple[Schema, set[str]]:
    """Return the declared columns, and the names of those with unreadable types.

    Only Spark reads nested columns and constraints.
    """
    fields, unread = list[pa.Field](), set[str]()
    for name, part in zip(schema_columns(sql), schema_parts(sql), strict=True):
        try:
            fields += arrow_of_sql(part)
        except InvalidInputError:
            unread.add(name)
            fields.append(pa.field(name, _UNREAD))
    return schema_of_arrow(pa.schema(fields)), unread


def _misfit(schema: Schema, role: str, column: str) -> str | None:
    known = [field.name for field in schema.fields]
    if column not in known:
        return f"the schema has no column {column!r}; {advice(column, known)}"
    if role not in ROLES:
        return None  # a column of any type may have it
    try:
        check_role(schema, role, [column])
    except InvalidInputError as error:
        return str(error)
    return None


def _condition_mistake(schema: Schema, unread: set[str], text: str, use: Use) -> str | None:
    try:
        columns = [node for node in nodes_of(parse(text, use)) if isinstance(node, Column)]
        names = {column.path[0].casefold() for column in columns}
        if not names & {name.casefold() for name in unread}:
            condition(text, schema.fields, use)
    except InvalidInputError as error:
        fact, *_ = str(error).splitlines()  # the lines below show the position in the condition
        return fact
    return None
