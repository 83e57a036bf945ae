"""Literals of a statement, which Spark reads, as conditions and defaults of tables store them."""

import re
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from opal_lake.definition.conditions.printer import literal_text
from opal_lake.errors import InvalidInputError
from opal_lake.sql.lexer import STRING, WORD, string_value, tokens
from opal_lake.sql.statements import Slice
from opal_spark.spark_sql.arguments import Arguments

# The words of literals. Another word may name a function of the day or of the session
_WORDS = {"TRUE", "FALSE", "NULL", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "X"}
_ZONE = re.compile(r"(?:Z|UTC|[+-]\d{2}:\d{2})\Z")
_UTC_NAMES = frozenset({"utc", "etc/utc", "gmt", "etc/gmt", "z", "zulu", "+00:00"})


def default_literal(spark: SparkSession, default: Slice, args: Arguments) -> str | None:
    """Return a default as a literal of conditions; None for NULL.

    Spark reads the value, as it reads other texts of the statement. Raises InvalidInputError for
    what is not a constant: its value would be that of the day on which the column was added.
    """
    in_default = tokens(default.text)
    for index, token in enumerate(in_default):
        is_parameter = index > 0 and in_default[index - 1].value == ":"
        if token.kind == WORD and token.value.upper() not in _WORDS and not is_parameter:
            raise InvalidInputError(
                f"DEFAULT {default} is not a constant; write a value such as 1, 'new' or "
                "DATE '2026-01-01'"
            )
    # The line break ends a comment at the end of the value
    rows = spark.sql(f"SELECT ({default.text}\n) AS value", args.of(default)).toArrow()
    value = rows["value"][0].as_py()
    if value is None:
        return None
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return literal_text(value)


def stored_condition(spark: SparkSession, condition: Slice) -> str:
    """Return a condition, or an expression, of a statement as the table stores it.

    A text in it means what it means to Spark, which reads a backslash as an escape; the language
    of conditions has no escapes. Raises InvalidInputError for a time that depends on the session.
    """
    text = condition.text
    if "${" in text and spark.conf.get("spark.sql.variable.substitute", "true") == "true":
        raise InvalidInputError(
            f"{text}: Spark replaces ${{name}} in a statement by a setting, which a table cannot "
            "store; write the value"
        )
    parts: list[str] = []
    position = 0
    word = ""
    for token in tokens(text):
        if token.kind == STRING:
            value = string_value(text, token)
            if word == "TIMESTAMP" and not has_zone(value) and not is_in_utc(spark):
                raise InvalidInputError(
                    f"TIMESTAMP '{value}' has no zone: this session reads it in "
                    f"{_zone_of(spark)}, and a stored condition in UTC; write the zone, such as "
                    "TIMESTAMP '2026-11-28 09:30:00+00:00'"
                )
            parts += [text[position : token.start], literal_text(value)]
            position = token.end
        word = token.value
    return "".join([*parts, text[position:]])


def has_zone(time: str) -> bool:
    """Return whether the text of a time ends with a zone."""
    return _ZONE.search(time) is not None


def is_in_utc(spark: SparkSession) -> bool:
    """Return whether a session reads times without a zone in UTC."""
    return _zone_of(spark).casefold() in _UTC_NAMES


def _zone_of(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.sql.session.timeZone"))
