"""Checks that a rewrite of the master loses and changes nothing.

A value that would be lost or changed is an error before anything is written. The error names the
file, the line and the reason.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from opal_folder.mutation import Work
from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage
from opal_lake.storage.spark_path import hadoop_uri, spark_paths
from opal_spark.engine.columns import columns_named, quoted, spark_type_name
from opal_spark.engine.session import STRICT, few_listing_tasks
from opal_spark.mutate.csv_text import CORRUPT, is_utf8
from opal_spark.mutate.master import PLACE, MasterFiles, by_root
from opal_spark.mutate.record import (
    Record,
    key_twice,
    misread_faults,
    rounding_faults,
    several_values,
    text_rounding_faults,
)
from opal_spark.sources.marks import plain_uri
from opal_spark.sources.text.csv_lines import is_true, line_number, lines
from opal_spark.sources.text.csv_quotes import open_quote
from opal_spark.sources.text.json_files import MORE_VALUES

_BROKEN = "the master has a row that does not fit its fields"
_LOST = "the master has a row with letters that would be lost"
_TWICE = "a key occurs twice"
_ROUNDED = "the master has a number that would be rounded"
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNREADABLE = re.compile(
    r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (\S+?)\.? "
)
_DAMAGED = re.compile(
    r"\w*(?:EOFException|ZipException|DataFormatException|AvroRuntimeException)\b[^\n]*"
    r"|not in gzip format|is not a Parquet file[^\n]*"
    r"|Could not read footer|Malformed ORC file|Not an Avro data file|Invalid sync",
    re.IGNORECASE,
)
_WRONG_LETTERS = "MALFORMED_CHARACTER_CODING"
_BROKEN_ROW = re.compile(rf"{_BROKEN}: (\S+) (.*?) SQLSTATE", re.DOTALL)
_LOST_VALUE = re.compile(rf"(?:{_LOST}|{_ROUNDED}): .*?(?= SQLSTATE)", re.DOTALL)


def check_text(spark: SparkSession, master: MasterFiles, fields: StructType) -> None:
    """Raise InvalidInputError for the first line that Spark would read wrongly.

    Such lines have a CSV field that continues in the next line, letters that are not UTF-8, or JSON
    values of other types.
    """
    if master.format == "csv":
        by_line = not is_true(master.csv, "multiline")
        faults = _faults(master.csv, by_line=by_line)
        options = master.csv
    elif master.format == "json":
        in_files = [field for field in fields if field.name not in master.partition_by]
        faults = [*_faults({}, by_line=False), _other_values(in_files)]
        options = {}
    else:
        return
    if faults:
        _refuse_first(spark, master, F.coalesce(*faults), options)


def refuse_repeated_keys(spark: SparkSession, master: MasterFiles) -> None:
    """Raise InvalidInputError for the first line of JSON that has a key twice.

    Spark cannot infer a schema from such a line, and does not name it.
    """
    if master.format == "json":
        reason = F.when(key_twice(F.col("value")), F.lit(f"{_TWICE}; correct the line"))
        _refuse_first(spark, master, reason, {})


def _refuse_first(
    spark: SparkSession, master: MasterFiles, reason: Column, options: Mapping[str, str]
) -> None:
    """Raise InvalidInputError for the master's first line that has a reason."""
    for storage, paths in by_root(master):
        reader = spark.read.options(**STRICT, recursiveFileLookup="true")
        with few_listing_tasks(spark):
            texts = reader.text(spark_paths(storage, paths))
        file = texts.metadataColumn("_metadata").getField("file_path")
        bad = texts.where(reason.isNotNull())
        row = bad.select("value", reason.alias("reason"), file.alias("file")).first()
        if row is not None:
            where = _file_and_line(row.file, row.value, [storage], options)
            raise InvalidInputError(f"{where}: {row.reason}: {row.value:.200}. Nothing was changed")


def _faults(options: Mapping[str, str], *, by_line: bool) -> list[Column]:
    """Return the reasons for a line in another encoding, or with an open quote."""
    faults = []
    if is_utf8(options):
        reason = (
            "the line is not UTF-8, so the master may have another encoding; correct the line, "
            "or for CSV give options={'encoding': 'ISO-8859-1'} (--csv-option encoding=ISO-8859-1)"
        )
        faults.append(F.when(~F.is_valid_utf8("value"), F.lit(reason)))
    unclosed = open_quote(options) if by_line else None
    if unclosed is not None:
        reason = (
            "the line has a quote that is not closed; close it, or if fields hold line breaks, "
            "give options={'multiLine': 'true'} (--csv-option multiLine=true)"
        )
        # The pattern is slow, so it is applied only to lines with a quote
        has_quote = F.contains("value", F.lit(options.get("quote", '"')[:1]))
        faults.append(F.when(has_quote & F.col("value").rlike(unclosed), F.lit(reason)))
    return faults


def _other_values(fields: Sequence[StructField]) -> Column:
    """Return the reason why a line of JSON would be written with other values."""
    line = F.col("value")
    twice = F.when(key_twice(line), F.lit(_TWICE))
    several = F.when(several_values(line), F.lit(MORE_VALUES))
    faults = [twice, several, *rounding_faults(line, fields)]
    faults += misread_faults(line, fields, is_whole=True)
    fault = F.coalesce(*faults)
    advice = "; correct the line, or give the types: schema='id BIGINT, ...' (--schema)"
    return F.concat(F.lit("the master would be written with other values: "), fault, F.lit(advice))


