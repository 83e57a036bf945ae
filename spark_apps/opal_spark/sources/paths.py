"""The opening of files: a missing or unreadable file is an error, and is never skipped."""

import re
from collections.abc import Mapping
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from opal_lake.errors import InvalidInputError, NoRowsError
from opal_lake.source import Files, no_file_message
from opal_spark.engine.session import STRICT, few_listing_tasks

MAX_FILES = 200  # files that are opened one by one to explain a failure

_PATTERN_CHARACTER = re.compile(r"[\\*?\[\]{}]")


def open_files(
    spark: SparkSession,
    source: Files,
    file_format: str,
    options: Mapping[str, str],
    schema: StructType | None = None,
) -> DataFrame:
    """Return the files of a source as one DataFrame.

    Columns that folders name (`day=2026-11-01`) follow, as texts where a schema is given.
    """
    rows = _load(spark, source, file_format, options, schema)
    if not rows.inputFiles():
        raise NoRowsError(no_file_message(source))
    if schema is None:
        return rows
    declared = frozenset(schema.names)
    folders = [name for name in rows.columns if name not in declared]
    if not folders:
        return rows
    texts = StructType(list(schema.fields))
    for name in folders:
        texts = texts.add(name, StringType())
    return _load(spark, source, file_format, options, texts)


def _load(
    spark: SparkSession,
    source: Files,
    file_format: str,
    options: Mapping[str, str],
    schema: StructType | None,
) -> DataFrame:
    reader = spark.read.format(file_format).options(**options).options(**STRICT)
    if schema is not None:
        reader = reader.schema(schema)
    paths = [re.sub(r"^s3://", "s3a://", path) for path in source.paths]
    try:
        with few_listing_tasks(spark):
            return reader.load(paths)
    except AnalysisException as error:
        if error.getCondition() in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise NoRowsError(no_file_message(source)) from error
        raise


def file_paths(rows: DataFrame) -> list[str]:
    """Return the unquoted paths of the files behind a DataFrame."""
    return sorted(unquote(path) for path in rows.inputFiles())


def one_file(source: Files, path: str) -> Files:
    """Return a source of this file alone, whatever characters are in its name."""
    escaped = _PATTERN_CHARACTER.sub(r"\\\g<0>", path)
    return Files(paths=(escaped,), format=source.file_format, options=source.options)


def refuse_options(source: Files, refused: Mapping[str, str]) -> None:
    """Raise InvalidInputError for options that do not apply to an ingest.

    `refused` has the reason for each such option.
    """
    for name in source.options:
        why = refused.get(name.casefold())
        if why is not None:
            raise InvalidInputError(f"option {name!r} does not apply to an ingest: {why}")


def is_set(source: Files, option: str) -> bool:
    """Return whether an option is given as true."""
    # Spark takes names in any case
    values = {name.casefold(): value.lower() for name, value in source.options.items()}
    return values.get(option.casefold()) == "true"
