"""Arrow values for display and for JSON, including values that Python cannot express."""

import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from opal_lake.definition.schema import type_name

# The calendar repeats after 400 years: a year out of Python's range has an equal one within it.
_CYCLE_YEARS, _CYCLE = 400, timedelta(days=146_097)
_FIRST_YEAR = 2000
_SINCE_EPOCH = datetime(_FIRST_YEAR, 1, 1) - datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
# Rejected rows have the Arrow types of their source, among them lists that no column has
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


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
    if _is_list(kind):
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


def json_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as JSON holds them: values that JSON lacks become text, unrounded."""
    columns: list[list[Any]] = []
    for column in table.columns:
        as_json = json_function(column.type)
        columns.append([as_json(value) for value in values_of(column)])
    names = table.column_names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_function(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that makes values of JSON from those of an Arrow type.

    The type decides, since a map and a list without entries are equal as values of Python.
    """
    if pa.types.is_map(kind):
        return _map_function(kind)
    if pa.types.is_struct(kind):
        return _struct_function(kind)
    if pa.types.is_dictionary(kind):
        return json_function(kind.value_type)
    if _is_list(kind):
        member = json_function(kind.value_type)
        return lambda values: None if values is None else [member(value) for value in values]
    return plain_json_value


def _is_list(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _LISTS)


def _map_function(kind: pa.MapType) -> Callable[[Any], Any]:
    """Return the function that makes a JSON object of a map, which Arrow has as pairs.

    An object would lose pairs of equal keys, so such a map becomes a list of pairs.
    """
    key_function, item_function = json_function(kind.key_type), json_function(kind.item_type)

    def json_object(pairs: Any) -> dict[str, Any] | list[list[Any]] | None:
        if pairs is None:
            return None
        converted = [(key_function(key), item_function(item)) for key, item in pairs]
        members = {str(key): item for key, item in converted}
        if len(members) < len(converted):
            return [[key, item] for key, item in converted]
        return members

    return json_object


def _struct_function(kind: pa.StructType) -> Callable[[Any], Any]:
    """Return the function that makes a JSON object of a struct."""
    functions = {field.name: json_function(field.type) for field in kind}

    def json_object(members: Any) -> dict[str, Any] | None:
        if members is None:
            return None
        return {name: function(members[name]) for name, function in functions.items()}

    return json_object


def plain_json_value(value: Any) -> Any:
    """Return a value without members as JSON holds it.

    Timestamps become ISO 8601, in UTC whatever the session's zone. Decimals become text with all
    their digits, and bytes become hex.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")  # str() gives 0E-10 for a zero of ten places
        case bytes():
            return value.hex()
    return str(value)
