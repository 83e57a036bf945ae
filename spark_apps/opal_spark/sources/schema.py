"""The inferred columns of a source, for a new table."""

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from opal_lake.job.source import Jdbc, Source
from opal_spark.sources.connection import connection_options, relation
from opal_spark.sources.paths import open_files
from opal_spark.sources.text.csv_header import csv_options

_INFERRED = {"csv": {"inferSchema": "true"}, "json": {}}


def source_schema(spark: SparkSession, source: Source) -> StructType:
    """Types of CSV and JSON are guessed by Spark from all rows."""
    if isinstance(source, Jdbc):
        reader = spark.read.format("jdbc").options(**connection_options(source)).option("dbtable", relation(source))
        return reader.load().schema
    options = csv_options(source) if source.file_format == "csv" else source.options
    inferred = _INFERRED.get(source.file_format, {"mergeSchema": "true"})
    return open_files(spark, source, source.file_format, {**inferred, **options}).schema
