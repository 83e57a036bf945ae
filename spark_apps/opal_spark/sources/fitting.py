"""A DataFrame as the rows of a table: its columns in order, and which rows delete their key."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from opal_lake.data.rejects import NOTES
from opal_lake.definition.schema import DELETED
from opal_lake.definition.table_spec import TableSpec, delete_condition
from opal_spark.engine.columns import quoted
from opal_spark.engine.conditions import holds
from opal_spark.sources.assign import assigned_columns


def fitting(
    rows: DataFrame, spec: TableSpec, *, together: bool = True, ignore: bool = False
) -> DataFrame:
    """Return the table's columns in order, the delete marker, and what a source reader noted.

    `together` brings rows of one partition value together. The delete condition sees the columns
    as the table has them: a source may have them in narrower types.
    """
    noted = [F.col(name) for name in NOTES if name in rows.columns]
    condition = delete_condition(spec)
    is_marked = condition is not None and DELETED in rows.columns
    of_files = [F.col(DELETED)] if is_marked else []  # a file of deletes holds the row
    fit = rows.select(*assigned_columns(rows, spec, ignore=ignore), *of_files, *noted)
    if condition is not None:
        marker = holds(condition)
        for deleted in of_files:
            marker = marker | deleted
        own = [F.col(quoted(name)) for name in spec.schema.names]
        fit = fit.select(*own, marker.alias(DELETED), *noted)
    if spec.partition_by and together:
        fit = fit.hint("rebalance", *[F.col(quoted(column.name)) for column in spec.partition_by])
    return fit
