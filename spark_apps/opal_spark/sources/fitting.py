"""A DataFrame as the rows of a table: its columns in order, and a mark of rows that delete."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from opal_lake.data.rejects import NOTES
from opal_lake.definition.schema import DELETED
from opal_lake.definition.table_spec import TableSpec, delete_condition
from opal_spark.engine.assign import assigned_columns
from opal_spark.engine.columns import columns_named
from opal_spark.engine.conditions import holds


def fitting(
    rows: DataFrame, spec: TableSpec, *, together: bool = True, ignore: bool = False
) -> DataFrame:
    """Return the table's columns in order, the delete marker, and a reader's notes.

    With `together`, rows of one partition value are in one task. With `ignore`, columns that the
    table lacks are left out.
    """
    given_names = rows.columns
    note_names = [name for name in NOTES if name in given_names]
    notes = [F.col(name) for name in note_names]
    columns = assigned_columns(rows, spec, ignore=ignore)
    condition = delete_condition(spec)
    if condition is None:
        fit = rows.select(*columns, *notes)
    elif DELETED in given_names:
        # A row of a file of deletes is a delete, even if the condition is false for it
        fit = rows.select(*columns, F.col(DELETED), *notes)
        fit = _with_marker(fit, spec, holds(condition) | F.col(DELETED), notes)
    else:
        # Selected first: the condition is evaluated on columns with the table's types
        fit = rows.select(*columns, *notes)
        fit = _with_marker(fit, spec, holds(condition), notes)
    if spec.partition_by and together:
        fit = fit.hint("rebalance", *columns_named(column.name for column in spec.partition_by))
    return fit


def _with_marker(
    rows: DataFrame, spec: TableSpec, marker: Column, notes: Sequence[Column]
) -> DataFrame:
    """Return the table's columns of rows, the delete marker, and the notes."""
    own = columns_named(spec.schema.names)
    return rows.select(*own, marker.alias(DELETED), *notes)
