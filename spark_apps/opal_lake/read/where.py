"""Filters of reads: conditions on columns of the table, and on own columns of a result."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from opal_lake.data.condition_bounds import predicate_of
from opal_lake.data.prune import Predicate
from opal_lake.definition.conditions.condition import Condition, condition
from opal_lake.definition.conditions.faults import WHERE, Use
from opal_lake.definition.schema import DataType, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.read.result_columns import chosen_fields, is_named

_NO_ID = 0  # of a column that no file has, so that it has no bounds


def where_condition(
    text: str | None, spec: TableSpec, own: Mapping[str, DataType] | None = None, use: Use = WHERE
) -> Condition | None:
    """Return the condition of a filter, or None without one.

    `own` are the result's own columns, which hide those of the table.
    """
    if text is None:
        return None
    own = own or {}
    fields = [field for field in spec.schema.fields if not is_named(field, own)]
    fields += [Field(id=_NO_ID, name=name, physical=name, type=kind) for name, kind in own.items()]
    return condition(text, fields, use)


def where_predicate(where: Condition | None) -> Predicate | None:
    """Return the part of a filter that bounds of files can answer."""
    if where is None:
        return None
    return predicate_of(where.typed)


def needed_names(
    spec: TableSpec, columns: Sequence[str] | None, where: Condition | None
) -> tuple[list[str], list[str]]:
    """Return the names of the columns to show, and of those to read for that."""
    shown = [field.name for field in chosen_fields(spec, columns)]
    tested = [] if where is None else where.column_names
    known = set(spec.schema.names)
    tested_here = [name for name in tested if name in known]
    return shown, [*dict.fromkeys([*shown, *tested_here])]


def matching(rows: pa.Table, where: Condition | None) -> pa.Table:
    """Return the rows for which the condition is true."""
    if where is None:
        return rows
    return rows.filter(where.holds(rows, numbered=False))


def without(rows: pa.Table, read: Sequence[str], shown: Sequence[str]) -> pa.Table:
    """Return the rows without the columns that only the filter needed."""
    unshown = set(read) - set(shown)
    return rows.drop_columns([name for name in rows.column_names if name in unshown])
