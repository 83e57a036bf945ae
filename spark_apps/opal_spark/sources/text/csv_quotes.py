"""Quotes of CSV that are not closed in their line.

The next lines may be the rest of the field, although they look like rows.
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

    It checks only files that are read line by line. `given` are the options of their reader.
    """
    options = {"sep": ",", **plain_names(given)}
    unclosed = None if is_true(options, "multiline") else open_quote(options)
    if unclosed is None:
        return
    text = _text(options)
    # The pattern is slow, so it is applied only to lines with a quote
    has_quote = F.contains(text, F.lit(options.get("quote", '"')[:1]))
    is_open = has_quote & text.rlike(unclosed)
    comment = options.get("comment", "")[:1]
    if comment not in ("", NO_CHARACTER):
        is_open &= ~F.startswith(text, F.lit(comment))
    open_lines = _with_positions(_lines(spark, source, options).where(is_open))
    position_and_text = F.struct(FILE, _RANK, text.alias(_TEXT))
    row = open_lines.agg(F.min(position_and_text).alias("first")).head()
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
    """Return the number, from 1, of the first line of a file that is equal to `line`."""
    in_file = Window.orderBy(F.col(FILE).getField(BLOCK), _RANK)
    number = F.row_number().over(in_file).alias(_LINE)
    lines = _with_positions(_lines(spark, file, options))
    numbered = lines.select(_text(options).alias(_TEXT), number)
    row = numbered.where(F.col(_TEXT) == F.lit(line)).agg(F.min(_LINE)).head()
    return None if row is None else row[0]


def open_quote(options: Mapping[str, str]) -> str | None:
    """Return Java's pattern for a line whose last field has an open quote.

    Such a field continues in the next line. The pattern matches the fields before it as Spark's
    parser cuts them, so a quote inside a field is not read as the beginning of a field. None if the
    options have no quote.
    """
    quote, escape = options.get("quote", '"')[:1], options.get("escape", '"')[:1]
    if not quote or quote == NO_CHARACTER:
        return None
    q, e, s = (re.escape(text) for text in (quote, escape, separator(options)))
    # `*+` does not backtrack: with `*` a line could take exponential time
    quoted_text = f"[^{q}]*+"
    if escape == quote:
        quoted_text += f"(?:{q}{q}[^{q}]*+)*+"
    elif escape not in ("", NO_CHARACTER):
        quoted_text = f"[^{q}{e}]*+(?:{e}.[^{q}{e}]*+)*+"
    if len(separator(options)) == 1:
        to_separator = f"[^{s}]*+"
    else:
        to_separator = f"(?:(?!{s}).)*+"
    blank = "[ \\t]*+" if is_true(options, "ignoreleadingwhitespace") else ""
    quoted_field = f"{q}{quoted_text}{q}{to_separator}"
    plain_field = f"(?!{q}){to_separator}"
    whole_fields = f"(?:{blank}(?:{quoted_field}|{plain_field}){s})*+"
    return f"(?s)^{whole_fields}{blank}{q}{quoted_text}$"


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
    # If the encoding extends ASCII, the marks are the same bytes in the text as it is, and the
    # text need not be decoded
    is_plain = marks.isascii()
    # Java may know an encoding by a name that Python does not know
    with suppress(LookupError):
        is_plain = is_plain and "\n".encode(encoding) == b"\n"
    if is_plain:
        return F.col(_TEXT)
    return F.decode(F.col(_TEXT).cast("binary"), encoding)
