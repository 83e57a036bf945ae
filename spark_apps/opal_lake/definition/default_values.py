"""Default values of columns, in the form that a spec holds in JSON (FORMAT, section 5).

The form is that of bounds: decimals are texts, binary is lower-case hex, dates are days and
timestamps microseconds since 1970. Floats are finite.
"""

import math
from decimal import Decimal, DecimalException
from typing import Any

import pyarrow as pa

DefaultValue = bool | int | float | str
# In bytes. Readers fill the value in for each row of a file that lacks the column
MAX_DEFAULT_BYTES = 256
_DAY_US = 86_400_000_000


def stored_default(value: pa.Scalar) -> DefaultValue:
    """Return the stored form of a value; raise ValueError if it has none."""
    kind = value.type
    if pa.types.is_timestamp(kind):
        return int(value.cast(pa.int64()).as_py())
    if pa.types.is_date(kind):
        return int(value.cast(pa.int32()).as_py())
    plain: Any = value.as_py()
    if isinstance(plain, Decimal):
        return format(plain, "f")
    if isinstance(plain, bytes):
        plain = plain.hex()
    check_default(plain, kind)
    stored: DefaultValue = plain
    return stored


def default_scalar(value: DefaultValue, kind: pa.DataType) -> pa.Scalar:
    """Return a stored default as a value of a column's Arrow type.

    Raises ValueError for a value that the type does not have.
    """
    check_default(value, kind)
    try:
        if pa.types.is_decimal(kind):
            return pa.scalar(Decimal(str(value)), kind)
        if pa.types.is_binary(kind):
            return pa.scalar(bytes.fromhex(str(value)), kind)
        if pa.types.is_timestamp(kind):
            return pa.scalar(value, pa.int64()).cast(kind)
        if pa.types.is_date(kind):
            return pa.scalar(value, pa.int32()).cast(kind)
        return pa.scalar(value, kind)
    except (pa.ArrowException, DecimalException, OverflowError) as error:
        raise ValueError(f"{value!r} is not a default of type {kind}: {error}") from error


def widened_default(value: DefaultValue | None, earlier: str) -> DefaultValue | None:
    """Return a stored default for a column that gets a wider type.

    `earlier` is the type so far. Only a date has another form in its wider type.
    """
    if value is None or earlier != "date":
        return value
    return int(value) * _DAY_US


def check_default(value: object, kind: pa.DataType) -> None:
    """Raise ValueError for a value that is not a stored default of an Arrow type."""
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    if is_text or pa.types.is_decimal(kind):
        is_fit = isinstance(value, str)
    elif pa.types.is_boolean(kind):
        is_fit = isinstance(value, bool)
    elif pa.types.is_floating(kind):
        is_fit = isinstance(value, int | float) and -math.inf < value < math.inf
        is_fit = is_fit and not isinstance(value, bool)
    else:
        is_fit = isinstance(value, int) and not isinstance(value, bool)
    if not is_fit:
        raise ValueError(f"{value!r} is not a default of type {kind}")
    if is_text:
        _check_length(str(value), kind)


def _check_length(text: str, kind: pa.DataType) -> None:
    length = len(text) // 2 if pa.types.is_binary(kind) else len(text.encode())
    if length > MAX_DEFAULT_BYTES:
        raise ValueError(f"a default has at most {MAX_DEFAULT_BYTES} bytes, this one {length:,}")
