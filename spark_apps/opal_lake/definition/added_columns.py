"""Columns that a table gets after its creation: which of those that are asked for are new, and their types as callers write them."""

import re
from collections.abc import Mapping

import pyarrow as pa

from opal_lake.definition.schema import (
    ATOMIC_TYPES,
    SQL_NAMES,
    Schema,
    arrow_type,
    atomic_type_name,
    check_names,
    decimal_parts,
    extended,
    schema_of_arrow,
    type_from_json,
    type_name,
)
from opal_lake.errors import InvalidInputError

NewColumns = Mapping[str, str | pa.DataType]
_OF_SQL = {sql: name for name, sql in SQL_NAMES.items()}


def arrow_of_columns(columns: NewColumns) -> pa.Schema:
    """Types are Spark's names, as `double` and `decimal(10,2)`, or Arrow's own types, which may be nested."""
    if not columns:
        raise InvalidInputError(
            f"columns={columns!r} names no column; write columns={{'discount': 'double'}}"
        )
    check_names(columns)
    return pa.schema([pa.field(name, _arrow_of(name, kind)) for name, kind in columns.items()])


def plan_added(schema: Schema, columns: pa.Schema) -> Schema:
    """The schema with those that it does not have; the same schema if it has all. An error names those that it has with another type."""
    given = {field.name: field.type for field in schema_of_arrow(columns).fields}
    standing = {field.name.casefold(): field for field in schema.fields}
    own = {name: standing[name.casefold()] for name in given if name.casefold() in standing}
    if others := [
        (name, field)
        for name, field in own.items()
        if arrow_type(field.type) != arrow_type(given[name])
    ]:
        problems = "; ".join(
            f"column {field.name!r} is {type_name(field.type)}, not {type_name(given[name])}"
            for name, field in others
        )
        raise InvalidInputError(
            f"the table has it already: {problems}. Types never change: choose another name"
        )
    new = [columns.field(name) for name in given if name not in own]
    return extended(schema, pa.schema(new)) if new else schema


def unknown_columns(schema: Schema, columns: pa.Schema) -> pa.Schema:
    """Those that the table does not have, in the form that `plan_added` takes; names that differ in case only are the same."""
    own = {name.casefold() for name in schema.names}
    return pa.schema([_plain(field) for field in columns if field.name.casefold() not in own])


def _plain(field: pa.Field) -> pa.Field:
    return (
        pa.field(field.name, field.type.value_type) if pa.types.is_dictionary(field.type) else field
    )


def _arrow_of(name: str, kind: str | pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    text = re.sub(r"\s+", "", kind).lower() if isinstance(kind, str) else ""
    text = _OF_SQL.get(text, text)
    parts = decimal_parts(text)
    if text not in ATOMIC_TYPES and not (parts and 0 < parts[0] <= 38 and parts[1] <= parts[0]):
        raise InvalidInputError(
            f"column {name!r}: {kind!r} is not a type; write one of "
            f"{', '.join(map(atomic_type_name, ATOMIC_TYPES))}, DECIMAL(p,s); "
            "a nested column is added in Python, by its Arrow type"
        )
    return arrow_type(type_from_json(text))
