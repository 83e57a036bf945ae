"""Functions that Arrow lacks: remainders, and the nearest doubles of decimals."""

from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_EXACT_DOUBLE = 1 << 53  # up to there every whole number is a double
_EXACT_POWERS = 22  # up to there every power of ten is a double
_WIDE = Context(prec=100)


def nearest_doubles(decimals: Any) -> Any:
    """Return the double next to each decimal.

    Arrow's own cast sometimes returns the neighbour of the nearest double.
    """
    if isinstance(decimals, pa.Scalar):
        value = decimals.as_py()
        return pa.scalar(None if value is None else float(value), pa.float64())
    scale = decimals.type.scale
    unscaled, is_short = _unscaled(decimals)
    few_digits = is_short & (np.abs(unscaled) <= _EXACT_DOUBLE)
    if scale <= _EXACT_POWERS and few_digits.all():
        # Both numbers are exact, so that the division rounds once
        return pa.array(unscaled / 10.0**scale, mask=_nulls(decimals))
    return decimals.cast(pa.string()).cast(pa.float64())


def remainders(dividends: pa.Array, divisors: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the remainders of truncating divisions, with the dividend's sign.

    No divisor is zero.
    """
    nulls = _nulls(dividends) | _nulls(divisors)
    if pa.types.is_floating(kind):
        with np.errstate(all="ignore"):
            rests = np.fmod(_filled(dividends, 1.0), _filled(divisors, 1.0))
        return pa.array(rests, mask=nulls)
    left, left_fits = _whole_digits(dividends, kind.scale)
    right, right_fits = _whole_digits(divisors, kind.scale)
    if not (left_fits.all() and right_fits.all()):
        return _slow_remainders(dividends, divisors, kind)
    rest = np.fmod(left, np.where(nulls, 1, right))
    return _decimals(rest, nulls, kind)


def _whole_digits(
    array: pa.Array, scale: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the numbers times 10**scale, and a mask of those that fit 64 bits.

    A null is 0.
    """
    if pa.types.is_integer(array.type):
        return _scaled_integers(array, 10**scale)
    if array.type.scale == scale:
        return _unscaled(array)
    try:
        return _unscaled(array.cast(pa.decimal128(38, scale)))
    except pa.ArrowInvalid:
        # With this scale some have more than 38 digits
        return np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)


def _scaled_integers(
    array: pa.Array, factor: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    integers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    whole = np.asarray(integers, np.int64)
    limit = (1 << 63) // factor
    fits = (whole < limit) & (whole > -limit)
    # A factor beyond 64 bits leaves only zeros that fit
    small_factor = factor if factor < 1 << 63 else 1
    return np.where(fits, whole, 0) * np.int64(small_factor), fits


def _slow_remainders(dividends: pa.Array, divisors: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the remainders row by row, for numbers beyond 64 bits."""
    rests: list[Decimal | None] = []
    for left, right in zip(dividends.to_pylist(), divisors.to_pylist(), strict=True):
        if left is None or right is None:
            rests.append(None)
        else:
            rests.append(_WIDE.remainder(Decimal(left), Decimal(right)))
    return pa.array(rests, kind)


def _unscaled(decimals: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the digits of 128-bit decimals as integers, and which of them fit.

    A null is 0.
    """
    _, data = decimals.buffers()
    words = np.frombuffer(data, np.int64).reshape(-1, 2)  # the low and the high word of each
    words = words[decimals.offset : decimals.offset + len(decimals)]
    low, high = words[:, 0], words[:, 1]
    nulls = _nulls(decimals)
    low = np.where(nulls, 0, low)
    fits = high == low >> 63  # the high word only repeats the sign
    return low, nulls | fits


def _decimals(
    unscaled: npt.NDArray[np.int64], nulls: npt.NDArray[np.bool_], kind: pa.DataType
) -> pa.Array:
    """Return integers as the digits of decimals."""
    # 128 bits in two's complement: the high word repeats the sign
    words = np.empty((len(unscaled), 2), np.int64)
    words[:, 0], words[:, 1] = unscaled, unscaled >> 63
    digits = pa.Array.from_buffers(kind, len(unscaled), [None, pa.py_buffer(words.tobytes())])
    if not nulls.any():
        return digits
    return pc.if_else(pa.array(nulls), pa.scalar(None, kind), digits)


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _filled(array: pa.Array, value: float) -> npt.NDArray[np.float64]:
    return np.asarray(pc.fill_null(array, value).to_numpy(zero_copy_only=False), np.float64)
