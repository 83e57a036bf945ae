"""Values of the parameters in a statement: `:name` or `?`, for each piece of its text."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark.spark_sql.lexer import tokens
from opal_spark.spark_sql.statements import Slice

Given = dict[str, Any] | list[Any] | None


@dataclass(frozen=True)
class Arguments:
    """The values of a statement's parameters.

    Spark numbers the `?` of a text, so that a piece of a text needs a part of the list.
    """

    given: Given
    text: Slice

    def __post_init__(self) -> None:
        if not isinstance(self.given, dict | list | None):
            raise InvalidInputError(
                f"args is a {type(self.given).__name__}; pass a dict for parameters such as :name, "
                "or a list for parameters that are written as ?"
            )

    def of(self, piece: Slice, without: Iterable[Slice] = ()) -> Given:
        """Return the values for a piece of the statement, from which spans are left out."""
        if not isinstance(self.given, list):
            return self.given
        left_out = list(without)
        values = []
        for value, offset in zip(self.given, self._marks, strict=False):
            is_inside = _contains(piece, offset)
            if is_inside and not any(_contains(span, offset) for span in left_out):
                values.append(value)
        # Spark reports a missing value; one that no `?` takes is a mistake as well
        surplus = self.given[len(self._marks) :]
        if surplus:
            raise InvalidInputError(
                f"args has {len(self.given)} values, and the statement has {len(self._marks)} "
                "parameters; give a value for each ?"
            )
        return values or None

    def has_parameter(self, piece: Slice) -> bool:
        """Return whether a piece of the statement may have a parameter."""
        if not self.given:
            return False
        return "?" in piece.text or ":" in piece.text

    @cached_property
    def _marks(self) -> list[int]:
        """The offset of each `?`."""
        text, start = self.text.text, self.text.offset
        return [token.start + start for token in tokens(text) if token.value == "?"]


def _contains(piece: Slice, offset: int) -> bool:
    return piece.offset <= offset < piece.end


def constant(spark: SparkSession, expression: Slice, args: Arguments, kind: str = "") -> Any:
    """Return the value of a constant expression, as Spark computes it.

    With `kind`, a type of SQL, the value is cast to it.
    """
    # The line break ends a comment at the end of the expression
    text = f"({expression.text}\n)"
    if kind:
        text = f"CAST({text} AS {kind})"
    row = spark.sql(f"SELECT {text} AS value", args.of(expression)).head()
    assert row is not None
    return row[0]
