"""The order-preserving 64-bit form of delta and tie-break columns.

Integers are themselves, decimals their unscaled value, dates days and timestamps microseconds since 1970-01-01. A timestamp without zone
counts as if its wall clock stood in UTC: zones never enter. Which of two rows comes first: `opal_lake.key_store.entries`.
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

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH_UTC, _EPOCH_NAIVE = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_WHOLE = re.compile(r"[+-]?[0-9]+\Z")
_PLAIN_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?\Z")
_DATE = re.compile(r"\d{4}-?\d\d-?\d\d")
_BELOW_MICROSECOND = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])


def to_order(
    array: "pa.Array | pa.ChunkedArray", kind: Atomic
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The values as int64 (0 where null) and which of them are there.

    Takes what Arrow calls the type, and the integers that stand for dates and timestamps in ORC files.
    """
    whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    valid = np.asarray(whole.is_valid())
    values = _unscaled(whole, kind) if decimal_parts(kind.name) else _integers(whole, kind)
    return values, valid


def _integers(array: pa.Array, kind: Atomic) -> npt.NDArray[np.int64]:
    return np.asarray(_logical_integers(array, kind).cast(pa.int64()).fill_null(0))


def _logical_integers(array: pa.Array, kind: Atomic) -> pa.Array:
    """Dates as int32 days, timestamps as int64 microseconds, integers as they come."""
    if pa.types.is_integer(array.type) and kind.name in (
        *INTEGER_TYPES,
        "date",
        "timestamp",
        "timestamp_ntz",
    ):
        return array
    if pa.types.is_date(array.type) and kind.name == "date":
        return array.cast(pa.date32()).cast(pa.int32())
    if pa.types.is_timestamp(array.type) and kind.name == (
        "timestamp" if array.type.tz else "timestamp_ntz"
    ):
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
    # 18 digits fit the low word of the two's complement 128 bits, sign included
    low = np.frombuffer(array.buffers()[1], "<i8")[
        2 * array.offset : 2 * (array.offset + len(array)) : 2
    ]
    return np.where(np.asarray(array.is_valid()), low, 0)


def of_order(values: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_], kind: Atomic) -> pa.Array:
    """The inverse of `to_order`, in Arrow's type of the kind."""
    there = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    if parts := decimal_parts(kind.name):
        words = np.stack([values, values >> 63], axis=1).astype(
            "<i8"
        )  # 128 bits in two's complement
        return pa.Array.from_buffers(
            pa.decimal128(*parts), len(values), [there, pa.py_buffer(words.tobytes())]
        )
    plain = pa.Array.from_buffers(
        pa.int64(), len(values), [there, pa.py_buffer(np.where(valid, values, 0).tobytes())]
    )
    return (
        plain.cast(pa.int32()).cast(pa.date32())
        if kind.name == "date"
        else plain.cast(arrow_type(kind))
    )


