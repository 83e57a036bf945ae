"""Rows as an ingest reads them: the table's columns, the mark of deletes, and notes of mistakes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from opal_lake.data.columns import to_current
from opal_lake.data.rejects import NOTES, UNCHANGED
from opal_lake.definition.schema import (
    DELETED,
    Schema,
    arrow_schema,
    default_array,
    type_name,
)
from opal_lake.definition.table_spec import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """Decoded rows, and the columns of the table when they were decoded.

    A column may have another name when the rows are committed. So `schema` names their columns.
    """

    rows: pa.Table
    schema: Schema

    def fitted(self, spec: TableSpec, notes: Sequence[str] = NOTES) -> "DecodedRows":
        """Return rows with all columns that the table has now, and with these notes.

        Missing notes are null. Columns that the table got later have their default, or are null.
        Columns that were dropped are left out. Raises ValueError or FormatError for rows that do
        not fit the table.
        """
        return DecodedRows(rows=_fitted(self.rows, self.schema, spec, notes), schema=spec.schema)


def row_schema(spec: TableSpec, notes: Sequence[str] = NOTES) -> pa.Schema:
    """Return the schema of a table's rows with the mark of deletes and these notes."""
    fields = list(arrow_schema(spec.schema))
    if spec.deletes is not None:
        fields.append(pa.field(DELETED, pa.bool_()))
    fields += [pa.field(name, pa.string()) for name in notes]
    return pa.schema(fields)


def _fitted(rows: pa.Table, given: Schema, spec: TableSpec, notes: Sequence[str]) -> pa.Table:
    schema = row_schema(spec, notes)
    if given.fields == spec.schema.fields and rows.schema == schema:
        return rows
    _check_columns(rows, given, spec)
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    if rows.num_rows:
        columns = _current_columns(rows, given, spec.schema)
    given_names = frozenset(rows.column_names)
    for name in notes:
        if name in given_names:
            columns[name] = rows[name]
    if UNCHANGED in columns:
        columns[UNCHANGED] = _with_new_names(rows[UNCHANGED], given, spec.schema)
    if DELETED in given_names:
        columns[DELETED] = rows[DELETED]
    elif spec.deletes is not None:
        # The rows are older than the delete condition
        columns[DELETED] = pa.repeat(False, rows.num_rows)
    for own in spec.schema.fields:
        if own.name not in columns:
            columns[own.name] = default_array(own, own.write, rows.num_rows)
    values = [columns.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in schema]
    return pa.table(values, schema=schema)


def _check_columns(rows: pa.Table, given: Schema, spec: TableSpec) -> None:
    """Raise ValueError unless rows have the columns and types of their schema."""
    known = {field.name: field.type for field in arrow_schema(given)}
    allowed = {**known, **dict.fromkeys(NOTES, pa.string())}
    if spec.deletes is not None:
        allowed[DELETED] = pa.bool_()
    given_names = frozenset(rows.column_names)
    if strangers := sorted(given_names - allowed.keys()):
        raise ValueError(f"the table has no column {strangers[0]!r}")
    if len(given_names) < rows.num_columns:
        raise ValueError("two of its columns have one name")
    for column in rows.schema:
        kind = allowed[column.name]
        if column.type != kind:
            raise ValueError(
                f"its column {column.name!r} is {type_name(column.type)}, "
                f"that of the table {type_name(kind)}"
            )
    if rows.num_rows and (lacking := sorted(known.keys() - given_names)):
        raise ValueError(f"it lacks column {lacking[0]!r}")


def _current_columns(
    rows: pa.Table, given: Schema, current: Schema
) -> dict[str, pa.ChunkedArray | pa.Array]:
    """Return the table's columns of rows, by the names of now."""
    if given.fields != current.fields:
        rows = to_current(rows, given, current)
    columns = {name: rows[name] for name in current.names if name in rows.column_names}
    for field in current.fields:
        if field.name not in columns and not current.is_optional(field):
            raise ValueError(f"it lacks column {field.name!r}")
    return columns


def _with_new_names(
    notes: pa.ChunkedArray, given: Schema, current: Schema
) -> pa.ChunkedArray | pa.Array:
    """Return notes of unchanged columns with the names that the columns have now."""
    if given.names == current.names or notes.null_count == len(notes):
        return notes
    own = {field.id: field.name for field in current.fields}
    names = {field.name: own.get(field.id) for field in given.fields}
    texts: list[str | None] = []
    for text in notes.to_pylist():
        if text is not None:
            remaining = [names[name] for name in json.loads(text) if names[name] is not None]
            text = json.dumps(remaining) if remaining else None
        texts.append(text)
    return pa.array(texts, pa.string())
