"""Runs as raw arrays, mapped into memory and searched in place: nothing is decoded, and only touched pages are read."""

import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opal_lake.key_store.entries import Entries, no_entries
from opal_lake.key_store.probe import Neighbours, neighbours

_ALIGN = 64
_END = b"OPALNEAR"
_TAIL = struct.Struct("<8s36sQQ")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedRun:
    """Views into a mapped file."""

    entries: Entries

    def neighbours(self, new: Entries) -> Neighbours:
        return neighbours(self.entries, new)

    def slices(self, rows: int, low: int, high: int) -> Iterator[Entries]:
        first = int(np.searchsorted(self.entries.high, np.uint64(low), "left"))
        last = int(np.searchsorted(self.entries.high, np.uint64(high), "right"))
        for start in range(first, last, rows):
            yield self.entries.take(slice(start, min(start + rows, last)))


@dataclass(frozen=True, slots=True)
class MappedRuns:
    """The default form."""

    suffix: str = "raw"

    def size_of(self, count: int, ties: int) -> int:
        return _places(count, ties)[1] + _TAIL.size

    def write(self, parts: Iterable[Entries], count: int, ties: int, path: Path) -> None:
        places, size = _places(count, ties)
        with path.open("xb") as file:
            done = 0
            for part in parts:
                for array, (dtype, at) in zip(_arrays(part), places, strict=True):
                    file.seek(at + done * dtype.itemsize)
                    file.write(np.ascontiguousarray(array.astype(dtype, copy=False)).data)
                done += len(part)
            file.seek(size)
            file.write(_TAIL.pack(_END, _boot(), count, ties))

    def open(self, path: Path) -> MappedRun:
        with path.open("rb") as file:
            try:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except ValueError as error:  # an empty file
                raise OSError(f"{path} is empty") from error
        end, boot, count, ties = _TAIL.unpack(bytes(data[-_TAIL.size :]).ljust(_TAIL.size, b"\0"))
        places, size = _places(count, ties) if (end, boot) == (_END, _boot()) else ([], -1)
        if len(data) != size + _TAIL.size:
            raise OSError(f"{path} is not whole, or from before the machine started")
        high, low, delta, *ties_, segment, offset, deleted = (
            np.frombuffer(data, dtype, count, at) for dtype, at in places
        )
        return MappedRun(
            entries=Entries(
                high=high,
                low=low,
                delta=delta,
                ties=tuple(ties_),
                segment=segment,
                offset=offset,
                deleted=deleted.view(np.bool_),
            )
        )


@cache
def _boot() -> bytes:
    """What is new after every start of the machine: nothing waits for the disk, and after a crash any page may be missing."""
    return _BOOT.read_bytes()[:36] if _BOOT.is_file() else bytes(36)


def _arrays(entries: Entries) -> list[npt.NDArray[np.generic]]:
    single = (entries.segment, entries.offset, entries.deleted.view(np.int8))
    return [entries.high, entries.low, entries.delta, *entries.ties, *single]


def _places(count: int, ties: int) -> tuple[list[tuple[np.dtype[np.generic], int]], int]:
    """The type and position of every column, and where they end."""
    places, at = [], 0
    for array in _arrays(no_entries(ties)):
        places.append((array.dtype, at))
        at += -(-count * array.dtype.itemsize // _ALIGN) * _ALIGN
    return places, at