def from_order(value: int, kind: Atomic) -> int | Decimal | date | datetime:
    """The value as Python holds it; timestamps carry the zone UTC."""
    if parts := decimal_parts(kind.name):
        return Decimal(value).scaleb(-parts[1])
    try:
        return _FROM_ORDER[kind.name](value)
    except OverflowError as error:
        raise InvalidInputError(
            f"{value} as a {type_name(kind)} is outside the years 1 to 9999 of Python; use the number itself"
        ) from error
    except KeyError as error:
        raise FormatError(
            f"type {type_name(kind)} has no order of 64 bits; delta and tie-break columns cannot have it"
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
    """A user's event time for column `name`: a number, date or datetime, or its text. Nothing is guessed and nothing rounded."""
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
    if not -(1 << 63) <= encoded < 1 << 63:
        least, most = (from_order(end, kind) for end in (-(1 << 63), (1 << 63) - 1))
        raise InvalidInputError(
            f"{name}: {value!r} is outside 64 bits; give a value between {least} and {most}"
        )
    return encoded


_WANTED = {
    **dict.fromkeys(INTEGER_TYPES, "an int or its digits"),
    "date": "a date or 'YYYY-MM-DD'",
    "timestamp": "a datetime with a zone, or its text, as '2026-01-31T12:00:00+00:00'",
    "timestamp_ntz": "a datetime without a zone, or its text, as '2026-01-31T12:00:00'",
}


def exact_unscaled(value: Any, scale: int, *, name: str) -> int:
    """A user's number in units of the last decimal place; refused if it is finer than that."""
    digits = _number_of(value, scale, name)
    try:
        scaled = digits.scaleb(scale, _EXACT)
        unscaled = scaled.to_integral_value(context=_EXACT)
    except (Inexact, InvalidOperation):
        raise InvalidInputError(
            f"{name}: {value!r} is longer than any column; give at most 38 digits"
        ) from None
    if unscaled != scaled:
        raise InvalidInputError(
            f"{name}: {value!r} is finer than the column, which has {scale} decimal places; round it"
        )
    return (
        int(unscaled) if unscaled.adjusted() < 40 else 1 << 128
    )  # too large anyway; 1E+999999999 as an int would never end


def _number_of(value: Any, scale: int, name: str) -> Decimal:
    if isinstance(value, str) and (_PLAIN_DECIMAL if scale else _WHOLE).match(value):
        return Decimal(value)
    if isinstance(value, Decimal) and value.is_finite():
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return Decimal(operator.index(value))
    raise InvalidInputError(
        f"{name}: {value!r} is not a number as the column holds it; give an int, a Decimal or plain digits"
    )


def _encode_date(value: Any, name: str) -> int:
    if isinstance(value, datetime):
        raise InvalidInputError(
            f"{name}: {value!r} has a time of day, the column holds dates; give value.date()"
        )
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError as error:
            raise InvalidInputError(
                f"{name}: {value!r} is no date ({error}); write {_WANTED['date']}"
            ) from error
    if not isinstance(value, date):
        raise InvalidInputError(f"{name}: {value!r} is no date; give {_WANTED['date']}")
    return value.toordinal() - _EPOCH_DAY


def _encode_datetime(value: Any, kind: str, name: str) -> int:
    moment = _datetime_of(value, kind, name)
    if getattr(moment, "nanosecond", 0):  # pandas
        raise InvalidInputError(f"{name}: {value!r} is finer than a microsecond; round it")
    zoned = moment.utcoffset() is not None
    if zoned and kind == "timestamp_ntz":
        raise InvalidInputError(
            f"{name}: {value!r} has a zone, the column has none; give {_WANTED[kind]}"
        )
    if not zoned and kind == "timestamp":
        raise InvalidInputError(
            f"{name}: {value!r} has no zone, so it is not a moment; give {_WANTED[kind]}"
        )
    # not moment - epoch: subclasses, as pendulum's, return intervals of their own
    return datetime.__sub__(moment, _EPOCH_UTC if zoned else _EPOCH_NAIVE) // _MICROSECOND


def _datetime_of(value: Any, kind: str, name: str) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        raise InvalidInputError(
            f"{name}: {value!r} is a date, the column holds timestamps; say which time of the day: give {_WANTED[kind]}"
        )
    if not isinstance(value, str):
        raise InvalidInputError(f"{name}: {value!r} is no timestamp; give {_WANTED[kind]}")
    if _DATE.fullmatch(value):
        raise InvalidInputError(f"{name}: {value!r} has no time of day; write {_WANTED[kind]}")
    if _BELOW_MICROSECOND.search(value):
        raise InvalidInputError(f"{name}: {value!r} is finer than a microsecond; round it")
    try:
        return datetime.fromisoformat(value)
    except ValueError as error:
        raise InvalidInputError(
            f"{name}: {value!r} is no timestamp ({error}); write {_WANTED[kind]}"
        ) from error
