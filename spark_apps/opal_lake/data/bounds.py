"""The least and greatest value of a column in a data file, as the commit log holds them (FORMAT: bounds).

Bounds may be wider than the truth, never narrower. Only top-level columns without parts have them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.definition.schema import Atomic, decimal_parts
from opal_lake.definition.table_spec import TableSpec

Value = bool | int | float | str
Extreme = Value | bytes | Decimal | None  # a value as Arrow gives it
TEXT_LIMIT = 32  # code points of a string, bytes of a binary

_LAST_CODE_POINT, _BEFORE_SURROGATES, _AFTER_SURROGATES = 0x10FFFF, 0xD7FF, 0xE000
_GREATEST_FLOAT = 1.7976931348623157e308


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one column in one file. None is 'unknown', or 'no value' where all rows are null.

    Decimals are text, binary is lower-case hex, dates are days and timestamps microseconds since 1970. Floats know no NaN and no infinity:
    beyond the finite ones a bound is unknown.
    """

    low: Value | None
    high: Value | None
    nulls: int


def bounds_of(
    table: pa.Table, spec: TableSpec, known: Mapping[str, tuple[Extreme, Extreme]] | None = None
) -> dict[int, Bounds]:
    """The bounds of every top-level atomic column of rows in physical form, by field id.

    `known` holds the extremes of string and binary columns that a writer computes anyway: comparing texts again costs a tenth of the write.
    """
    by_field = {}
    for field in spec.schema.fields:
        if isinstance(field.type, Atomic):
            column = table.column(field.physical)
            low, high = (known or {}).get(field.physical) or _extremes(column)
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                high = None  # Spark holds NaN for the greatest of all
            by_field[field.id] = Bounds(
                low=plan_low(low), high=plan_high(high), nulls=column.null_count
            )
    return by_field


def merged_bounds(parts: Sequence[tuple[int, Bounds]], kind: Atomic) -> Bounds:
    """Of a column whose rows come in parts: how many rows each has, and its bounds."""
    filled = [bounds for rows, bounds in parts if bounds.nulls < rows]
    lows, highs = [bounds.low for bounds in filled], [bounds.high for bounds in filled]
    order: Callable[[Any], Any] = Decimal if decimal_parts(kind.name) else lambda bound: bound
    return Bounds(
        low=None if None in lows else min(lows, key=order, default=None),
        high=None if None in highs else max(highs, key=order, default=None),
        nulls=sum(bounds.nulls for _, bounds in parts),
    )


def _extremes(column: pa.ChunkedArray) -> tuple[Extreme, Extreme]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_string(kind):
        column = column.cast(pa.binary())  # Spark's strings need not be UTF-8
    pair = pc.min_max(column)
    low, high = pair["min"].as_py(), pair["max"].as_py()
    return (_text(low), _text(high)) if pa.types.is_string(kind) else (low, high)


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def plan_low(value: Extreme) -> Value | None:
    """The least value as a lower bound."""
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
    """The greatest value as an upper bound."""
    match value:
        case str():
            return value if len(value) <= TEXT_LIMIT else next_text(value[:TEXT_LIMIT])
        case bytes():
            return value.hex() if len(value) <= TEXT_LIMIT else _next_bytes(value[:TEXT_LIMIT])
        case float():
            return _high_float(value)
        case Decimal():
            return format(value, "f")
        case _:
            return value


def _low_float(value: float) -> float | None:
    if math.isnan(value) or value == -math.inf:
        return None
    return min(value, _GREATEST_FLOAT) if value else -0.0


def _high_float(value: float) -> float | None:
    if math.isnan(value) or value == math.inf:
        return None
    return max(value, -_GREATEST_FLOAT) if value else 0.0


def next_text(prefix: str) -> str | None:
    """The least text that is greater than all that begin with the prefix; None where there is none."""
    for end in range(len(prefix), 0, -1):
        code = ord(prefix[end - 1])
        if code < _LAST_CODE_POINT:
            return prefix[: end - 1] + chr(
                _AFTER_SURROGATES if code == _BEFORE_SURROGATES else code + 1
            )
    return None


def _next_bytes(prefix: bytes) -> str | None:
    kept = prefix.rstrip(b"\xff")
    return (kept[:-1] + bytes([kept[-1] + 1])).hex() if kept else None


def bounds_to_json(bounds: Mapping[int, Bounds]) -> dict[str, list[Value | None]]:
    """`{"field id": [low, high, nulls]}`."""
    return {
        str(number): [field_bounds.low, field_bounds.high, field_bounds.nulls]
        for number, field_bounds in bounds.items()
    }


def bounds_from_json(data: Mapping[str, Any]) -> dict[int, Bounds]:
    try:
        by_field = {
            int(number): Bounds(low=low, high=high, nulls=nulls)
            for number, (low, high, nulls) in data.items()
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"bounds are not of the form {{field id: [low, high, nulls]}}: {error}"
        ) from error
    for bounds in by_field.values():
        if (
            type(bounds.low) not in _JSON_KINDS
            or type(bounds.high) not in _JSON_KINDS
            or type(bounds.nulls) is not int
        ):
            raise ValueError(f"{bounds!r} are no bounds")
    return by_field


_JSON_KINDS = frozenset({bool, int, float, str, type(None)})
