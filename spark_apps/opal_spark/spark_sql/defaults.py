"""DEFAULT of columns: literals as Spark reads them, and as SHOW CREATE TABLE writes them."""

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from opal_lake.data.shown_values import values_of
from opal_lake.definition.conditions.printer import literal_text
from opal_lake.definition.schema import Field, default_array
from opal_lake.errors import InvalidInputError
from opal_lake.sql.lexer import WORD, tokens
from opal_lake.sql.statements import Slice
from opal_spark.spark_sql.arguments import Arguments

# The words of literals. Another word may name a function of the day or of the session
_WORDS = {"TRUE", "FALSE", "NULL", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "X"}


def default_literal(spark: SparkSession, default: Slice, args: Arguments) -> str | None:
    """Return a default as a literal of conditions; None for NULL.

    Spark reads the value, as it reads other texts of the statement. Raises InvalidInputError for
    what is not a literal: its value would be that of the day on which the column was added.
    """
    in_default = tokens(default.text)
    for index, token in enumerate(in_default):
        is_parameter = index > 0 and in_default[index - 1].value == ":"
        if token.kind == WORD and token.value.upper() not in _WORDS and not is_parameter:
            raise InvalidInputError(
                f"DEFAULT {default} is not a literal; write a value such as 1, 'new' or "
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


def shown_default(field: Field) -> str | None:
    """Return the default of new rows as a literal for Spark, or None."""
    if field.write is None:
        return None
    [value] = values_of(default_array(field, field.write, 1))
    match value:
        case float():
            return f"{value!r}D"
        case datetime() if value.tzinfo is not None:
            text = value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
            return f"TIMESTAMP '{text}+00:00'"
    return literal_text(value)
