"""The inferred columns of a source, for a new table, or for one that gets them."""

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from opal_lake.definition.table_spec import TableSpec
from opal_lake.source import Files, Jdbc, Source
from opal_spark.sources.assign import unknown_fields
from opal_spark.sources.connection import connection_options, relation
from opal_spark.sources.named.parts import without_deletes
from opal_spark.sources.paths import open_files
from opal_spark.sources.text.csv_header import csv_options, has_header

_CORRUPT = (
    "_opal_corrupt"  # a name that no table has: lines that are no JSON are bad rows, and no column
)
_INFERRED = {"csv": {"inferSchema": "true"}, "json": {"columnNameOfCorruptRecord": _CORRUPT}}


def new_columns(spark: SparkSession, source: Source, spec: TableSpec) -> StructType:
    """What the table has no column for. Of CSV and JSON Spark guesses the types, which takes a pass over the files."""
    if (
        isinstance(source, Files)
        and source.file_format == "csv"
        and not has_header(source)
        and not source.columns
    ):
        return StructType()
    return unknown_fields(source_schema(spark, source), spec)


def source_schema(spark: SparkSession, source: Source, delta: str | None = None) -> StructType:
    """Types of CSV and JSON are guessed by Spark from all rows that are no deletes. `delta` is the column that the files may make."""
    if isinstance(source, Jdbc):
        reader = (
            spark.read.format("jdbc")
            .options(**connection_options(source))
            .option("dbtable", relation(source))
        )
        return reader.load().schema
    options = csv_options(source) if source.file_format == "csv" else source.options
    inferred = _INFERRED.get(source.file_format, {"mergeSchema": "true"})
    schema = open_files(
        spark, without_deletes(spark, source), source.file_format, {**inferred, **options}
    ).schema
    fields = [field for field in schema if field.name != _CORRUPT]
    for name, at in zip(source.columns, range(len(fields)), strict=False):
        fields[at] = StructField(name, fields[at].dataType)
    made = (
        [StructField(delta, LongType())]
        if source.makes_delta and delta is not None and delta not in schema.names
        else []
    )
    return StructType([*fields, *made])
