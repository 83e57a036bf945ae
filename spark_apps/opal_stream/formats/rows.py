"""Rows as an ingest takes them: the table's columns, the mark of deletes, and notes of what is wrong with a row."""

from collections.abc import Sequence

import pyarrow as pa

from opal_lake.data.rejects import NOTES
from opal_lake.definition.schema import DELETED, arrow_schema, type_name
from opal_lake.definition.table_spec import TableSpec


def row_schema(spec: TableSpec, notes: Sequence[str] = NOTES) -> pa.Schema:
    deleted = [pa.field(DELETED, pa.bool_())] if spec.deletes is not None else []
    return pa.schema(
        [
            *arrow_schema(spec.schema),
            *deleted,
            *((name, pa.string()) for name in notes),
        ]
    )


def fitted(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """With all of these columns: notes, and columns that the table got later, may be missing. ValueError for rows of another table."""
    schema = row_schema(spec)
    if strangers := sorted(set(rows.column_names) - set(schema.names)):
        raise ValueError(f"the table has no column {strangers[0]!r}")
    if len(set(rows.column_names)) < rows.num_columns:
        raise ValueError("two of its columns have one name")
    may_lack = {
        *NOTES,
        *(field.name for field in spec.schema.fields if spec.schema.is_added(field)),
    }
    given = frozenset(rows.column_names)
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
