"""Rows as an ingest reads them: the table's columns, the mark of deletes, and notes of mistakes."""

from collections.abc import Sequence

import pyarrow as pa

from opal_lake.data.rejects import NOTES
from opal_lake.definition.schema import DELETED, arrow_schema, type_name
from opal_lake.definition.table_spec import TableSpec


def row_schema(spec: TableSpec, notes: Sequence[str] = NOTES) -> pa.Schema:
    """Return the schema of a table's rows with the mark of deletes and these notes."""
    fields = list(arrow_schema(spec.schema))
    if spec.deletes is not None:
        fields.append(pa.field(DELETED, pa.bool_()))
    fields += [pa.field(name, pa.string()) for name in notes]
    return pa.schema(fields)


def fit_rows(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Return rows with all columns of the table, and all notes.

    Missing notes, and columns that the table got later, are null. Raises ValueError for rows that
    do not fit the table.
    """
    schema = row_schema(spec)
    given = frozenset(rows.column_names)
    if strangers := sorted(given - set(schema.names)):
        raise ValueError(f"the table has no column {strangers[0]!r}")
    if len(given) < rows.num_columns:
        raise ValueError("two of its columns have one name")
    added = [field.name for field in spec.schema.fields if spec.schema.is_added(field)]
    may_lack = {*NOTES, *added}
    columns = []
    for field in schema:
        if field.name in given:
            column = rows[field.name]
            if column.type != field.type:
                raise ValueError(
                    f"its column {field.name!r} is {type_name(column.type)}, "
                    f"that of the table {type_name(field.type)}"
                )
        elif field.name in may_lack or not rows.num_rows:
            column = pa.nulls(rows.num_rows, field.type)
        else:
            raise ValueError(f"it lacks column {field.name!r}")
        columns.append(column)
    return pa.table(columns, schema=schema)