def check_fields(kind: str, fields: Sequence[StructField]) -> None:
    """Raise InvalidInputError for a field that the new master's format cannot hold."""
    for field in fields:
        if kind == "avro" and not _AVRO_NAME.fullmatch(field.name):
            raise InvalidInputError(
                f"Avro cannot hold a field called {field.name!r}: a name may have only letters, "
                "digits and _, and may not begin with a digit. Rename the field, or write another "
                "format. Nothing was changed"
            )
        if kind == "csv" and isinstance(field.dataType, ArrayType | MapType | StructType):
            raise InvalidInputError(
                f"field {field.name!r} is {spark_type_name(field.dataType)}, which CSV cannot "
                "hold: write another format. Nothing was changed"
            )


def checked_rows(rows: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Return the master's rows; a row that does not fit its fields is a failure.

    Every query of the returned rows fails on such a row, even a count.
    """
    if CORRUPT not in rows.columns:
        return rows
    names = [name for name in rows.columns if name not in (CORRUPT, PLACE)]
    in_files = columns_named(name for name in names if name not in partition_by)
    # The text of all fields is never shown, but it makes Spark read all fields: Spark finds a
    # misfit only in a field that it reads
    text = F.coalesce(F.col(CORRUPT), F.to_json(F.struct(*in_files)))
    broken = F.raise_error(F.concat(F.lit(f"{_BROKEN}: "), F.col(PLACE), F.lit(" "), text))
    is_sound = F.col(CORRUPT).isNull()
    sound = rows.where(F.when(~is_sound, broken.cast("boolean")).otherwise(F.lit(True)))
    columns = []
    for name in names:
        column = F.col(quoted(name))
        # Spark would push a filter on a plain column into its reader, which skips rows unchecked.
        # Columns of folders stay plain, so that a filter on them still skips files.
        if name not in partition_by:
            column = F.when(is_sound, column)
        columns.append(column.alias(name))
    return sound.select(*columns)


def writable_rows(rows: DataFrame, record: Record) -> DataFrame:
    """Return the master's rows; a text that the encoding cannot hold is a failure."""
    return _failing(rows, _LOST, record.unwritable_faults())


def exact_rows(rows: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Return the rows of a CSV master; a number that would be rounded is a failure.

    The rows have the cells as texts.
    """
    return _failing(rows, _ROUNDED, text_rounding_faults(fields))


def _failing(rows: DataFrame, what: str, faults: Sequence[Column]) -> DataFrame:
    """Return the rows; a query fails with the text `what` on a row with a fault."""
    if not faults:
        return rows
    fault = F.coalesce(*faults)
    failure = F.raise_error(F.concat(F.lit(f"{what}: "), fault)).cast("boolean")
    return rows.where(F.when(fault.isNotNull(), failure).otherwise(F.lit(True)))


@contextmanager
def files_named(work: Work, master: MasterFiles, options: Mapping[str, str]) -> Iterator[None]:
    """Raise an InvalidInputError with the file's name if a file causes an error.

    `options` are the CSV options of increments.
    """
    try:
        yield
    except Exception as error:
        problem = _file_problem(str(error), work, master, options)
        if problem is None:
            raise
        raise InvalidInputError(problem) from error


def _file_problem(
    text: str, work: Work, master: MasterFiles, options: Mapping[str, str]
) -> str | None:
    if (row := _BROKEN_ROW.search(text)) is not None:
        stores = [storage for storage, _ in by_root(master)]
        where = _file_and_line(row[1], row[2], stores, master.csv)
        return f"{where}: {_BROKEN}: {row[2]:.200}. Nothing was changed: correct the row"
    if (lost := _LOST_VALUE.search(text)) is not None:
        return f"{lost[0]}. Nothing was changed"
    if _WRONG_LETTERS in text and (line := _wrong_line(work, options)) is not None:
        return f"{line}. Nothing was changed: correct the file or the encoding"
    file, damage = _UNREADABLE.search(text), _DAMAGED.search(text)
    if file is None or damage is None:
        return None
    path = unquote(file[1])
    name = _sources(work).get(plain_uri(path), path)
    return (
        f"{name} is damaged, or cut off ({damage[0].strip():.200}). "
        "Nothing was changed: deliver the file again"
    )


def _sources(work: Work) -> dict[str, str]:
    """Return the users' names of increments, by the URIs at which they are read."""
    names = {}
    for increment, (storage, path) in zip(work.increments, work.readable, strict=True):
        names[plain_uri(hadoop_uri(storage, path))] = increment.source
    return names


def _wrong_line(work: Work, options: Mapping[str, str]) -> str | None:
    """Return file, number and text of the first line that is not in the encoding."""
    encoding = options.get("encoding", "utf-8")
    for increment, (storage, path) in zip(work.increments, work.readable, strict=True):
        for number, line in enumerate(lines(storage, path, encoding), start=1):
            if "\ufffd" in line:
                return f"{increment.source}, line {number}: the line is not {encoding}: {line:.200}"
    return None


def _file_and_line(uri: str, text: str, stores: list[Storage], options: Mapping[str, str]) -> str:
    """Return a row's file, and its line if the file is in one of the stores."""
    name = unquote(uri)
    file_uri = plain_uri(name)
    for storage in stores:
        root = f"{plain_uri(hadoop_uri(storage))}/"
        if not file_uri.startswith(root):
            continue
        path = file_uri.removeprefix(root)
        number = line_number(storage, path, options.get("encoding", "utf-8"), text)
        if number is None:
            return f"{storage.uri}/{path}"
        return f"{storage.uri}/{path}, line {number}"
    return name
