"""Filters of reads: conditions on columns of the table, and on a result's own columns."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from opal_lake.data.condition_bounds import predicate_of
from opal_lake.data.prune import Predicate
from opal_lake.definition.conditions.condition import Condition, condition
from opal_lake.definition.conditions.faults import WHERE, Use
from opal_lake.definition.schema import DataType, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.read.result_columns import chosen_fields, is_named

_NO_ID = 0  # the field id of a column that no file has, so that no bounds have this id


def where_condition(
    text: str | None, spec: TableSpec, own: Mapping[str, DataType] | None = None, use: Use = WHERE
) -> Condition | None:
    """Return the condition of a filter; None without a text.

    `own` are the types of the result's own columns. They hide columns of the table with these
    names.
    """
    if text is None:
        return None
    own_types = {} if own is None else own
    fields = [field for field in spec.schema.fields if not is_named(field, own_types)]
    for name, kind in own_types.items():
        fields.append(Field(id=_NO_ID, name=name, physical=name, type=kind))
    return condition(text, fields, use)


def where_predicate(where: Condition | None) -> Predicate | None:
    """Return the part of a filter that bounds of files can answer."""
    if where is None:
        return None
    return predicate_of(where.typed)


def needed_names(
    spec: TableSpec, columns: Sequence[str] | None, where: Condition | None
) -> tuple[list[str], list[str]]:
    """Return the names of the columns to show, and of the columns to read.

    The second ones are the shown columns and those of the table that the filter tests.
    """
    shown = [field.name for field in chosen_fields(spec, columns)]
    tested = [] if where is None else where.column_names
    known = set(spec.schema.names)
    tested_of_table = [name for name in tested if name in known]
    return shown, [*dict.fromkeys([*shown, *tested_of_table])]


def matching(rows: pa.Table, where: Condition | None) -> pa.Table:
    """Return the rows for which the condition is true."""
    if where is None:
        return rows
    return rows.filter(where.holds(rows, numbered=False))


def without(rows: pa.Table, read: Sequence[str], shown: Sequence[str]) -> pa.Table:
    """Return the rows without the columns that only the filter needed."""
    unshown = set(read) - set(shown)
    return rows.drop_columns([name for name in rows.column_names if name in unshown])
