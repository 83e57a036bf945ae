"""Any source of rows as a DataFrame that fits a table."""

from pyspark.sql import DataFrame, SparkSession

from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.source import Files, Jdbc, Source
from opal_spark.sources.columnar_files import read_columnar, refuse_reserved
from opal_spark.sources.jdbc import read_jdbc
from opal_spark.sources.named.parts import parts_of
from opal_spark.sources.named.rows import with_names
from opal_spark.sources.text.csv_files import read_csv
from opal_spark.sources.text.json_files import read_json

_READERS = {"csv": read_csv, "json": read_json, "parquet": read_columnar, "orc": read_columnar}


def read_source(
    spark: SparkSession, source: Source, spec: TableSpec, number: int, *, ignore: bool = False
) -> DataFrame:
    """The table's columns, and beside them `_opal_bad`, `_opal_source` and `_opal_row` as `opal_lake.data.rejects` takes them.

    `number` is the ingest's; `ignore` leaves out what the table has no column for.
    """
    if isinstance(source, Jdbc):
        return read_jdbc(spark, source, spec, ignore=ignore)
    if not source.is_by_name:
        return _read_files(spark, source, spec, ignore=ignore)
    read = []
    for part in parts_of(spark, source, spec):
        try:
            read.append((part, _read_files(spark, part.source, part.spec, ignore=ignore)))
        except InvalidInputError as error:
            if source.makes_delta and f"unknown column {spec.delta.name!r}" in str(error):
                raise InvalidInputError(
                    f"{error}. order={source.order!r} fills the delta column {spec.delta.name!r}: the files must not have it; if they do, "
                    f"write order={spec.delta.name!r}"
                ) from error
            raise
    return with_names(spark, source, spec, number, read)


def _read_files(spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool) -> DataFrame:
    if source.columns and source.file_format != "csv":
        raise InvalidInputError(
            f"columns={list(source.columns)} name the cells of CSV files, and these are {source.file_format}; leave columns= out"
        )
    return _READERS[source.file_format](spark, source, spec, ignore=ignore)


def source_rows(
    spark: SparkSession,
    rows: DataFrame | Source,
    spec: TableSpec,
    number: int,
    *,
    ignore: bool = False,
) -> DataFrame:
    """The source that `OpalTable.ingest` was given, as a DataFrame."""
    if isinstance(rows, Files | Jdbc):
        return read_source(spark, rows, spec, number, ignore=ignore)
    if not hasattr(rows, "sparkSession"):  # a DataFrame of classic Spark, or of Connect
        raise InvalidInputError(
            f"rows are a DataFrame, Files(...) or Jdbc(...), and not {rows!r:.200}; for files write Files('/in/*.csv')"
        )
    refuse_reserved(rows.columns)
    return rows
