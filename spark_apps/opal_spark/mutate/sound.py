"""What a rewrite of the master would lose or change for good is an error before anything is written: with file, line and reason."""

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
from opal_spark.engine.columns import quoted, spark_type_name
from opal_spark.engine.session import STRICT, few_listing_tasks
from opal_spark.mutate.csv_text import CORRUPT, is_utf8
from opal_spark.mutate.master import PLACE, MasterFiles, by_root
from opal_spark.mutate.record import (
    Record,
    key_twice,
    misread,
    rounded,
    rounded_texts,
    several_values,
)
from opal_spark.sources.marks import plain_uri
from opal_spark.sources.text.csv_lines import is_true, line_number, lines
from opal_spark.sources.text.csv_quotes import open_quote
from opal_spark.sources.text.json_files import MORE_VALUES

_BROKEN = "the master has a row that does not fit its fields"
_LOST = "the master has a row whose letters would be lost"
_TWICE = "a key is there twice"
_ROUNDED = "the master has a number that would be rounded"
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNREADABLE = re.compile(
    r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (\S+?)\.? "
)
_DAMAGED = re.compile(
    r"\w*(?:EOFException|ZipException|DataFormatException|AvroRuntimeException)\b[^\n]*|not in gzip format|is not a Parquet file[^\n]*"
    r"|Could not read footer|Malformed ORC file|Not an Avro data file|Invalid sync",
    re.IGNORECASE,
)
_WRONG_LETTERS = "MALFORMED_CHARACTER_CODING"


def check_text(spark: SparkSession, master: MasterFiles, fields: StructType) -> None:
    """A field of CSV that goes on in the next line would be read as two rows, letters that are not UTF-8 as other ones, and values of JSON
    as those of other types.
    """
    if master.format not in ("csv", "json"):
        return
    options = master.csv if master.format == "csv" else {}
    faults = _faults(options, by_line=master.format == "csv" and not is_true(options, "multiline"))
    if master.format == "json":
        faults["types"] = _other_values(
            [field for field in fields if field.name not in master.partition_by]
        )
    if not faults:
        return
    _refuse_first(spark, master, F.coalesce(*faults.values()), options)


def refuse_repeated_keys(spark: SparkSession, master: MasterFiles) -> None:
    """The first line of JSON with one: Spark, which finds no schema then, does not say where."""
    if master.format == "json":
        _refuse_first(
            spark,
            master,
            F.when(key_twice(F.col("value")), F.lit(f"{_TWICE}; correct the line")),
            {},
        )


def _refuse_first(
    spark: SparkSession, master: MasterFiles, reason: Column, options: Mapping[str, str]
) -> None:
    for storage, paths in by_root(master):
        with few_listing_tasks(spark):
            texts = spark.read.options(**STRICT, recursiveFileLookup="true").text(
                spark_paths(storage, paths)
            )
        place = texts.metadataColumn("_metadata").getField("file_path")
        for row in (
            texts.where(reason.isNotNull())
            .select("value", reason.alias("reason"), place.alias("place"))
            .limit(1)
            .collect()
        ):
            where = _place(row.place, row.value, [storage], options)
            raise InvalidInputError(f"{where}: {row.reason}: {row.value:.200}. Nothing was changed")


def _faults(options: Mapping[str, str], *, by_line: bool) -> dict[str, Column]:
    faults = {}
    if is_utf8(options):
        said = "the line is not UTF-8; correct it, or of CSV give the encoding (--csv-option encoding=ISO-8859-1)"
        faults["utf8"] = F.when(
            ~F.is_valid_utf8("value"), F.lit(f"the master has text in another encoding: {said}")
        )
    unclosed = open_quote(options) if by_line else None
    if unclosed is not None:
        said = "the master has a line whose quote is not closed; where fields hold line breaks, set multiLine=true among the options of CSV"
        has_quote = F.contains("value", F.lit(options.get("quote", '"')[:1]))
        faults["quote"] = F.when(has_quote & F.col("value").rlike(unclosed), F.lit(said))
    return faults


def _other_values(fields: Sequence[StructField]) -> Column:
    """Of a line of JSON: why it would be written with other values."""
    line = F.col("value")
    twice = F.when(key_twice(line), F.lit(_TWICE))
    several = F.when(several_values(line), F.lit(MORE_VALUES))
    fault = F.coalesce(
        twice, several, *rounded(line, fields), *misread(line, fields, is_whole=True)
    )
    advice = "; correct the line, or give the types (--schema 'id BIGINT, name STRING, ...')"
    return F.concat(F.lit("the master would not come out as it went in: "), fault, F.lit(advice))


