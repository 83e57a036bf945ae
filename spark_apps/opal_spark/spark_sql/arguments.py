"""Values of the parameters in a statement: `:name` or `?`, for each piece of its text."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.sql.lexer import WORD, Token, tokens
from opal_lake.sql.statements import Slice

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
        if len(self.given) != len(self._marks):
            raise InvalidInputError(
                f"args has {len(self.given)} values, and the statement has {len(self._marks)} "
                "parameters; give a value for each ?"
            )
        left_out = list(without)
        values = []
        for value, offset in zip(self.given, self._marks, strict=True):
            is_inside = _contains(piece, offset)
            if is_inside and not any(_contains(span, offset) for span in left_out):
                values.append(value)
        return values or None

    def has_parameter(self, piece: Slice) -> bool:
        """Return whether a piece of the statement may have a parameter."""
        if not self.given:
            return False
        return "?" in piece.text or ":" in piece.text

    def with_literals(self, piece: Slice) -> str | None:
        """Return a piece with literals in place of its parameters, to prune files by it.

        None if a value has no literal that every language reads alike.
        """
        if not self.has_parameter(piece):
            return piece.text
        parts = []
        position = 0
        in_piece = tokens(piece.text)
        values = iter(self.of(piece) or []) if isinstance(self.given, list) else iter(())
        for token, following in pairwise(in_piece):
            if token.value == "?":
                literal, end = _literal(next(values, None)), token.end
            elif token.value == ":":
                literal, end = self._named_literal(piece, following), following.end
            else:
                continue
            if literal is None:
                return None
            parts += [piece.text[position : token.start], literal]
            position = end
        return "".join([*parts, piece.text[position:]])

    def _named_literal(self, piece: Slice, name: Token) -> str | None:
        if name.kind != WORD or not isinstance(self.given, dict):
            return None
        return _literal(self.given.get(piece.text[name.start : name.end]))

    @cached_property
    def _marks(self) -> list[int]:
        """The offset of each `?`."""
        text, start = self.text.text, self.text.offset
        return [token.start + start for token in tokens(text) if token.value == "?"]


def _contains(piece: Slice, offset: int) -> bool:
    return piece.offset <= offset < piece.end


def _literal(value: object) -> str | None:
    """Return a value as a literal of SQL, if it needs no escape and has no time zone."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, str) and not any(mark in value for mark in "'\"\\$"):
        return f"'{value}'"
    return None


def constant(spark: SparkSession, expression: Slice, args: Arguments, form: str = "{}") -> Any:
    """Return the value of a constant expression, as Spark computes it.

    `form` is an expression around it, such as `CAST({} AS DATE)`.
    """
    before, after = form.split("{}")
    # The line break ends a comment at the end of the expression
    text = f"SELECT {before}({expression.text}\n){after} AS value"
    row = spark.sql(text, args.of(expression)).head()
    assert row is not None
    return row[0]
