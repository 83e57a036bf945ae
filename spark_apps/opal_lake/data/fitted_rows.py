"""The rows of a source as rows of a table: names, types, defaults and generated columns.

Ingests and statements fit their sources by the same rules. Names go by the table's spelling, and
types are equal: only texts, binaries and times of another encoding are converted.
"""

from collections.abc import Sequence

import pyarrow as pa

from opal_lake.data.columns import source_column, with_defaults
from opal_lake.data.rejects import with_generated
from opal_lake.data.utf8 import holds_text, rows_not_utf8
from opal_lake.definition.added_columns import refuse_former, unknown_columns
from opal_lake.definition.schema import DELETED, RESERVED_PREFIX
from opal_lake.definition.table_spec import TableSpec, refuse_commit_column
from opal_lake.errors import InvalidInputError


def in_table_spelling(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Return rows whose columns have the table's names, which may differ in case.

    Raises InvalidInputError for two columns of one name.
    """
    own_names = {name.casefold(): name for name in spec.schema.names}
    names = [own_names.get(name.casefold(), name) for name in rows.column_names]
    seen: set[str] = set()
    for given in rows.column_names:
        if given.casefold() in seen:
            raise InvalidInputError(
                f"the rows have more than one column {given!r}, as names may differ in case; "
                "leave one of them out"
            )
        seen.add(given.casefold())
    return rows if names == rows.column_names else rows.rename_columns(names)


def whole_rows(rows: pa.Table, spec: TableSpec, *, ignores_new_columns: bool = False) -> pa.Table:
    """Return rows of a source with all columns of the table, in their own types.

    A missing column has its default. Without a default it is null if it was added to the table
    after its creation, or if it is generated. Raises InvalidInputError for another missing column,
    and for columns that the table does not have.
    """
    refuse_commit_column(spec, rows.column_names)
    rows = in_table_spelling(rows, spec)
    if ignores_new_columns:
        new_names = new_columns_of(rows.schema, spec).names
        refuse_former(spec.schema, new_names, dropped=False)
        rows = rows.drop_columns(new_names)
    given = frozenset(rows.column_names)
    unknown = sorted(given - {DELETED, *spec.schema.names})
    _refuse_reserved(unknown)
    absent = [field for field in spec.schema.fields if field.name not in given]
    missing = [field.name for field in absent if not spec.schema.is_optional(field)]
    if unknown or missing:
        refuse_former(spec.schema, unknown)
        raise InvalidInputError(_misfit(unknown, missing))
    return with_defaults(rows, absent)


def new_columns_of(given: pa.Schema, spec: TableSpec) -> pa.Schema:
    """Return the columns of a source that the table lacks."""
    own = [field for field in given if not field.name.startswith(RESERVED_PREFIX)]
    return unknown_columns(spec.schema, pa.schema(own))


def fitted_rows(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Return rows of a source as rows of the table, with generated columns."""
    complete = whole_rows(rows, spec)
    _refuse_reserved([name for name in complete.column_names if name == DELETED])
    fields = spec.schema.fields
    columns = [source_column(complete, field, spec) for field in fields]
    typed = pa.Table.from_arrays(columns, names=spec.schema.names)
    generated = spec.generated
    if not generated:
        return typed
    for field in fields:
        # An expression may fail on texts that are not UTF-8
        if holds_text(field.type) and rows_not_utf8(typed[field.name]) is not None:
            raise InvalidInputError(
                f"column {field.name!r} of the rows holds text that is not UTF-8; decode it, or "
                "leave these rows out"
            )
    return with_generated(typed, generated)


def _refuse_reserved(names: Sequence[str]) -> None:
    """Raise InvalidInputError for a name that is reserved for the format."""
    for name in names:
        if name.casefold().startswith(RESERVED_PREFIX):
            raise InvalidInputError(
                f"column {name!r} of the rows: names that begin with {RESERVED_PREFIX!r} are "
                "reserved for the format; rename it or drop it"
            )


def _misfit(unknown: Sequence[str], missing: Sequence[str]) -> str:
    """Return the message for columns that the table lacks, or that the rows lack."""
    faults: list[str] = []
    steps: list[str] = []
    if missing:
        faults.append(f"no column {', '.join(map(repr, missing))}")
        steps.append("add the missing columns")
    if unknown:
        faults.append(f"{', '.join(map(repr, unknown))}, which the table does not have")
        steps.append(
            "leave the unknown columns out, add them to the table with alter, or ingest the rows "
            "with on_new_columns='add' or 'ignore'"
        )
    return f"the rows have {' and '.join(faults)}; {', and '.join(steps)}"
