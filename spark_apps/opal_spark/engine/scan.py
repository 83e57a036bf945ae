"""Data files as DataFrames of their physical columns."""

from collections.abc import Sequence
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from opal_lake.data.segment import DataFile
from opal_lake.definition.ordering import INTEGER_TYPES, from_order
from opal_lake.definition.schema import Atomic
from opal_lake.definition.table_spec import TableSpec
from opal_lake.storage.protocol import Storage
from opal_lake.storage.spark_path import spark_paths
from opal_lake.storage.verified import missing_error
from opal_spark.engine.columns import default_column, quoted, spark_schema
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
    spark: SparkSession, storage: Storage, files: Sequence[DataFile], spec: TableSpec
) -> DataFrame:
    """Return the rows of data files (at least one) with all physical columns.

    Every read of a table uses this function.
    """
    schema = spark_schema(spec, physical=True)
    files_by_absent: dict[tuple[int, ...], list[DataFile]] = {}
    for file in files:
        files_by_absent.setdefault(_absent_with_value(file, spec), []).append(file)
    parts: list[DataFrame] = []
    for absent, alike in files_by_absent.items():
        parts.append(_with_initial(_scan(spark, storage, alike, schema, spec), spec, absent))
    # A literal in each part: conditions on it are decided for all its files at once, and none
    # reaches the files, where the column would be null
    return reduce(DataFrame.union, parts)


def _absent_with_value(file: DataFile, spec: TableSpec) -> tuple[int, ...]:
    """Return the columns that a file lacks, but which are not null in its rows.

    A file has bounds of all its columns without parts, and only these have an initial value.
    """
    with_value = [field.id for field in spec.schema.fields if field.initial is not None]
    return tuple(number for number in with_value if number not in file.bounds)


def _with_initial(rows: DataFrame, spec: TableSpec, absent: Sequence[int]) -> DataFrame:
    """Return rows with the initial values of columns that their files lack."""
    if not absent:
        return rows
    values: dict[str, Column] = {}
    for number in absent:
        field = spec.by_id(number)
        values[field.physical] = default_column(field, field.initial, orc=spec.file_format == "orc")
    return rows.withColumns(values)


def _scan(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[DataFile],
    schema: StructType,
    spec: TableSpec,
) -> DataFrame:
    reader = (
        spark.read.schema(schema)
        .options(**_ALL_FILES)
        .options(**_BY_FORMAT[spec.file_format])
        .format(spec.file_format)
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
