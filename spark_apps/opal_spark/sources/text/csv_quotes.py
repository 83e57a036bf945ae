"""Quotes of CSV that are not closed in their line.

What follows them may be the rest of a field, and look like a row.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from opal_lake.errors import InvalidInputError
from opal_lake.source import Files
from opal_spark.sources.marks import BLOCK, FILE, PATH, file_column
from opal_spark.sources.paths import one_file, open_files
from opal_spark.sources.text.csv_lines import MULTI_LINE, is_true, plain_names, separator

NO_CHARACTER = "\u0000"  # Spark's value for an option without a character
_UNCLOSED = "the quote of its last field is not closed"
UNCLOSED = f"{_UNCLOSED} (where fields hold line breaks, set multiLine=true)"
CLOSE_QUOTES = (
    "Close the quotes in the files: such rows are never put aside, "
    "because the rows after an open quote cannot be distinguished"
)
_TEXT, _RANK, _LINE = "value", "_opal_rank", "_opal_line"


def refuse_open_quotes(spark: SparkSession, source: Files, given: Mapping[str, str]) -> None:
    """Raise InvalidInputError with the first line whose quote is not closed.

    Only for files that are read line by line; `given` are the options of their reader.
    """
    options = {"sep": ",", **plain_names(given)}
    unclosed = None if is_true(options, "multiline") else open_quote(options)
    if unclosed is None:
        return
    text = _text(options)
    # Spares most lines the pattern, which is slow
    has_quote = F.contains(text, F.lit(options.get("quote", '"')[:1]))
    is_open = has_quote & text.rlike(unclosed)
    comment = options.get("comment", "")[:1]
    if comment not in ("", NO_CHARACTER):
        is_open &= ~F.startswith(text, F.lit(comment))
    open_lines = _with_positions(_lines(spark, source, options).where(is_open))
    first_line = F.min(F.struct(FILE, _RANK, text.alias(_TEXT))).alias("first")
    row = open_lines.agg(first_line).head()
    if row is None or row["first"] is None:
        return
    first = row["first"]
    path = unquote(first[FILE][PATH])
    number = _line_number(spark, one_file(source, path), options, first[_TEXT])
    where = path if number is None else f"{path}, line {number}"
    raise InvalidInputError(
        f"{where}: {_UNCLOSED} (where fields hold line breaks: {MULTI_LINE}): "
        f"{first[_TEXT]:.200}. Nothing was ingested. {CLOSE_QUOTES}"
    )


def _line_number(
    spark: SparkSession, file: Files, options: Mapping[str, str], line: str
) -> int | None:
    in_file = Window.orderBy(F.col(FILE).getField(BLOCK), _RANK)
    numbered = _with_positions(_lines(spark, file, options)).select(
        _text(options).alias(_TEXT), F.row_number().over(in_file).alias(_LINE)
    )
    row = numbered.where(F.col(_TEXT) == F.lit(line)).agg(F.min(_LINE)).head()
    return None if row is None else row[0]


def open_quote(options: Mapping[str, str]) -> str | None:
    """Return Java's pattern for a line whose last field has an open quote.

    Such a field continues in the next line. Only whole fields may stand before it, cut as Spark's
    parser cuts them, so that a quote inside a field does not count as the beginning of one.
    """
    quote, escape = options.get("quote", '"')[:1], options.get("escape", '"')[:1]
    if not quote or quote == NO_CHARACTER:
        return None
    q, e, s = (re.escape(text) for text in (quote, escape, separator(options)))
    # `*+` never gives back what it matched: without it a line could take exponential time
    inside = f"[^{q}]*+"
    if escape == quote:
        inside += f"(?:{q}{q}[^{q}]*+)*+"
    elif escape not in ("", NO_CHARACTER):
        inside = f"[^{q}{e}]*+(?:{e}.[^{q}{e}]*+)*+"
    rest = f"[^{s}]*+" if len(separator(options)) == 1 else f"(?:(?!{s}).)*+"
    blank = "[ \\t]*+" if is_true(options, "ignoreleadingwhitespace") else ""
    return f"(?s)^(?:{blank}(?:{q}{inside}{q}{rest}|(?!{q}){rest}){s})*+{blank}{q}{inside}$"


def _lines(spark: SparkSession, source: Files, options: Mapping[str, str]) -> DataFrame:
    """Return the lines of files, cut as the reader of CSV cuts them."""
    reading = {name: value for name, value in options.items() if name != "wholetext"}
    return open_files(spark, source, "text", reading, StructType().add(_TEXT, StringType()))


def _with_positions(lines: DataFrame) -> DataFrame:
    """Return lines with their files, and their order in the files."""
    return lines.select(_TEXT, file_column(lines), F.monotonically_increasing_id().alias(_RANK))


def _text(options: Mapping[str, str]) -> Column:
    encoding = options.get("encoding", "UTF-8")
    marks = separator(options) + options.get("quote", "") + options.get("escape", "")
    # In encodings that write ASCII as ASCII the marks are the same bytes, whatever the letters
    # between them are, and the text need not be decoded
    is_plain = marks.isascii()
    # An unknown name is Java's, and perhaps not Python's
    with suppress(LookupError):
        is_plain = is_plain and "\n".encode(encoding) == b"\n"
    if is_plain:
        return F.col(_TEXT)
    return F.decode(F.col(_TEXT).cast("binary"), encoding)
