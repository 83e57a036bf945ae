"""The choice of data files that may hold a row for which a filter is true.

`may_match` may keep a file without such a row, but never drops a file that holds one. A predicate
is a tree without Not, because a filter that is null hides a row as a false one does.
`condition_bounds` builds the tree and moves negations to its leaves.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.bounds import Bounds, Value

Operator = Literal["=", "!=", "<", "<=", ">", ">="]
Comparable = Value | Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class And:
    """A predicate that is true when every part is."""

    parts: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Or:
    """A predicate that is true when some part is."""

    parts: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """A comparison of a column with a value, which has the form of bounds.

    Decimals are Decimal objects.
    """

    field_id: int
    op: Operator
    value: Comparable


@dataclass(frozen=True, slots=True, kw_only=True)
class In:
    """A predicate that is true when the column is one of the values."""

    field_id: int
    values: tuple[Comparable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull:
    """A predicate that is true when the column is null or, if negated, when it is not."""

    field_id: int
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A predicate that bounds say nothing about."""


Predicate = And | Or | Compare | In | IsNull | Unknown


def may_match(predicate: Predicate, bounds: Mapping[int, Bounds], rows: int) -> bool:
    """Return whether a file with these bounds may hold a matching row."""
    if rows == 0:
        return False
    match predicate:
        case And(parts=parts):
            return all(may_match(part, bounds, rows) for part in parts)
        case Or(parts=parts):
            return any(may_match(part, bounds, rows) for part in parts)
        case Unknown():
            return True
        case Compare(field_id=number) | In(field_id=number) | IsNull(field_id=number) if (
            number not in bounds
        ):
            return True
        case IsNull(field_id=number, negated=negated):
            nulls = bounds[number].nulls
            return nulls < rows if negated else nulls > 0
        case Compare(field_id=number, op=op, value=value):
            # The comparison of null is not true.
            return bounds[number].nulls < rows and _may_compare(op, value, bounds[number])
        case In(field_id=number, values=values):
            if bounds[number].nulls >= rows:
                return False
            return any(_may_compare("=", value, bounds[number]) for value in values)


def may_hold_any(values: Sequence[Comparable], bounds: Bounds) -> bool:
    """Return whether a column with these bounds may hold one of the ascending values."""
    if not values:
        return False
    low, high = _like(bounds.low, values[0]), _like(bounds.high, values[0])
    first = 0 if low is None else bisect_left(values, low)
    if first == len(values):
        return False
    return high is None or values[first] <= high


def ascending_values(column: pa.ChunkedArray) -> tuple[Comparable, ...] | None:
    """Return the distinct values, ascending, in the form of bounds; None without one."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    try:
        values = pc.unique(column).to_pylist()
    except UnicodeDecodeError:
        return None  # Spark's strings need not be UTF-8
    if pa.types.is_binary(column.type):
        values = [value.hex() for value in values]
    return tuple(sorted(values))


def _may_compare(op: Operator, value: Any, bounds: Bounds) -> bool:
    """Return whether a value within the bounds may compare so with `value`."""
    low, high = _like(bounds.low, value), _like(bounds.high, value)
    above_low = low is None or low < value
    below_high = high is None or value < high
    match op:
        case "<":
            return above_low
        case "<=":
            return above_low or low == value
        case ">":
            return below_high
        case ">=":
            return below_high or high == value
        case "=":
            return (above_low or low == value) and (below_high or high == value)
        case "!=":
            return not (low == high == value)


def _like(bound: Value | None, value: Any) -> Any:
    """Return a bound as the type of the value: bounds of decimals are texts."""
    if bound is not None and isinstance(value, Decimal):
        return Decimal(str(bound))
    return bound
