"""A DataFrame as the rows of a table: its columns in order, and a mark of rows that delete."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from opal_lake.data.rejects import NOTES
from opal_lake.definition.schema import DELETED
from opal_lake.definition.table_spec import TableSpec, delete_condition
from opal_spark.engine.columns import columns_named
from opal_spark.engine.conditions import holds
from opal_spark.sources.assign import assigned_columns


def fitting(
    rows: DataFrame, spec: TableSpec, *, together: bool = True, ignore: bool = False
) -> DataFrame:
    """Return the table's columns in order, the delete marker, and a reader's notes.

    `together` brings rows of one partition value together. The delete condition sees the columns
    as the table has them: a source may have them in narrower types.
    """
    notes = [F.col(name) for name in NOTES if name in rows.columns]
    columns = assigned_columns(rows, spec, ignore=ignore)
    condition = delete_condition(spec)
    if condition is None:
        fit = rows.select(*columns, *notes)
    elif DELETED in rows.columns:
        # A row of a file of deletes is one, whatever the condition says
        fit = rows.select(*columns, F.col(DELETED), *notes)
        fit = _with_marker(fit, spec, holds(condition) | F.col(DELETED), notes)
    else:
        fit = rows.select(*columns, *notes)
        fit = _with_marker(fit, spec, holds(condition), notes)
    if spec.partition_by and together:
        fit = fit.hint("rebalance", *columns_named(column.name for column in spec.partition_by))
    return fit


def _with_marker(
    rows: DataFrame, spec: TableSpec, marker: Column, notes: Sequence[Column]
) -> DataFrame:
    own = columns_named(spec.schema.names)
    return rows.select(*own, marker.alias(DELETED), *notes)
