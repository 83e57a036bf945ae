"""A DataFrame as the rows of a table: its columns in order, and which rows delete their key."""

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from opal_lake.data.rejects import NOTES
from opal_lake.errors import InvalidInputError
from opal_lake.spec.condition import check_condition
from opal_lake.spec.schema import DELETED
from opal_lake.spec.table_spec import TableSpec
from opal_spark.engine.columns import quoted
from opal_spark.engine.failures import first_words
from opal_spark.sources.assign import assigned_columns


def fitting(
    rows: DataFrame, spec: TableSpec, *, together: bool = True, ignore: bool = False
) -> DataFrame:
    """The table's columns in order, with the delete marker and what a source reader noted; partition values brought together or not."""
    noted = [F.col(name) for name in NOTES if name in rows.columns]
    assigned = assigned_columns(
        rows, spec, ignore=ignore
    )  # says what is missing before the delete condition trips over it
    marker = [_deletes(rows, spec, spec.deletes).alias(DELETED)] if spec.deletes is not None else []
    fit = rows.select(*assigned, *marker, *noted)
    if spec.partition_by and together:
        fit = fit.hint("rebalance", *[F.col(quoted(column.name)) for column in spec.partition_by])
    return fit


def _deletes(rows: DataFrame, spec: TableSpec, condition: str) -> Column:
    """By the table's condition, or because a file of deletes holds the row."""
    marker = delete_marker(rows, spec, condition)
    return marker | F.col(DELETED) if DELETED in rows.columns else marker


def delete_marker(rows: DataFrame, spec: TableSpec, condition: str) -> Column:
    """True for rows that delete their key; null counts as false. Whoever wrote the table wrote the condition."""
    check_condition(condition, spec.schema.names)
    marker = F.coalesce(F.expr(condition).cast("boolean"), F.lit(False))
    try:
        rows.select("*", marker)
    except AnalysisException as error:
        raise InvalidInputError(
            f"the delete condition {condition!r} does not fit the columns {rows.columns}: {first_words(error)}; give the source the "
            "columns and types that the condition uses"
        ) from error
    return marker
