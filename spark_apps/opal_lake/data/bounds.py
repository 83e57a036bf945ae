"""The least and greatest value of a column in a data file, as commits hold them (FORMAT: bounds).

Bounds may be wider than the values, never narrower. Only top-level atomic columns have bounds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.definition.schema import Atomic, Field, decimal_parts, default_array
from opal_lake.definition.table_spec import TableSpec

Value = bool | int | float | str
Extreme = Value | bytes | Decimal | None  # a value as Arrow gives it
TEXT_LIMIT = 32  # code points of a string, bytes of a binary

_LAST_CODE_POINT, _BEFORE_SURROGATES, _AFTER_SURROGATES = 0x10FFFF, 0xD7FF, 0xE000
_GREATEST_FLOAT = 1.7976931348623157e308
_DAY_US = 86_400_000_000
_JSON_KINDS = frozenset({bool, int, float, str, type(None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of one column in one file; None if unknown, or if all rows are null.

    Decimals are text, binary is lower-case hex, dates are days and timestamps microseconds since
    1970. Floats have no NaN and no infinity: beyond the finite ones a bound is unknown.
    """

    low: Value | None
    high: Value | None
    nulls: int


def bounds_of(
    table: pa.Table, spec: TableSpec, known: Mapping[str, tuple[Extreme, Extreme]] | None = None
) -> dict[int, Bounds]:
    """Return the bounds of the top-level atomic columns, by field id.

    The rows are in physical form. `known` has the least and greatest value by physical name, of
    columns for which a writer computes them anyway: comparing texts again costs a tenth of the
    write.
    """
    extremes = {} if known is None else known
    by_field: dict[int, Bounds] = {}
    for field in spec.schema.fields:
        if not isinstance(field.type, Atomic):
            continue
        column = table.column(field.physical)
        if field.physical in extremes:
            low, high = extremes[field.physical]
        else:
            low, high = _extremes(column)
        # Spark orders NaN after all other values.
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            high = None
        # I12: all values lie within the bounds, and the number of nulls is exact.
        by_field[field.id] = Bounds(
            low=plan_low(low), high=plan_high(high), nulls=column.null_count
        )
    return by_field


def merged_bounds(parts: Sequence[tuple[int, Bounds]], kind: Atomic) -> Bounds:
    """Merge the bounds of a column's parts, each given with its number of rows.

    A merged bound is unknown if that of any part with values is unknown.
    """
    with_values = [bounds for rows, bounds in parts if bounds.nulls < rows]
    lows = [bounds.low for bounds in with_values]
    highs = [bounds.high for bounds in with_values]
    is_decimal = decimal_parts(kind.name) is not None

    def order(bound: Any) -> Any:
        return Decimal(bound) if is_decimal else bound

    low = high = None
    if None not in lows:
        low = min(lows, key=order, default=None)
    if None not in highs:
        high = max(highs, key=order, default=None)
    nulls = sum(bounds.nulls for _, bounds in parts)
    return Bounds(low=low, high=high, nulls=nulls)


def with_unit(bounds: Bounds, field: Field) -> Bounds:
    """Return the bounds of a new file in the form that commits hold.

    Numbers are days if a column was a date before, so microseconds are texts there: a job that
    began before the column was widened still writes days.
    """
    if "date" not in field.earlier:
        return bounds
    low = None if bounds.low is None else str(bounds.low)
    high = None if bounds.high is None else str(bounds.high)
    return replace(bounds, low=low, high=high)


def bounds_now(bounds: Bounds, field: Field) -> Bounds:
    """Return the bounds that a commit holds in the type that the column has now."""
    if "date" not in field.earlier:
        return bounds
    return replace(bounds, low=_microseconds(bounds.low), high=_microseconds(bounds.high))


def bounds_of_absent(field: Field, rows: int) -> Bounds:
    """Return the bounds of a column that was added after its file."""
    initial = field.initial
    if initial is None:
        return Bounds(low=None, high=None, nulls=rows)
    value = _extremes(pa.chunked_array([default_array(field, initial, 1)]))[0]
    return Bounds(low=plan_low(value), high=plan_high(value), nulls=0)


