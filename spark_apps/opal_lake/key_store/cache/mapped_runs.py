"""Runs as raw arrays, mapped into memory and searched in place.

Nothing is decoded, and only the touched pages are read.
"""

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

_ALIGN = 64  # bytes, a cache line
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
        # As words: numpy compares plain integers as floats.
        first = int(np.searchsorted(self.entries.high, np.uint64(low), "left"))
        last = int(np.searchsorted(self.entries.high, np.uint64(high), "right"))
        for start in range(first, last, rows):
            end = min(start + rows, last)
            yield self.entries.take(slice(start, end))


@dataclass(frozen=True, slots=True)
class MappedRuns:
    """The default form: raw arrays in a file that is mapped into memory."""

    suffix: str = "raw"

    def size_of(self, count: int, ties: int) -> int:
        _, end = _column_positions(count, ties)
        return end + _TAIL.size

    def write(self, parts: Iterable[Entries], count: int, ties: int, path: Path) -> None:
        positions, end = _column_positions(count, ties)
        with path.open("xb") as file:
            rows_before = 0
            for part in parts:
                for array, (dtype, at) in zip(_arrays(part), positions, strict=True):
                    file.seek(at + rows_before * dtype.itemsize)
                    file.write(np.ascontiguousarray(array.astype(dtype, copy=False)).data)
                rows_before += len(part)
            file.seek(end)
            # Last: a file without a tail is incomplete.
            file.write(_TAIL.pack(_END, _boot_id(), count, ties))

    def open(self, path: Path) -> MappedRun:
        with path.open("rb") as file:
            try:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except ValueError as error:  # mmap refuses an empty file
                raise OSError(f"{path} is empty") from error
        tail = bytes(data[-_TAIL.size :]).ljust(_TAIL.size, b"\0")
        magic, boot_id, count, ties = _TAIL.unpack(tail)
        has_tail_of_this_boot = (magic, boot_id) == (_END, _boot_id())
        if not has_tail_of_this_boot or len(data) != self.size_of(count, ties):
            raise OSError(f"{path} is incomplete, or older than the start of this machine")
        positions, _ = _column_positions(count, ties)
        high, low, delta, *tie_arrays, segment, offset, deleted = (
            np.frombuffer(data, dtype, count, at) for dtype, at in positions
        )
        return MappedRun(
            entries=Entries(
                high=high,
                low=low,
                delta=delta,
                ties=tuple(tie_arrays),
                segment=segment,
                offset=offset,
                deleted=deleted.view(np.bool_),
            )
        )


@cache
def _boot_id() -> bytes:
    """Return the id of this start of the machine.

    Runs are not synced to the disk, so after a crash of the machine any page may be missing.
    """
    return _BOOT.read_bytes()[:36] if _BOOT.is_file() else bytes(36)


def _arrays(entries: Entries) -> list[npt.NDArray[np.generic]]:
    """Return the columns of entries in the order of the file."""
    row_columns = (entries.segment, entries.offset, entries.deleted.view(np.int8))
    return [entries.high, entries.low, entries.delta, *entries.ties, *row_columns]


def _column_positions(count: int, ties: int) -> tuple[list[tuple[np.dtype[np.generic], int]], int]:
    """Return (type, first byte) of every column, and the byte after the last column."""
    positions: list[tuple[np.dtype[np.generic], int]] = []
    at = 0
    for array in _arrays(no_entries(ties)):
        positions.append((array.dtype, at))
        cache_lines = -(-count * array.dtype.itemsize // _ALIGN)
        at += cache_lines * _ALIGN
    return positions, at
