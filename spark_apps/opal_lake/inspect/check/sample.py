"""The keys and files that a check looks at: all, or a share of them.

A share of the keys is a part of the circle of key hashes. So either all rows, events and entries of
a key are checked, or none. The golden ratio and the version decide where the part begins: the same
version gives the same sample, and later versions check other keys.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from opal_lake.arrays import Int32Array, UInt64Array
from opal_lake.data.segment import DataFile
from opal_lake.errors import InvalidInputError
from opal_lake.log.snapshot import Snapshot

_CIRCLE = 1 << 32  # steps: the values of the upper half of a first hash word
_GOLDEN = 2_654_435_769  # the golden ratio times the steps of the circle
_HALF = np.uint64(32)  # bits of half a hash word
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%\Z")
_ROWS = re.compile(r"[1-9][0-9]{0,17}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The keys whose hash begins within `width` steps of the circle from `start` on."""

    start: int = 0
    width: int = _CIRCLE

    @property
    def is_all(self) -> bool:
        return self.width >= _CIRCLE

    @property
    def share(self) -> float:
        return self.width / _CIRCLE

    def steps(self, high: UInt64Array) -> UInt64Array:
        """Return how many steps after `start` each first hash word is on the circle."""
        position = high >> _HALF
        return (position - np.uint64(self.start)) & np.uint64(_CIRCLE - 1)

    def slot_of(self, high: UInt64Array, slots: int) -> Int32Array:
        """Return which of `slots` parts each hash is in; `slots` for hashes beyond all."""
        part = self.steps(high) * np.uint64(slots) // np.uint64(self.width)
        return part.astype(np.int64).clip(0, slots).astype(np.int32)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield the least and greatest first hash words of the range.

        A range that passes the end of the circle has two pairs.
        """
        stop = self.start + self.width
        yield self.start << 32, (min(stop, _CIRCLE) << 32) - 1
        if stop > _CIRCLE:
            yield 0, (stop - _CIRCLE << 32) - 1

    def takes(self, file: DataFile) -> bool:
        """Return whether a file is checked as a whole: its path decides that like a hash."""
        position = zlib.crc32(file.path.encode())
        return (position - self.start) % _CIRCLE < self.width


def plan_sample(text: str | None, state: Snapshot) -> KeyRange:
    """Return all keys, or the share that a text like `1%` or `100000` (rows) means."""
    if text is None:
        return KeyRange()
    share = _share(text, sum(file.rows for file in state.files.values()))
    width = max(1, min(_CIRCLE, round(share * _CIRCLE)))
    if width == _CIRCLE:
        return KeyRange()
    return KeyRange(start=state.version * _GOLDEN % _CIRCLE, width=width)


def check_sample(text: str | None) -> None:
    """Raise InvalidInputError for a text that is not a sample."""
    if text is not None:
        _share(text, 1)


def _share(text: str, rows: int) -> float:
    """Return the share of the keys that a text means in a table of so many rows."""
    percent, count = _SHARE.match(text), _ROWS.match(text)
    if percent and 0 < float(percent[1]) <= 100:
        return float(percent[1]) / 100
    if count:
        return min(1.0, int(text) / max(1, rows))
    raise InvalidInputError(
        f"sample={text!r} is not a share; write a percentage such as 1%, or about how many rows, "
        "such as 100000"
    )
