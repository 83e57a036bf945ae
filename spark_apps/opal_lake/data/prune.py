"""Which data files cannot hold a row that a filter asks for; `opal_lake.read.read` asks it of every file.

`may_match` errs to one side only: it may keep a file in vain, it never drops one that holds a matching row. A row matches when the filter
is true for it; null and false are the same here, which is why the tree knows no Not: `condition_bounds`, which builds it, turns it inwards.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from opal_lake.data.bounds import Bounds, Value

Operator = Literal["=", "!=", "<", "<=", ">", ">="]
Comparable = Value | Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class And:
    """True when every part is."""

    parts: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Or:
    """True when some part is."""

    parts: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Column against value, both in the form that bounds have; decimals as Decimal."""

    field_id: int
    op: Operator
    value: Comparable


@dataclass(frozen=True, slots=True, kw_only=True)
class In:
    """The column is one of the values."""

    field_id: int
    values: tuple[Comparable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull:
    """The column is null, or, negated, is not."""

    field_id: int
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Anything that bounds say nothing about."""


Predicate = And | Or | Compare | In | IsNull | Unknown


def may_match(predicate: Predicate, bounds: Mapping[int, Bounds], rows: int) -> bool:
    """Whether a file of so many rows, with these bounds, may hold a row for which the predicate is true."""
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
            return bounds[number].nulls < rows if negated else bounds[number].nulls > 0
        case Compare(field_id=number, op=op, value=value):
            return bounds[number].nulls < rows and _may_compare(op, value, bounds[number])
        case In(field_id=number, values=values):
            return bounds[number].nulls < rows and any(
                _may_compare("=", value, bounds[number]) for value in values
            )


def may_hold_any(values: Sequence[Comparable], bounds: Bounds) -> bool:
    """Return whether a column with these bounds may hold one of some values, which ascend."""
    if not values:
        return False
    low, high = _like(bounds.low, values[0]), _like(bounds.high, values[0])
    first = 0 if low is None else bisect_left(values, low)
    return first < len(values) and (high is None or values[first] <= high)


def _may_compare(op: Operator, value: Any, bounds: Bounds) -> bool:
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
    """The bound as something that compares with the value."""
    return Decimal(str(bound)) if bound is not None and isinstance(value, Decimal) else bound
