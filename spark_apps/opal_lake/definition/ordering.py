"""The order-preserving 64-bit form of delta and tie-break columns.

An integer is its own form. A decimal has its unscaled value, a date its days and a timestamp its
microseconds since 1970-01-01. A timestamp without zone is read as UTC.
`opal_lake.key_store.entries` decides which of two rows comes first.
"""

import operator
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.definition.schema import Atomic, arrow_type, decimal_parts, type_name
from opal_lake.errors import FormatError, InvalidInputError

INTEGER_TYPES = ("byte", "short", "integer", "long")
_INTEGER_FORMS = (*INTEGER_TYPES, "date", "timestamp", "timestamp_ntz")

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH_UTC, _EPOCH_NAIVE = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_WHOLE = re.compile(r"[+-]?[0-9]+\Z")
_PLAIN_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?\Z")
_DATE = re.compile(r"\d{4}-?\d\d-?\d\d")
_BELOW_MICROSECOND = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1  # of 64 bits
_BEYOND_ALL_TYPES = 1 << 128
_MAX_DIGITS = 40  # more than any column has


def to_order(
    array: "pa.Array | pa.ChunkedArray", kind: Atomic
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the values as int64, with 0 for null, and a mask of the non-null ones.

    The array has Arrow's type for the kind. Dates and timestamps may also come as the integers that
    ORC files hold.
    """
    whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    is_valid = np.asarray(whole.is_valid())
    if decimal_parts(kind.name):
        return _unscaled(whole, kind), is_valid
    return _integers(whole, kind), is_valid


def _integers(array: pa.Array, kind: Atomic) -> npt.NDArray[np.int64]:
    return np.asarray(_logical_integers(array, kind).cast(pa.int64()).fill_null(0))


def _logical_integers(array: pa.Array, kind: Atomic) -> pa.Array:
    """Return dates as days, timestamps as microseconds, and integers unchanged."""
    if pa.types.is_integer(array.type) and kind.name in _INTEGER_FORMS:
        return array
    if pa.types.is_date(array.type) and kind.name == "date":
        return array.cast(pa.date32()).cast(pa.int32())
    if pa.types.is_timestamp(array.type):
        name = "timestamp" if array.type.tz else "timestamp_ntz"
        if kind.name == name:
            return _microseconds(array)
    raise InvalidInputError(
        f"values of type {type_name(array.type)} do not fit a column of type {type_name(kind)}; "
        "cast them before writing"
    )


def _microseconds(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"timestamps do not fit 64-bit microseconds: {error}; truncate them first"
        ) from error


def _unscaled(array: pa.Array, kind: Atomic) -> npt.NDArray[np.int64]:
    parts = decimal_parts(kind.name)
    assert parts is not None
    if not pa.types.is_decimal(array.type):
        raise InvalidInputError(
            f"values of type {type_name(array.type)} do not fit a column of type "
            f"{type_name(kind)}; cast them before writing"
        )
    if array.type != pa.decimal128(*parts):
        array = array.cast(pa.decimal128(*parts))
    if not len(array):
        return np.empty(0, np.int64)
    # A decimal is 128 bits in two's complement: a low word, then a high one. At most 18 digits and
    # the sign fit into the low word.
    _, decimals = array.buffers()
    words = np.frombuffer(decimals, "<i8")
    start, end = 2 * array.offset, 2 * (array.offset + len(array))
    low_words = words[start:end:2]
    return np.where(np.asarray(array.is_valid()), low_words, 0)


def of_order(values: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_], kind: Atomic) -> pa.Array:
    """Return int64 values in Arrow's type of the kind: the inverse of `to_order`."""
    validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())  # Arrow's bitmap
    if parts := decimal_parts(kind.name):
        # 128 bits in two's complement: the high word repeats the sign
        words = np.stack([values, values >> 63], axis=1).astype("<i8")
        buffers = [validity, pa.py_buffer(words.tobytes())]
        return pa.Array.from_buffers(pa.decimal128(*parts), len(values), buffers)
    words = np.where(valid, values, 0)
    buffers = [validity, pa.py_buffer(words.tobytes())]
    integers = pa.Array.from_buffers(pa.int64(), len(values), buffers)
    if kind.name == "date":
        return integers.cast(pa.int32()).cast(pa.date32())
    return integers.cast(arrow_type(kind))


def from_order(value: int, kind: Atomic) -> int | Decimal | date | datetime:
    """Return a value of 64-bit form as a Python value; timestamps have the zone UTC."""
    if parts := decimal_parts(kind.name):
        _, scale = parts
        return Decimal(value).scaleb(-scale)
    try:
        return _FROM_ORDER[kind.name](value)
    except OverflowError as error:
        raise InvalidInputError(
            f"{value} as a {type_name(kind)} is outside the years 1 to 9999 of Python; "
            "use the number instead"
        ) from error
    except KeyError as error:
        raise FormatError(
            f"type {type_name(kind)} has no order of 64 bits; "
            "delta and tie-break columns cannot have it"
        ) from error


def _date_of(days: int) -> date:
    try:
        return date.fromordinal(days + _EPOCH_DAY)
    except ValueError as error:
        raise OverflowError from error


_FROM_ORDER: dict[str, Callable[[int], int | date | datetime]] = {
    **dict.fromkeys(INTEGER_TYPES, int),
    "date": _date_of,
    "timestamp": lambda value: _EPOCH_UTC + value * _MICROSECOND,
    "timestamp_ntz": lambda value: _EPOCH_NAIVE + value * _MICROSECOND,
}


