"""Data files as DataFrames of their physical columns."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from opal_lake.segment import DataFile
from opal_lake.storage.protocol import Storage
from opal_lake.storage.spark_path import spark_path
from opal_spark.session import few_listing_tasks

# With the session's own settings a lost file could be silently missing rows, and old dates could shift.
_STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "pathGlobFilter": "*", "recursiveFileLookup": "true"}
_BY_FORMAT = {
    "parquet": {"datetimeRebaseMode": "CORRECTED", "parquet.page.verify-checksum.enabled": "true", "mergeSchema": "false"},
    "orc": {"mergeSchema": "false"},
}


def scan_files(spark: SparkSession, storage: Storage, files: Sequence[DataFile], schema: StructType, file_format: str) -> DataFrame:
    """At least one file; every read of a table goes through here."""
    reader = spark.read.schema(schema).options(**_STRICT).options(**_BY_FORMAT[file_format]).format(file_format)
    with few_listing_tasks(spark):
        return reader.load([spark_path(storage, file.path) for file in files])
