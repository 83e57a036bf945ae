"""Columns and types of the tables that pipelines declare: keys, order columns and delete conditions that no such table can have.

Only lint looks at types: they take Arrow, which no DAG file may load.
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
from opal_lake.definition.conditions.faults import DELETES
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.conditions.tree import Column, nodes_of
from opal_lake.definition.schema import Schema, schema_of_arrow
from opal_lake.definition.sql_schema import arrow_of_sql
from opal_lake.definition.table_spec import check_role
from opal_lake.errors import InvalidInputError
from opal_lake.operations.create import COLUMN_ROLES

_UNREAD = pa.struct([pa.field("unread", pa.int32())])  # stands for a type that lint cannot read


def of_the_schemas(file: YamlFile) -> Iterator[Problem]:
    """Yield what pipelines of a file say otherwise than the schema of their table."""
    for dag_id, dag in file.dags.items():
        if isinstance(dag.table, TableModel):
            for way, what in column_findings(dag.table.model_dump(by_alias=True)):
                yield file.problem(dag_id, what, "table", *way)


def column_findings(table: Mapping[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield each finding with its argument. `table` has the arguments of a CreateTable.

    A table without a schema gets its columns from its first source: nothing is known of them.
    """
    if not table.get("schema") or is_templated(table["schema"]):
        return
    schema, unread = _declared(table["schema"])
    for role in COLUMN_ROLES:
        given = table.get(role) or []
        for column in [given] if isinstance(given, str) else given:
            if column not in unread:
                yield from (((role,), what) for what in _misfit(schema, role, column))
    deletes = table.get("deletes")
    if deletes is not None and not is_templated(deletes):
        yield from ((("deletes",), what) for what in _wrong_condition(schema, unread, deletes))


def _declared(sql: str) -> tuple[Schema, set[str]]:
    """Return the columns, and the names of those whose types are not known.

    Spark reads more than lint does: nested columns and constraints.
    """
    fields, unread = list[pa.Field](), set[str]()
    for name, part in zip(schema_columns(sql), schema_parts(sql), strict=True):
        try:
            fields += arrow_of_sql(part)
        except InvalidInputError:
            unread.add(name)
            fields.append(pa.field(name, _UNREAD))
    return schema_of_arrow(pa.schema(fields)), unread


def _misfit(schema: Schema, role: str, column: str) -> Iterator[str]:
    known = [field.name for field in schema.fields]
    if column not in known:
        yield f"the schema has no column {column!r}; {advice(column, known)}"
        return
    try:
        check_role(schema, role, [column])
    except InvalidInputError as error:
        yield str(error)


def _wrong_condition(schema: Schema, unread: set[str], text: str) -> Iterator[str]:
    try:
        named = {
            node.path[0] for node in nodes_of(parse(text, DELETES)) if isinstance(node, Column)
        }
        if not {name.casefold() for name in named} & {name.casefold() for name in unread}:
            condition(text, schema.fields, DELETES)
    except InvalidInputError as error:
        fact, *_ = str(error).splitlines()  # below it is a picture of the place
        yield fact
