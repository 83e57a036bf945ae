"""The inferred columns of a source, for a new table or for new columns of a table."""

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from opal_lake.definition.table_spec import TableSpec
from opal_lake.source import Files, Jdbc, Source
from opal_spark.engine.assign import unknown_fields
from opal_spark.sources.connection import connection_options, relation
from opal_spark.sources.named.parts import without_deletes
from opal_spark.sources.paths import open_files
from opal_spark.sources.text.csv_header import csv_options, has_header

# Spark puts a line that is not JSON into this column, which must not become one of the table's
_CORRUPT = "_opal_corrupt"
_INFERRED = {"csv": {"inferSchema": "true"}, "json": {"columnNameOfCorruptRecord": _CORRUPT}}


def new_columns(spark: SparkSession, source: Source, spec: TableSpec) -> StructType:
    """Return the columns of a source that the table lacks.

    Spark guesses the types of CSV and JSON, which takes a pass over the files.
    """
    if isinstance(source, Files) and source.file_format == "csv":
        # Cells without names are the table's columns
        has_names = has_header(source) or bool(source.columns)
        if not has_names:
            return StructType()
    return unknown_fields(source_schema(spark, source), spec)


def source_schema(spark: SparkSession, source: Source, delta: str | None = None) -> StructType:
    """Return the columns of a source.

    Spark guesses the types of CSV and JSON from all rows that are not deletes. `delta` is the
    column that the files' order may fill.
    """
    if isinstance(source, Jdbc):
        reader = (
            spark.read.format("jdbc")
            .options(**connection_options(source))
            .option("dbtable", relation(source))
        )
        return reader.load().schema
    given = csv_options(source) if source.file_format == "csv" else source.options
    options = {**_INFERRED.get(source.file_format, {"mergeSchema": "true"}), **given}
    rows = open_files(spark, without_deletes(spark, source), source.file_format, options)
    schema = rows.schema
    fields = [field for field in schema if field.name != _CORRUPT]
    # The source may name fewer columns than the files have
    for position, name in enumerate(source.columns[: len(fields)]):
        fields[position] = StructField(name, fields[position].dataType)
    if source.makes_delta and delta is not None and delta not in schema.names:
        fields.append(StructField(delta, LongType()))
    return StructType(fields)
