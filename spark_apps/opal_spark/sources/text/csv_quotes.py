"""Quotes of CSV that are not closed in their line: what follows may be the rest of a field, and look like a row."""

import re
from collections.abc import Mapping
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from opal_lake.errors import InvalidInputError
from opal_lake.source import Files
from opal_spark.sources.marks import BLOCK, FILE, PATH, file_column
from opal_spark.sources.paths import one_file, open_files
from opal_spark.sources.text.csv_lines import MULTI_LINE, is_true, plain_names, separator

NO_CHARACTER = "\u0000"  # Spark's way to say that there is none
_UNCLOSED = "the quote of its last field is not closed"
UNCLOSED = f"{_UNCLOSED} (where fields hold line breaks, set multiLine=true)"
CLOSE_QUOTES = "Close the quotes in the files: such rows are never put aside, as those behind an open quote cannot be told apart"
_TEXT, _RANK, _LINE = "value", "_opal_rank", "_opal_line"


def refuse_open_quotes(spark: SparkSession, source: Files, given: Mapping[str, str]) -> None:
    """Of files that are read line by line; `given` are the options of their reader. An error names the first line with such a quote."""
    options = {"sep": ",", **plain_names(given)}
    unclosed = None if is_true(options, "multiline") else open_quote(options)
    if unclosed is None:
        return
    text = _text(options)
    is_open = F.contains(text, F.lit(options.get("quote", '"')[:1])) & text.rlike(unclosed)
    if (comment := options.get("comment", "")[:1]) not in ("", NO_CHARACTER):
        is_open &= ~F.startswith(text, F.lit(comment))
    found = (
        _placed(_lines(spark, source, options).where(is_open))
        .agg(F.min(F.struct(FILE, _RANK, text.alias(_TEXT))).alias("first"))
        .head()
    )
    if found is None or found["first"] is None:
        return
    first = found["first"]
    path = unquote(first[FILE][PATH])
    numbered = _placed(_lines(spark, one_file(source, path), options)).select(
        text.alias(_TEXT),
        F.row_number().over(Window.orderBy(F.col(FILE).getField(BLOCK), _RANK)).alias(_LINE),
    )
    line = numbered.where(F.col(_TEXT) == F.lit(first[_TEXT])).agg(F.min(_LINE)).head()
    where = path if line is None else f"{path}, line {line[0]}"
    raise InvalidInputError(
        f"{where}: {_UNCLOSED} (where fields hold line breaks: {MULTI_LINE}): {first[_TEXT]:.200}. Nothing was ingested. {CLOSE_QUOTES}"
    )


def open_quote(options: Mapping[str, str]) -> str | None:
    """Java's regular expression for a line whose last field begins with a quote and does not end there: it goes on in the next line.

    Only whole fields may stand before it, cut as Spark's parser cuts them, so that no quote inside a field counts as the beginning of one.
    """
    quote, escape = options.get("quote", '"')[:1], options.get("escape", '"')[:1]
    if not quote or quote == NO_CHARACTER:
        return None
    q, e, s = (re.escape(text) for text in (quote, escape, separator(options)))
    inside = f"[^{q}]*+" + (f"(?:{q}{q}[^{q}]*+)*+" if escape == quote else "")
    if escape not in (quote, "", NO_CHARACTER):
        inside = f"[^{q}{e}]*+(?:{e}.[^{q}{e}]*+)*+"
    rest = f"[^{s}]*+" if len(separator(options)) == 1 else f"(?:(?!{s}).)*+"
    blank = "[ \\t]*+" if is_true(options, "ignoreleadingwhitespace") else ""
    return f"(?s)^(?:{blank}(?:{q}{inside}{q}{rest}|(?!{q}){rest}){s})*+{blank}{q}{inside}$"


def _lines(spark: SparkSession, source: Files, options: Mapping[str, str]) -> DataFrame:
    """Cut as the reader of CSV cuts them."""
    reading = {name: value for name, value in options.items() if name != "wholetext"}
    return open_files(spark, source, "text", reading, StructType().add(_TEXT, StringType()))


def _placed(lines: DataFrame) -> DataFrame:
    """With their files, and in which order they stand there."""
    return lines.select(_TEXT, file_column(lines), F.monotonically_increasing_id().alias(_RANK))


def _text(options: Mapping[str, str]) -> Column:
    """In encodings that write ASCII as ASCII the marks are found whatever the letters between them are."""
    encoding, marks = (
        options.get("encoding", "UTF-8"),
        "".join((separator(options), options.get("quote", ""), options.get("escape", ""))),
    )
    try:
        is_plain = marks.isascii() and "\n".encode(encoding) == b"\n"
    except LookupError:  # Java's name, and perhaps not Python's
        is_plain = marks.isascii()
    return F.col(_TEXT) if is_plain else F.decode(F.col(_TEXT).cast("binary"), encoding)
