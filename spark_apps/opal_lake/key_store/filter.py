"""A filter that says 'not here' of most keys that a run does not hold: one byte an entry; it says 'maybe' of 3% of the others."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_HALF = np.uint64(32)
_LOW_HALF = np.uint64((1 << 32) - 1)


def plan_filter(high: Words, low: Words) -> bytes:
    bits = np.zeros(8 * len(high), np.bool_)
    for bit in _places(high, low, len(bits)):
        bits[bit] = True
    return np.packbits(bits, bitorder="little").tobytes()


def may_hold(held: bytes, high: Words, low: Words) -> npt.NDArray[np.bool_]:
    """False only for keys that are certainly not there."""
    octets = np.frombuffer(held, np.uint8)
    result = np.ones(len(high), np.bool_)
    for bit in _places(high, low, 8 * len(octets)):
        result &= (octets[bit >> 3] >> (bit & 7).astype(np.uint8) & 1).astype(np.bool_)
    return result


def _places(high: Words, low: Words, bits: int) -> Iterator[npt.NDArray[np.int64]]:
    """By three independent parts of the hash; the first 32 bits of all say little, as a run holds a range of them."""
    for part in (low >> _HALF, low & _LOW_HALF, high & _LOW_HALF):
        part *= np.uint64(bits)
        part >>= _HALF
        yield part.view(np.int64)
