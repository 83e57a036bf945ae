"""Which data files cannot hold a row that a filter asks for; `opal_lake.read.read` asks it of every file.

`may_match` errs to one side only: it may keep a file in vain, it never drops one that holds a matching row. A row matches when the filter
is true for it; null and false are the same here, which is why the tree knows no Not: whoever builds it turns it inwards.
"""

import math
import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from opal_lake.data.bounds import Bounds, Value, next_text
from opal_lake.spec.schema import Atomic, Field, decimal_parts

Operator = Literal["=", "!=", "<", "<=", ">", ">="]
Given = bool | int | float | str | bytes | Decimal | date | datetime
Comparable = Value | Decimal

_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


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


def compare(field: Field, op: Operator, value: Given) -> Predicate:
    """A comparison, or Unknown when the value is not exactly one of the column's type."""
    exact = exact_value(field, value)
    return Unknown() if exact is None else Compare(field_id=field.id, op=op, value=exact)


def among(field: Field, values: list[Given]) -> Predicate:
    """Membership, or Unknown when some value is not exactly one of the column's type."""
    exact = [exact_value(field, value) for value in values]
    return (
        Unknown()
        if None in exact
        else In(field_id=field.id, values=tuple(value for value in exact if value is not None))
    )


def begins_with(field: Field, prefix: str, *, negated: bool = False) -> Predicate:
    """The column's text begins so, or, negated, does not."""
    if not (isinstance(field.type, Atomic) and field.type.name == "string"):
        return Unknown()
    beyond = next_text(prefix)
    lower = Compare(field_id=field.id, op="<" if negated else ">=", value=prefix)
    if beyond is None:
        return lower
    upper = Compare(field_id=field.id, op=">=" if negated else "<", value=beyond)
    return Or(parts=(lower, upper)) if negated else And(parts=(lower, upper))


def exact_value(field: Field, value: Given) -> Comparable | None:
    """The value in the form that bounds of the column have; None where it is not exactly one of the column's type."""
    if not isinstance(field.type, Atomic):
        return None
    name = field.type.name
    if parts := decimal_parts(name):
        return _exact_decimal(value, *parts)
    if name in _INTEGER_BITS:
        return _exact_integer(value, _INTEGER_BITS[name])
    if name in ("float", "double"):
        return _exact_float(value, bits=32 if name == "float" else 64)
    return _exact_other(name, value)


def _exact_other(name: str, value: Given) -> Comparable | None:
    match name, value:
        case "boolean", bool():
            return value
        case "string", str():
            return value
        case "binary", bytes():
            return value.hex()
        case (("timestamp" | "timestamp_ntz"), datetime()):
            return _microseconds(value, zoned=name == "timestamp")
        case "date", date() if not isinstance(value, datetime):
            return value.toordinal() - _EPOCH.toordinal()
    return None


def _microseconds(value: datetime, *, zoned: bool) -> int | None:
    """Instants are for columns with a zone, wall-clock times for those without; which instant a wall-clock time is, its session knows."""
    offset = value.utcoffset()
    if (offset is not None) != zoned:
        return None
    return (value.replace(tzinfo=None) - (offset or timedelta()) - _EPOCH) // _MICROSECOND


def _exact_integer(value: Given, bits: int) -> int | None:
    exact = _exact_decimal(value, precision=19, scale=0)  # 19 digits hold 64 bits
    return (
        int(exact) if exact is not None and -(1 << (bits - 1)) <= exact < 1 << (bits - 1) else None
    )


def _exact_decimal(value: Given, precision: int, scale: int) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    exact = Decimal(value)
    _, digits, exponent = exact.as_tuple()
    if not isinstance(exponent, int):  # NaN, infinity
        return None
    unscaled = int("".join(map(str, digits)) or "0")
    if exponent + scale < 0:
        rest = 10 ** -(exponent + scale)
        return exact if unscaled % rest == 0 and unscaled // rest < 10**precision else None
    return (
        exact
        if exponent + scale <= precision and unscaled * 10 ** (exponent + scale) < 10**precision
        else None
    )


def _exact_float(value: Given, bits: int) -> float | None:
    """Spark turns an integer into the column's type, and compares with a decimal or a double as doubles."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
        (same,) = struct.unpack(
            "f" if bits == 32 else "d", struct.pack("f" if bits == 32 else "d", number)
        )
    except OverflowError:
        return None
    exact = not isinstance(value, int) or same == value
    return number if exact and math.isfinite(number) else None


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