def check_fields(kind: str, fields: Sequence[StructField]) -> None:
    """What a format of the new master cannot hold."""
    for field in fields:
        if kind == "avro" and not _AVRO_NAME.fullmatch(field.name):
            raise InvalidInputError(
                f"Avro takes no field called {field.name!r}: a name has letters, digits and _ alone, and begins with no digit. "
                "Rename it, or write another format. Nothing was changed"
            )
        if kind == "csv" and isinstance(field.dataType, ArrayType | MapType | StructType):
            raise InvalidInputError(
                f"field {field.name!r} is {spark_type_name(field.dataType)}, which CSV cannot hold: write another format. Nothing was changed"
            )


def checked_rows(rows: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Return the rows of the master; one that does not fit its fields fails whatever reads it.

    That holds for any projection and any filter of the rows, and a count.
    """
    if CORRUPT not in rows.columns:
        return rows
    names = [name for name in rows.columns if name not in (CORRUPT, PLACE)]
    in_files = [F.col(quoted(name)) for name in names if name not in partition_by]
    # The second text is never used, but names all fields: Spark checks only those that it reads
    text = F.coalesce(F.col(CORRUPT), F.to_json(F.struct(*in_files)))
    broken = F.raise_error(F.concat(F.lit(f"{_BROKEN}: "), F.col(PLACE), F.lit(" "), text))
    is_sound = F.col(CORRUPT).isNull()
    sound = rows.where(F.when(~is_sound, broken.cast("boolean")).otherwise(F.lit(True)))
    # A filter on a bare field would go into Spark's reader, which passes over rows unchecked.
    # Those on folders stay bare, so that a filter on them still skips files.
    columns = [
        F.col(quoted(name)) if name in partition_by else F.when(is_sound, F.col(quoted(name)))
        for name in names
    ]
    return sound.select(*[column.alias(name) for column, name in zip(columns, names, strict=True)])


def writable_rows(rows: DataFrame, record: Record) -> DataFrame:
    """Of the master; one with letters that the new encoding lacks fails what writes it."""
    return _failing(rows, _LOST, record.unwritable())


def exact_rows(rows: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Of a master of CSV, as texts; one with a number that its type cannot hold fails what writes it."""
    return _failing(rows, _ROUNDED, rounded_texts(fields))


def _failing(rows: DataFrame, what: str, faults: Sequence[Column]) -> DataFrame:
    if not faults:
        return rows
    fault = F.coalesce(*faults)
    lost = F.raise_error(F.concat(F.lit(f"{what}: "), fault))
    return rows.where(F.when(fault.isNotNull(), lost.cast("boolean")).otherwise(F.lit(True)))


@contextmanager
def files_named(work: Work, master: MasterFiles, options: Mapping[str, str]) -> Iterator[None]:
    """Errors of Spark that files are to blame for say which. `options` are those of increments of CSV."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if (row := re.search(rf"{_BROKEN}: (\S+) (.*?) SQLSTATE", text, re.DOTALL)) is not None:
            stores = [storage for storage, _ in by_root(master)]
            where = _place(row[1], row[2], stores, master.csv)
            raise InvalidInputError(
                f"{where}: {_BROKEN}: {row[2]:.200}; correct it, nothing was changed"
            ) from error
        if (
            lost := re.search(rf"(?:{_LOST}|{_ROUNDED}): .*?(?= SQLSTATE)", text, re.DOTALL)
        ) is not None:
            raise InvalidInputError(f"{lost[0]}. Nothing was changed") from error
        if _WRONG_LETTERS in text and (line := _wrong_line(work, options)) is not None:
            raise InvalidInputError(
                f"{line}. Nothing was changed: correct the file or the encoding"
            ) from error
        if (file := _UNREADABLE.search(text)) is not None and (
            why := _DAMAGED.search(text)
        ) is not None:
            name = _increments(work).get(plain_uri(unquote(file[1])), unquote(file[1]))
            raise InvalidInputError(
                f"{name} is damaged, or cut off ({why[0].strip():.200}). Nothing was changed: deliver it again"
            ) from error
        raise


def _increments(work: Work) -> dict[str, str]:
    """What they were called, by where they are read."""
    pairs = zip(work.increments, work.readable, strict=True)
    return {
        plain_uri(hadoop_uri(storage, path)): increment.source
        for increment, (storage, path) in pairs
    }


def _wrong_line(work: Work, options: Mapping[str, str]) -> str | None:
    encoding = options.get("encoding", "utf-8")
    for increment, (storage, path) in zip(work.increments, work.readable, strict=True):
        for number, line in enumerate(lines(storage, path, encoding), start=1):
            if "\ufffd" in line:
                return f"{increment.source}, line {number}: the line is not {encoding}: {line:.200}"
    return None


def _place(uri: str, text: str, stores: list[Storage], options: Mapping[str, str]) -> str:
    """The file, and the line if it is found there."""
    name = unquote(uri)
    for storage in stores:
        root = f"{plain_uri(hadoop_uri(storage))}/"
        path = plain_uri(name).removeprefix(root)
        if path != plain_uri(name):
            number = line_number(storage, path, options.get("encoding", "utf-8"), text)
            return f"{storage.uri}/{path}" + (f", line {number}" if number is not None else "")
    return name