def encode_order(value: Any, kind: Atomic, *, name: str) -> int:
    """Return a user's value for column `name` in the column's 64-bit form.

    The value is a number, a date, a datetime or a text of one. Nothing is guessed or rounded.
    """
    if value is None or isinstance(value, bool | float):
        raise InvalidInputError(
            f"{name}: {value!r} is not a valid {type_name(kind)}; "
            f"give {_WANTED.get(kind.name, 'a Decimal, an int or its digits')}"
        )
    if parts := decimal_parts(kind.name):
        encoded = exact_unscaled(value, parts[1], name=name)
    elif kind.name in INTEGER_TYPES:
        encoded = exact_unscaled(value, 0, name=name)
    elif kind.name == "date":
        encoded = _encode_date(value, name)
    elif kind.name in ("timestamp", "timestamp_ntz"):
        encoded = _encode_datetime(value, kind.name, name)
    else:
        raise InvalidInputError(
            f"{name}: type {type_name(kind)} has no order of 64 bits; "
            "choose an integer, decimal, date or timestamp column"
        )
    if not _LEAST <= encoded <= _GREATEST:
        least, most = from_order(_LEAST, kind), from_order(_GREATEST, kind)
        raise InvalidInputError(
            f"{name}: {value!r} is outside 64 bits; give a value between {least} and {most}"
        )
    return encoded


_WANTED = {
    **dict.fromkeys(INTEGER_TYPES, "an int or its digits"),
    "date": "a date, or its text such as '2026-01-31'",
    "timestamp": (
        "a datetime with a zone, or its ISO 8601 text such as '2026-01-31T12:00:00+00:00'"
    ),
    "timestamp_ntz": (
        "a datetime without a zone, or its ISO 8601 text such as '2026-01-31T12:00:00'"
    ),
}


def exact_unscaled(value: Any, scale: int, *, name: str) -> int:
    """Return a user's number in units of the last decimal place.

    Raises InvalidInputError for a number with more decimal places.
    """
    number = _number_of(value, scale, name)
    try:
        scaled = number.scaleb(scale, _EXACT)
        unscaled = scaled.to_integral_value(context=_EXACT)
    except (Inexact, InvalidOperation):
        raise InvalidInputError(
            f"{name}: {value!r} has more digits than any column; give at most 38"
        ) from None
    if unscaled != scaled:
        raise InvalidInputError(
            f"{name}: {value!r} is finer than the column, which has {scale} decimal places; "
            "round it"
        )
    if unscaled.adjusted() >= _MAX_DIGITS:
        # The caller refuses a number of this size. As an int, 1E+999999999 would fill the memory
        return _BEYOND_ALL_TYPES
    return int(unscaled)


def _number_of(value: Any, scale: int, name: str) -> Decimal:
    # A float is never accepted: its digits are not those that the user wrote
    if isinstance(value, str):
        pattern = _PLAIN_DECIMAL if scale else _WHOLE
        if pattern.match(value):
            return Decimal(value)
    elif isinstance(value, Decimal):
        if value.is_finite():
            return value
    elif isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return Decimal(operator.index(value))
    example = "12.5" if scale else "12"
    raise InvalidInputError(
        f"{name}: {value!r} is not a number that the column accepts; "
        f"give an int, a Decimal or plain digits such as {example!r}"
    )


def _encode_date(value: Any, name: str) -> int:
    if isinstance(value, datetime):
        raise InvalidInputError(
            f"{name}: {value!r} has a time of day, but the column holds dates; give value.date()"
        )
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError as error:
            raise InvalidInputError(
                f"{name}: {value!r} is not a date; write {_WANTED['date']}"
            ) from error
    if not isinstance(value, date):
        raise InvalidInputError(f"{name}: {value!r} is not a date; give {_WANTED['date']}")
    return value.toordinal() - _EPOCH_DAY


def _encode_datetime(value: Any, kind: str, name: str) -> int:
    moment = _datetime_of(value, kind, name)
    if getattr(moment, "nanosecond", 0):  # only a Timestamp of pandas has it
        raise InvalidInputError(f"{name}: {value!r} is finer than a microsecond; round it")
    has_zone = moment.utcoffset() is not None
    if has_zone and kind == "timestamp_ntz":
        raise InvalidInputError(
            f"{name}: {value!r} has a zone, but the column has none; give {_WANTED[kind]}"
        )
    if not has_zone and kind == "timestamp":
        raise InvalidInputError(
            f"{name}: {value!r} has no zone, so it is not a moment; give {_WANTED[kind]}"
        )
    epoch = _EPOCH_UTC if has_zone else _EPOCH_NAIVE
    # Not `moment - epoch`: subclasses such as pendulum's return their own intervals
    return datetime.__sub__(moment, epoch) // _MICROSECOND


def _datetime_of(value: Any, kind: str, name: str) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        raise InvalidInputError(
            f"{name}: {value!r} is a date, but the column holds timestamps; give {_WANTED[kind]}"
        )
    if not isinstance(value, str):
        raise InvalidInputError(f"{name}: {value!r} is not a timestamp; give {_WANTED[kind]}")
    if _DATE.fullmatch(value):
        raise InvalidInputError(f"{name}: {value!r} has no time of day; write {_WANTED[kind]}")
    if _BELOW_MICROSECOND.search(value):
        raise InvalidInputError(f"{name}: {value!r} is finer than a microsecond; round it")
    try:
        return datetime.fromisoformat(value)
    except ValueError as error:
        raise InvalidInputError(
            f"{name}: {value!r} is not a timestamp; write {_WANTED[kind]}"
        ) from error
