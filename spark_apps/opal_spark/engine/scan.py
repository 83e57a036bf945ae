"""Data files as DataFrames of their physical columns."""

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from opal_lake.data.segment import DataFile
from opal_lake.definition.ordering import INTEGER_TYPES, from_order
from opal_lake.definition.schema import Atomic
from opal_lake.definition.table_spec import TableSpec
from opal_lake.storage.protocol import Storage
from opal_lake.storage.spark_path import spark_paths
from opal_lake.storage.verified import missing_error
from opal_spark.engine.columns import quoted
from opal_spark.engine.session import STRICT, few_listing_tasks

# A path is a file, whatever its name looks like; old dates do not shift.
_ALL_FILES = {**STRICT, "pathGlobFilter": "*", "recursiveFileLookup": "true"}
_BY_FORMAT = {
    "parquet": {
        "datetimeRebaseMode": "CORRECTED",
        "parquet.page.verify-checksum.enabled": "true",
        "mergeSchema": "false",
    },
    "orc": {"mergeSchema": "false"},
}


def scan_files(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[DataFile],
    schema: StructType,
    file_format: str,
) -> DataFrame:
    """A scan of at least one file. Every read of a table uses it."""
    reader = (
        spark.read.schema(schema)
        .options(**_ALL_FILES)
        .options(**_BY_FORMAT[file_format])
        .format(file_format)
    )
    with few_listing_tasks(spark):
        try:
            return reader.load(spark_paths(storage, [file.path for file in files]))
        except AnalysisException as error:
            gone = next((file.path for file in files if not any(storage.list(file.path))), None)
            if error.getCondition() != "PATH_NOT_FOUND" or gone is None:
                raise
            raise missing_error(storage, gone) from error


def not_after(spec: TableSpec, as_of: int, column: str | None = None) -> str:
    """The condition of the delta column, or of another with such values, against the event time, in the files' types."""
    delta = spec.delta
    assert isinstance(delta.type, Atomic)
    if delta.type.name.startswith("decimal"):
        literal = f"{from_order(as_of, delta.type)}BD"
    elif spec.file_format == "orc" or delta.type.name in INTEGER_TYPES:
        literal = f"{as_of}L"
    elif delta.type.name == "timestamp_ntz":
        literal = f"timestamp_ntz'{from_order(as_of, delta.type)}'"
    else:
        literal = (
            f"timestamp_micros({as_of}L)"
            if delta.type.name == "timestamp"
            else f"date_from_unix_date({as_of})"
        )
    return f"{quoted(column or delta.physical)} <= {literal}"
