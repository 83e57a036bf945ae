"""A filter that rules out most keys that a run does not hold.

It takes one byte an entry, and says "maybe" for 3% of the keys that are not in the run.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_HALF = np.uint64(32)
_LOW_HALF = np.uint64((1 << 32) - 1)


def plan_filter(high: Words, low: Words) -> bytes:
    """Return the filter of keys, given by the two words of their hashes."""
    bits = np.zeros(8 * len(high), np.bool_)
    for positions in _bit_positions(high, low, len(bits)):
        bits[positions] = True
    return np.packbits(bits, bitorder="little").tobytes()


def may_hold(filter_bytes: bytes, high: Words, low: Words) -> npt.NDArray[np.bool_]:
    """Return for each key whether the run may hold it; False is certain."""
    octets = np.frombuffer(filter_bytes, np.uint8)
    result = np.ones(len(high), np.bool_)
    for positions in _bit_positions(high, low, 8 * len(octets)):
        bit_in_octet = (positions & 7).astype(np.uint8)
        bits = octets[positions >> 3] >> bit_in_octet & 1
        result &= bits.astype(np.bool_)
    return result


def _bit_positions(high: Words, low: Words, bit_count: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield, three times, one position of a bit for each key.

    The three positions of a key are from independent parts of its hash.
    """
    # The first 32 bits of the hash are left out: a run holds a range of them.
    for part in (low >> _HALF, low & _LOW_HALF, high & _LOW_HALF):
        # part * bit_count / 2**32, in place: each part is a new array already.
        part *= np.uint64(bit_count)
        part >>= _HALF
        yield part.view(np.int64)
