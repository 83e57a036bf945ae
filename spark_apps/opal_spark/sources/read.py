"""Sources of rows as DataFrames that fit a table."""

from pyspark.sql import DataFrame, SparkSession

from opal_lake.definition.table_spec import TableSpec, refuse_commit_column
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
    """Return a source's rows with the table's columns and a reader's notes.

    The notes are `_opal_bad`, `_opal_source` and `_opal_row`, which `opal_lake.data.rejects` reads.
    `number` is the number of the ingest. With `ignore`, columns that the table lacks are left out.
    """
    if isinstance(source, Jdbc):
        return read_jdbc(spark, source, spec, ignore=ignore)
    if not source.is_by_name:
        return _read_files(spark, source, spec, ignore=ignore)
    parts_and_rows = []
    for part in parts_of(spark, source, spec):
        try:
            rows = _read_files(spark, part.source, part.spec, ignore=ignore)
        except InvalidInputError as error:
            delta = spec.delta.name
            if not source.makes_delta or f"unknown column {delta!r}" not in str(error):
                raise
            raise InvalidInputError(
                f"{error}. The files have the delta column {delta!r}, which order={source.order!r} "
                f"fills: give order={delta!r} (--order) to take it from the files, or remove it "
                "from them"
            ) from error
        parts_and_rows.append((part, rows))
    return with_names(spark, source, spec, number, parts_and_rows)


def _read_files(spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool) -> DataFrame:
    if source.columns and source.file_format != "csv":
        raise InvalidInputError(
            f"columns={list(source.columns)} names the cells of CSV files, but the files are "
            f"{source.file_format}; leave columns= (--columns) out"
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
    """Return the source of `OpalTable.ingest` as a DataFrame."""
    if isinstance(rows, Files | Jdbc):
        return read_source(spark, rows, spec, number, ignore=ignore)
    # DataFrames of classic Spark and of Connect have different classes
    if not hasattr(rows, "sparkSession"):
        raise InvalidInputError(
            f"rows must be a DataFrame, Files(...) or Jdbc(...), got {rows!r:.200}; "
            "for files write Files('/in/*.csv')"
        )
    refuse_reserved(rows.columns)
    refuse_commit_column(spec, rows.columns)
    return rows
