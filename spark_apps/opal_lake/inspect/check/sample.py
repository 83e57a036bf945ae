"""Which keys and files a check looks at: all, or a share of them.

A share of the keys is a part of the circle of key hashes, so that of each key all rows, events and entries are looked at, or none. Where it
begins follows from the version by the golden ratio: the same version gives the same sample, and later versions look elsewhere.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opal_lake.data.segment import DataFile
from opal_lake.errors import InvalidInputError
from opal_lake.log.snapshot import Snapshot

_CIRCLE = 1 << 32  # of the upper halves of the first hash words
_GOLDEN = 2_654_435_769  # of 2^32
_HALF = np.uint64(32)
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

    def steps(self, high: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        return (high >> _HALF) - np.uint64(self.start) & np.uint64(_CIRCLE - 1)

    def slot_of(self, high: npt.NDArray[np.uint64], slots: int) -> npt.NDArray[np.int32]:
        """Which of equal parts of the range; `slots` and more beyond its end."""
        return (
            (self.steps(high) * np.uint64(slots) // np.uint64(self.width))
            .astype(np.int64)
            .clip(0, slots)
            .astype(np.int32)
        )

    def spans(self) -> Iterator[tuple[int, int]]:
        """The least and greatest first hash words; two pairs where the range passes the end of the circle."""
        stop = self.start + self.width
        yield self.start << 32, (min(stop, _CIRCLE) << 32) - 1
        if stop > _CIRCLE:
            yield 0, (stop - _CIRCLE << 32) - 1

    def takes(self, file: DataFile) -> bool:
        """Whether all of a file is looked at."""
        return (zlib.crc32(file.path.encode()) - self.start) % _CIRCLE < self.width


def plan_sample(text: str | None, state: Snapshot) -> KeyRange:
    """All, or of a text like `1%` or `100000` (rows) the share."""
    if text is None:
        return KeyRange()
    share = _share(text, sum(file.rows for file in state.files.values()))
    width = max(1, min(_CIRCLE, round(share * _CIRCLE)))
    return KeyRange(start=0 if width == _CIRCLE else state.version * _GOLDEN % _CIRCLE, width=width)


def check_sample(text: str | None) -> None:
    """Refuse what is no sample."""
    if text is not None:
        _share(text, 1)


def _share(text: str, rows: int) -> float:
    percent, count = _SHARE.match(text), _ROWS.match(text)
    if percent and 0 < float(percent[1]) <= 100:
        return float(percent[1]) / 100
    if count:
        return min(1.0, int(text) / max(1, rows))
    raise InvalidInputError(
        f"sample={text!r} is no share; write a percentage, as 1%, or about how many rows, as 100000"
    )
