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

# Every path is a file to read, even if its name begins with a dot or an underscore
_ALL_FILES = {**STRICT, "pathGlobFilter": "*", "recursiveFileLookup": "true"}
_BY_FORMAT = {
    "parquet": {
        # Otherwise Spark may shift dates before 1900
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
    """Return the rows of data files (at least one) with their physical columns.

    Every read of a table uses this function.
    """
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
            missing = _first_missing(storage, files)
            if error.getCondition() != "PATH_NOT_FOUND" or missing is None:
                raise
            raise missing_error(storage, missing) from error


def _first_missing(storage: Storage, files: Sequence[DataFile]) -> str | None:
    for file in files:
        if not any(storage.list(file.path)):
            return file.path
    return None


def not_after(spec: TableSpec, as_of: int, column: str | None = None) -> str:
    """Return the SQL condition that the delta column is not after an event time.

    `as_of` is the event time in the delta's order form. `column` names another column to compare,
    which holds values of the delta.
    """
    delta = spec.delta
    assert isinstance(delta.type, Atomic)
    # The literal has the type of the column in the files
    if delta.type.name.startswith("decimal"):
        literal = f"{from_order(as_of, delta.type)}BD"
    # ORC files hold times and dates as integers
    elif spec.file_format == "orc" or delta.type.name in INTEGER_TYPES:
        literal = f"{as_of}L"
    elif delta.type.name == "timestamp_ntz":
        literal = f"timestamp_ntz'{from_order(as_of, delta.type)}'"
    elif delta.type.name == "timestamp":
        literal = f"timestamp_micros({as_of}L)"
    else:
        literal = f"date_from_unix_date({as_of})"
    return f"{quoted(column or delta.physical)} <= {literal}"
