"""Expressions: texts such as `amount * 2` that give a column its new values."""

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.definition.conditions.condition import GUARD
from opal_lake.definition.conditions.evaluate import evaluate_value
from opal_lake.definition.conditions.faults import FaultError, Use, invalid, quote
from opal_lake.definition.conditions.kinds import NESTED, Kind
from opal_lake.definition.conditions.nodes import Constant, Read, Typed, all_of
from opal_lake.definition.conditions.parser import parse_text
from opal_lake.definition.conditions.tree import Literal, Value
from opal_lake.definition.conditions.typing import Columns, bind_value
from opal_lake.definition.schema import Atomic, Field, arrow_type, type_name
from opal_lake.errors import InvalidInputError

VALUE = Use(
    name="the expression",
    instead="run the statement on Spark, or compute the value as a column of the source",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression over the columns of rows, converted to the type of a column.

    `typed` is None for NULL, which has no type of its own.
    """

    text: str
    target: Field
    typed: Typed | None

    @property
    def column_names(self) -> list[str]:
        """The top-level columns that the expression reads."""
        if self.typed is None:
            return []
        names = [node.path[0] for node in all_of(self.typed) if isinstance(node, Read)]
        return list(dict.fromkeys(names))

    def values(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the value for each row, in the type of the target column.

        Raises InvalidInputError for a value that the column cannot hold.
        """
        kind = arrow_type(self.target.type)
        if self.typed is None:
            return pa.chunked_array([pa.nulls(rows.num_rows, kind)])
        chunks = []
        for batch in rows.to_batches():
            array, failed = evaluate_value(self.typed, batch)
            if failed is not None and pc.any(failed).as_py():
                raise InvalidInputError(
                    f"{VALUE.name} {quote(self.text)} divides by zero in some row; {GUARD}"
                )
            chunks.append(self._converted(array, kind))
        return pa.chunked_array(chunks, kind)

    def _converted(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        try:
            converted = array.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._misfit(str(error)) from error
        if pa.types.is_float32(kind) and pa.types.is_float64(array.type):
            # A cast of 1e300 gives infinity
            is_lost = pc.and_(pc.is_inf(converted), pc.invert(pc.is_inf(array)))
            if pc.any(is_lost).as_py():
                largest = pc.max(pc.abs(array.filter(is_lost))).as_py()
                raise self._misfit(f"{largest!r} is out of range")
        return converted

    def _misfit(self, reason: str) -> InvalidInputError:
        return InvalidInputError(
            f"{VALUE.name} {quote(self.text)} has a value that column {self.target.name!r} "
            f"of type {type_name(self.target.type)} cannot hold: {reason}"
        )


def expression(given: object, target: Field, columns: Columns) -> Expression:
    """Parse an expression for a column and bind it to the columns of rows.

    `given` is a text, or a Python value that is not a text. Raises InvalidInputError for a fault,
    and for a type that does not fit the column.
    """
    text = given if isinstance(given, str) else repr(given)
    try:
        tree = parse_text(given, VALUE) if isinstance(given, str) else _literal(given)
        if isinstance(tree, Literal) and tree.value is None:
            return Expression(text=text, target=target, typed=None)
        typed = bind_value(tree, columns)
        _check_fits(typed, target)
    except FaultError as fault:
        if not isinstance(given, str):
            raise InvalidInputError(f"{VALUE.name} {text}: {fault.text}") from None
        raise invalid(VALUE, text, fault) from None
    return Expression(text=text, target=target, typed=typed)


def _literal(value: object) -> Literal:
    if value is None or isinstance(value, Value):
        return Literal(value=value)
    raise FaultError(
        0, f"a value of type {type(value).__name__} is not a literal; give an expression as text"
    )


def _check_fits(typed: Typed, target: Field) -> None:
    """Raise FaultError for an expression whose type does not convert to a column's."""
    if not isinstance(target.type, Atomic):
        if isinstance(typed, Read) and typed.kind == NESTED:
            return
        raise _misfit(typed, target)
    wanted = Kind(name="decimal") if target.type.name.startswith("decimal") else None
    is_same = typed.kind.name == (wanted or Kind(name=target.type.name)).name
    are_numbers = typed.kind.is_number and (wanted is not None or target.type.name in _NUMBERS)
    is_day_as_time = typed.kind.name == "date" and target.type.name == "timestamp_ntz"
    if not (is_same or are_numbers or is_day_as_time):
        raise _misfit(typed, target)


_NUMBERS = ("byte", "short", "integer", "long", "float", "double")


def _misfit(typed: Typed, target: Field) -> FaultError:
    what = f"a value of type {typed.kind.shown}"
    if isinstance(typed, Constant):
        what = f"the {typed.kind.shown} {typed.value!r}"
    advice = "write a value of that type"
    if isinstance(typed, Constant) and isinstance(typed.value, datetime):
        wants_zone = target.type == Atomic(name="timestamp")
        has_zone = typed.value.tzinfo is not None
        if wants_zone and not has_zone:
            advice = "give it a time zone, such as tzinfo=UTC"
    return FaultError(
        0,
        f"{what} does not fit column {target.name!r} of type {type_name(target.type)}; {advice}",
    )
