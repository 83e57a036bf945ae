"""Arrow values for display and for JSON, including values that Python cannot express."""

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from opal_lake.definition.schema import type_name

# The calendar repeats after 400 years: a year out of Python's range has an equal one within it.
_CYCLE_YEARS, _CYCLE = 400, timedelta(days=146_097)
_FIRST_YEAR = 2000
_SINCE_EPOCH = datetime(_FIRST_YEAR, 1, 1) - datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def values_of(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return Python values, or texts for values that Python cannot express.

    A time whose year Python does not have becomes ISO 8601 text. In a text that is not UTF-8, wrong
    bytes become U+FFFD.
    """
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_value_of(value) for value in column]


def _value_of(scalar: pa.Scalar) -> Any:
    """Return a Python value, or the closest text."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        pass
    kind = scalar.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return scalar.as_buffer().to_pybytes().decode(errors="replace")
    if pa.types.is_date32(kind):
        microseconds = scalar.value * timedelta(days=1) // _MICROSECOND
        return _iso_text(microseconds).removesuffix("T00:00:00")
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        zone = "" if kind.tz is None else "+00:00"
        return _iso_text(scalar.value) + zone
    if pa.types.is_struct(kind):
        members: dict[str, Any] = {}
        for position in range(kind.num_fields):
            members[kind.field(position).name] = _value_of(scalar[position])
        return members
    if pa.types.is_map(kind):
        pairs = zip(scalar.values.field(0), scalar.values.field(1), strict=True)
        return [(_value_of(key), _value_of(value)) for key, value in pairs]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return values_of(scalar.values)
    return f"a {type_name(kind)} that cannot be shown"


def _iso_text(microseconds: int) -> str:
    """Return a time in ISO 8601, of any year."""
    since_first_year = microseconds - _SINCE_EPOCH // _MICROSECOND
    cycles, in_cycle = divmod(since_first_year, _CYCLE // _MICROSECOND)
    in_range = datetime(_FIRST_YEAR, 1, 1) + in_cycle * _MICROSECOND
    year = in_range.year + cycles * _CYCLE_YEARS
    width = 4 if year >= 0 else 5  # with the sign
    return f"{year:0{width}d}" + in_range.isoformat()[4:]
