"""What Spark says when a source cannot be read, which it finds out long after the reader was made."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import InvalidInputError, OpalError, StorageError
from opal_lake.source import Files, Jdbc, Source
from opal_lake.table_spec import TableSpec
from opal_spark.sources.connection import as_jdbc_error
from opal_spark.sources.csv_header import check_headers

_READING = re.compile(r"FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER|CANNOT_MERGE_SCHEMAS|FAILED_MERGE_SCHEMAS|Could not read footer")
_FILE = re.compile(
    r"(?:reading file|footer for file:?|read footer of the file|footer of the file)\s+(?:FileStatus\{path=)?'?(\S+?)'?(?:\.\s|;|,|\s|$)"
)
_CAUSE = re.compile(r"Caused by: ([\w.$]+(?:Exception|Error)): ([^\n]*)")
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme \"?(\w+)|ClassNotFoundException: Class (\S*S3AFileSystem)")
# The store's fault, not the file's
_PASSING = re.compile(
    r"timed? ?out|Timeout|Connect|UnknownHost|SdkClient|SlowDown|Throttl|InternalError|ServiceUnavailable|Interrupted", re.IGNORECASE
)


@contextmanager
def source_errors(spark: SparkSession, rows: DataFrame | Source, spec: TableSpec) -> Iterator[None]:
    """Around everything that reads a source, from its definition to the end of the action."""
    try:
        yield
    except OpalError:
        raise
    except Exception as error:
        if isinstance(rows, Files | Jdbc) and (known := as_source_error(spark, rows, spec, error)) is not None:
            raise known from error
        raise


def as_source_error(spark: SparkSession, source: Source, spec: TableSpec, error: Exception) -> OpalError | None:
    """None when the failure is not the source's."""
    text = str(error)
    if isinstance(source, Jdbc):
        return as_jdbc_error(source, text)
    if missing := _NO_FILE_SYSTEM.search(text):
        return InvalidInputError(
            f"Spark cannot open {list(source.paths)}: it has no file system for {missing[1] or 's3a'!r}; add its package"
        )
    if not _READING.search(text):
        return None
    return _unreadable(spark, source, spec, text)


def _unreadable(spark: SparkSession, source: Files, spec: TableSpec, text: str) -> OpalError:
    found = _FILE.search(text)
    name = unquote(found[1]) if found else f"one of {list(source.paths)}"
    causes = _CAUSE.findall(text)
    reason = f"{causes[-1][0].rpartition('.')[2]}: {causes[-1][1].strip()}" if causes else " ".join(text.split())[:300]
    if any(_PASSING.search(" ".join(cause)) for cause in causes):
        return StorageError(f"{name} could not be read ({reason}); try again")
    if source.file_format == "csv":
        try:
            check_headers(spark, source, spec)
        except InvalidInputError as problem:
            return problem
    return InvalidInputError(
        f"{name} cannot be read as {source.file_format} ({reason}); it is truncated or damaged: deliver it again or leave it out"
    )
