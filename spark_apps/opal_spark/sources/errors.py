"""Errors of sources that cannot be read.

Spark fails long after the reader was created, and does not always name the file.
"""

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
from opal_spark.sources.paths import MAX_FILES, file_paths, one_file, open_files
from opal_spark.sources.text.csv_header import check_headers

_FILE = re.compile(r"reading file (\S[^\n]*?)\.\s+(?:Could not|SQLSTATE)")
_CAUSE = re.compile(r"Caused by: ([\w.$]+(?:Exception|Error)): ([^\n]*)")
_NO_FILE_SYSTEM = re.compile(
    r"No FileSystem for scheme \"?(\w+)|Class (\S*S3AFileSystem) not found"
)
_OTHER_TYPES = re.compile(r"CANNOT_MERGE_SCHEMAS|FAILED_MERGE|CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE")
_UNKNOWN_TYPE = re.compile(r"PARSE_SYNTAX_ERROR.*?== SQL ==\n([^\n]*)", re.DOTALL)
# Transient causes of the store, not of the file: the type of the error, and S3's words below
_PASSING = re.compile(
    r"(?:Timeout|Connect|UnknownHost|SdkClient|Interrupted\w*|Socket|NoRouteToHost)Exception$"
)
_MAX_REASON = 300  # characters
_BUSY = re.compile(r"SlowDown|ServiceUnavailable|InternalError|RequestTimeout|Throttling")


@contextmanager
def source_errors(
    spark: SparkSession, rows: DataFrame | Source, spec: Callable[[], TableSpec]
) -> Iterator[None]:
    """Raise an OpalError if a source cannot be read within the block.

    The block must contain everything that reads the source, up to the end of the action. `spec`
    returns the table's spec; it is called only if CSV files failed.
    """
    try:
        yield
    except (OpalError, PythonException):
        # A task's own error is not the source's
        raise
    except Exception as error:
        if not isinstance(rows, Files | Jdbc):
            raise
        source_error = as_source_error(spark, rows, spec, error)
        if source_error is None:
            raise
        raise source_error from error


def as_source_error(
    spark: SparkSession, source: Source, spec: Callable[[], TableSpec], error: Exception
) -> OpalError | None:
    """Return the OpalError for a failure; None if the source is not its cause."""
    if isinstance(source, Jdbc):
        return as_jdbc_error(source, text_with_causes(error))
    text = str(error)
    paths = list(source.paths)
    if missing := _NO_FILE_SYSTEM.search(text):
        scheme = missing[1] or "s3a"
        return InvalidInputError(
            f"Spark cannot open {paths}: it has no file system for {scheme!r}; add the package of "
            "the file system with --packages or spark.jars.packages"
        )
    if _OTHER_TYPES.search(text):
        return InvalidInputError(
            f"the files of {paths} have different types for one column ({_reason(text)}); "
            "ingest them separately"
        )
    if kind := _UNKNOWN_TYPE.search(text):
        return InvalidInputError(
            f"files of {paths} have a column of type {kind[1]!r}, which Spark cannot read; "
            "deliver Parquet files"
        )
    return _unreadable(spark, source, spec, text)


def _unreadable(
    spark: SparkSession, source: Files, spec: Callable[[], TableSpec], text: str
) -> OpalError | None:
    file = _FILE.search(text)
    name = unquote(file[1]) if file else None
    for kind, message in _CAUSE.findall(text):
        if _PASSING.search(kind) or _BUSY.search(message):
            shown_name = name or f"one of {list(source.paths)}"
            return StorageError(f"{shown_name} could not be read ({_reason(text)}); try again")
    if name is None:
        damaged = _damaged_files(spark, source)
    else:
        damaged = [_damage(source, name, text)]
    if source.file_format == "csv":
        problem = _header_problem(spark, source, spec())
        if problem is not None:
            return problem
    if not damaged:
        return None
    return InvalidInputError(
        f"{'; '.join(damaged)}: truncated or damaged; "
        "deliver the file again, or leave it out of the source"
    )


def _header_problem(
    spark: SparkSession, source: Files, spec: TableSpec
) -> InvalidInputError | None:
    """Return the error for a wrong header, which Spark reports as an unreadable file."""
    try:
        if source.is_by_name:
            for part in parts_of(spark, source, spec):
                check_headers(spark, part.source, part.spec)
        else:
            check_headers(spark, source, spec)
    except InvalidInputError as problem:
        return problem
    except Exception:  # noqa: BLE001  # a file that is really damaged, which the caller reports
        return None
    return None


def _damaged_files(spark: SparkSession, source: Files) -> list[str]:
    """Return a problem for each of the first MAX_FILES files that cannot be opened.

    It is used if Spark's error does not name the file.
    """
    kind = "text" if source.file_format in ("csv", "json") else source.file_format
    damaged = []
    for path in file_paths(open_files(spark, source, "text", {}))[:MAX_FILES]:
        try:
            open_files(spark, one_file(source, path), kind, {}).head()
        except Exception as error:  # noqa: BLE001  # whatever it is, this file causes it
            damaged.append(_damage(source, path, str(error)))
    return damaged


def _damage(source: Files, name: str, text: str) -> str:
    return f"{name} cannot be read as {source.file_format} ({_reason(text)})"


def _reason(text: str) -> str:
    """Return the innermost cause, in one line."""
    causes = _CAUSE.findall(text)
    if not causes:
        return " ".join(text.split())[:_MAX_REASON]
    kind, message = causes[-1]
    return f"{kind.rpartition('.')[2]}: {message.strip()}"
