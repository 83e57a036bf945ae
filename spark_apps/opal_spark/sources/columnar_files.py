"""Parquet and ORC: files that know their types, which must fit the table's without loss."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.definition.schema import RESERVED_PREFIX
from opal_lake.definition.table_spec import TableSpec, refuse_commit_column
from opal_lake.errors import InvalidInputError
from opal_lake.source import Files
from opal_spark.engine.assign import assigned_columns
from opal_spark.sources.marks import file_column, file_name, mark
from opal_spark.sources.paths import open_files

_ROW = "_opal_row_index"


def read_columnar(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool = False
) -> DataFrame:
    """Return rows of the table's columns.

    A column that only some of the files have is null in the rows of the other files.
    """
    options = {"mergeSchema": "true"} | dict(source.options)
    rows = open_files(spark, source, source.file_format, options)
    refuse_reserved(rows.columns)
    refuse_commit_column(spec, rows.columns)
    columns = [*assigned_columns(rows, spec, ignore=ignore), file_column(rows)]
    position = file_name()
    if source.file_format == "parquet":
        columns.append(rows.metadataColumn("_metadata").getField("row_index").alias(_ROW))
        position = F.concat(position, F.lit(" row "), F.col(_ROW))
    return mark(rows.select(*columns), spec, [], position)


def refuse_reserved(names: Sequence[str]) -> None:
    """Raise InvalidInputError for column names that are reserved for the format."""
    reserved = [name for name in names if name.casefold().startswith(RESERVED_PREFIX)]
    if reserved:
        raise InvalidInputError(
            f"columns {reserved}: names that begin with {RESERVED_PREFIX!r} are reserved for the "
            "format; drop or rename them"
        )