def _microseconds(bound: Value | None) -> int | None:
    """Return a bound of a timestamp that was a date.

    A text is microseconds, a number days.
    """
    match bound:
        case None:
            return None
        case str():
            return int(bound)
    return int(bound) * _DAY_US


def _extremes(column: pa.ChunkedArray) -> tuple[Extreme, Extreme]:
    """Return the least and the greatest value; None if unknown, or if all are null."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_string(kind):
        column = column.cast(pa.binary())  # Spark's strings need not be UTF-8
    extremes = pc.min_max(column)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if pa.types.is_string(kind):
        return _text(low), _text(high)
    return low, high


def _text(value: bytes | None) -> str | None:
    """Return the text of bytes, or None if they are not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def plan_low(value: Extreme) -> Value | None:
    """Return a lower bound for a least value."""
    match value:
        case str():
            return value[:TEXT_LIMIT]
        case bytes():
            return value[:TEXT_LIMIT].hex()
        case float():
            return _low_float(value)
        case Decimal():
            return format(value, "f")
        case _:
            return value


def plan_high(value: Extreme) -> Value | None:
    """Return an upper bound for a greatest value."""
    match value:
        case str() if len(value) > TEXT_LIMIT:
            return next_text(value[:TEXT_LIMIT])
        case bytes() if len(value) > TEXT_LIMIT:
            return _next_bytes(value[:TEXT_LIMIT])
        case bytes():
            return value.hex()
        case float():
            return _high_float(value)
        case Decimal():
            return format(value, "f")
        case _:
            return value


def _low_float(value: float) -> float | None:
    if math.isnan(value) or value == -math.inf:
        return None
    if value == 0:
        return -0.0  # the lesser of the two zeros, in whichever order a reader has them
    return min(value, _GREATEST_FLOAT)


def _high_float(value: float) -> float | None:
    if math.isnan(value) or value == math.inf:
        return None
    if value == 0:
        return 0.0
    return max(value, -_GREATEST_FLOAT)


def next_text(prefix: str) -> str | None:
    """Return the least text after all that begin with a prefix; None if there is none."""
    for end in range(len(prefix), 0, -1):
        code = ord(prefix[end - 1])
        if code < _LAST_CODE_POINT:
            # A surrogate alone cannot be encoded.
            next_code = _AFTER_SURROGATES if code == _BEFORE_SURROGATES else code + 1
            return prefix[: end - 1] + chr(next_code)
    return None


def _next_bytes(prefix: bytes) -> str | None:
    incrementable = prefix.rstrip(b"\xff")
    if not incrementable:
        return None
    last = incrementable[-1] + 1
    return (incrementable[:-1] + bytes([last])).hex()


def bounds_to_json(bounds: Mapping[int, Bounds]) -> dict[str, list[Value | None]]:
    """Encode bounds as `{"field id": [low, high, nulls]}`."""
    data: dict[str, list[Value | None]] = {}
    for number, field_bounds in bounds.items():
        data[str(number)] = [field_bounds.low, field_bounds.high, field_bounds.nulls]
    return data


def bounds_from_json(data: Mapping[str, Any]) -> dict[int, Bounds]:
    """Decode bounds by field id; raise ValueError if they are malformed."""
    by_field: dict[int, Bounds] = {}
    try:
        for number, (low, high, nulls) in data.items():
            by_field[int(number)] = Bounds(low=low, high=high, nulls=nulls)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"bounds are not of the form {{field id: [low, high, nulls]}}: {error}"
        ) from error
    for bounds in by_field.values():
        kinds = {type(bounds.low), type(bounds.high)}
        if not kinds <= _JSON_KINDS or type(bounds.nulls) is not int:
            raise ValueError(f"{bounds!r} are not valid bounds")
    return by_field
