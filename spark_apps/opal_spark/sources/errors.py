"""Errors of sources that cannot be read. Spark fails long after the reader was created, and does not always name the file."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, OpalError, StorageError
from opal_lake.source import Files, Jdbc, Source
from opal_spark.engine.session import text_with_causes
from opal_spark.sources.connection import as_jdbc_error
from opal_spark.sources.named.parts import parts_of
from opal_spark.sources.paths import MOST_FILES, file_paths, one_file, open_files
from opal_spark.sources.text.csv_header import check_headers

_FILE = re.compile(r"reading file (\S[^\n]*?)\.\s+(?:Could not|SQLSTATE)")
_CAUSE = re.compile(r"Caused by: ([\w.$]+(?:Exception|Error)): ([^\n]*)")
_NO_FILE_SYSTEM = re.compile(
    r"No FileSystem for scheme \"?(\w+)|Class (\S*S3AFileSystem) not found"
)
_OTHER_TYPES = re.compile(r"CANNOT_MERGE_SCHEMAS|FAILED_MERGE|CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE")
_UNKNOWN_TYPE = re.compile(r"PARSE_SYNTAX_ERROR.*?== SQL ==\n([^\n]*)", re.DOTALL)
# The store's fault, not the file's: by the kind of the cause, or by S3's own word in its message
_PASSING = re.compile(
    r"(?:Timeout|Connect|UnknownHost|SdkClient|Interrupted\w*|Socket|NoRouteToHost)Exception$"
)
_BUSY = re.compile(r"SlowDown|ServiceUnavailable|InternalError|RequestTimeout|Throttling")


@contextmanager
def source_errors(
    spark: SparkSession, rows: DataFrame | Source, spec: Callable[[], TableSpec]
) -> Iterator[None]:
    """Around everything that reads a source, from its definition to the end of the action. `spec` is asked for if CSV files failed."""
    try:
        yield
    except (OpalError, PythonException):  # a task's own error is not the source's
        raise
    except Exception as error:
        if (
            isinstance(rows, Files | Jdbc)
            and (known := as_source_error(spark, rows, spec, error)) is not None
        ):
            raise known from error
        raise


def as_source_error(
    spark: SparkSession, source: Source, spec: Callable[[], TableSpec], error: Exception
) -> OpalError | None:
    """None if the source is not the cause of the failure."""
    if isinstance(source, Jdbc):
        return as_jdbc_error(source, text_with_causes(error))
    text = str(error)
    if missing := _NO_FILE_SYSTEM.search(text):
        return InvalidInputError(
            f"Spark cannot open {list(source.paths)}: it has no file system for {missing[1] or 's3a'!r}; add its package"
        )
    if _OTHER_TYPES.search(text):
        return InvalidInputError(
            f"the files of {list(source.paths)} have different types for one column; ingest them separately: {_reason(text)}"
        )
    if kind := _UNKNOWN_TYPE.search(text):
        return InvalidInputError(
            f"{list(source.paths)} have a column of type {kind[1]!r}, which Spark does not read; deliver Parquet"
        )
    return _unreadable(spark, source, spec, text)


def _unreadable(
    spark: SparkSession, source: Files, spec: Callable[[], TableSpec], text: str
) -> OpalError | None:
    named = _FILE.search(text)
    if any(
        _PASSING.search(kind) or _BUSY.search(message) for kind, message in _CAUSE.findall(text)
    ):
        name = unquote(named[1]) if named else f"one of {list(source.paths)}"
        return StorageError(f"{name} could not be read ({_reason(text)}); try again")
    damaged = (
        [f"{unquote(named[1])} cannot be read as {source.file_format} ({_reason(text)})"]
        if named
        else []
    )
    damaged = damaged or _damaged_files(spark, source)
    if (
        source.file_format == "csv"
        and (problem := _header_problem(spark, source, spec())) is not None
    ):
        return problem
    if not damaged:
        return None
    return InvalidInputError(
        f"{'; '.join(damaged)}: truncated or damaged; deliver it again, or leave it out of the source"
    )


def _header_problem(
    spark: SparkSession, source: Files, spec: TableSpec
) -> InvalidInputError | None:
    """Spark reports another header as a file that it cannot read."""
    try:
        for part in parts_of(spark, source, spec) if source.is_by_name else []:
            check_headers(spark, part.source, part.spec)
        if not source.is_by_name:
            check_headers(spark, source, spec)
    except InvalidInputError as problem:
        return problem
    except Exception:  # noqa: BLE001  # a file that is really damaged, which is what is reported
        return None
    return None


def _damaged_files(spark: SparkSession, source: Files) -> list[str]:
    """Which of the first files cannot be opened, if Spark has not named one."""
    damaged = []
    for path in file_paths(open_files(spark, source, "text", {}))[:MOST_FILES]:
        try:
            kind = "text" if source.file_format in ("csv", "json") else source.file_format
            open_files(spark, one_file(source, path), kind, {}).head()
        except Exception as error:  # noqa: BLE001  # whatever it is, this file has it
            damaged.append(f"{path} cannot be read as {source.file_format} ({_reason(str(error))})")
    return damaged


def _reason(text: str) -> str:
    """The innermost cause, in one line."""
    causes = _CAUSE.findall(text)
    return (
        f"{causes[-1][0].rpartition('.')[2]}: {causes[-1][1].strip()}"
        if causes
        else " ".join(text.split())[:300]
    )
