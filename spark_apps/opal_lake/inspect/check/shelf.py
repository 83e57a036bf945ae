"""Arrays that wait: in memory while they are few, then in a file without a name, which goes with the process at the latest."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from opal_lake.data.spool import nameless_file, room_errors

Column = npt.NDArray[Any]
_HELD_BYTES = 32 << 20
_FLUSH_ROWS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelved:
    """Columns of one length, at hand or at a place in the file."""

    rows: int
    kinds: tuple[np.dtype[Any], ...]
    at: int = 0
    arrays: tuple[Column, ...] = ()


@dataclass(slots=True)
class Shelf:
    """Where they wait. The file is on the first disk that Spark gives, or where temporary files are (TMPDIR)."""

    held_bytes: int = _HELD_BYTES
    size: int = 0
    _held: int = 0
    _file: IO[bytes] | None = None

    def put(self, arrays: Sequence[Column]) -> Shelved:
        kinds, rows = tuple(array.dtype for array in arrays), len(arrays[0])
        bytes_here = sum(array.nbytes for array in arrays)
        if self._held + bytes_here <= self.held_bytes:
            self._held += bytes_here
            return Shelved(rows=rows, kinds=kinds, arrays=tuple(arrays))
        with room_errors():
            if self._file is None:
                self._file = nameless_file()
            at = self.size
            for array in arrays:
                self._file.write(np.ascontiguousarray(array).view(np.uint8).data)
            self._file.flush()
        self.size += bytes_here
        return Shelved(rows=rows, kinds=kinds, at=at)

    def column(
        self, shelved: Shelved, index: int, start: int = 0, stop: int | None = None
    ) -> Column:
        """A part of one column."""
        stop = shelved.rows if stop is None else stop
        if shelved.arrays:
            return shelved.arrays[index][start:stop]
        assert self._file is not None
        kind = shelved.kinds[index]
        begin = (
            shelved.at
            + sum(other.itemsize for other in shelved.kinds[:index]) * shelved.rows
            + start * kind.itemsize
        )
        data = bytearray((stop - start) * kind.itemsize)
        view, done = memoryview(data), 0
        while done < len(data):
            done += os.preadv(self._file.fileno(), [view[done:]], begin + done)
        return np.frombuffer(data, kind)


@dataclass(slots=True, kw_only=True)
class Slots:
    """Rows that are added in any order and read slot by slot."""

    count: int
    shelf: Shelf
    _waiting: list[tuple[Column, ...]] = field(default_factory=list)
    _rows: int = 0
    _blocks: list[tuple[Shelved, npt.NDArray[np.intp]]] = field(default_factory=list)

    def add(self, slot: Column, columns: Sequence[Column]) -> None:
        if len(slot):
            self._waiting.append((slot.astype(np.int32, copy=False), *columns))
            self._rows += len(slot)
        if self._rows >= _FLUSH_ROWS:
            self._flush()

    def _flush(self) -> None:
        """One block, in the order of slots, and where each slot begins in it."""
        if not self._waiting:
            return
        slot = np.concatenate([part[0] for part in self._waiting])
        order = np.argsort(slot, kind="stable")
        arrays = [
            np.concatenate([part[index] for part in self._waiting])[order]
            for index in range(1, len(self._waiting[0]))
        ]
        bounds = np.searchsorted(slot[order], np.arange(self.count + 1))
        self._blocks.append((self.shelf.put(arrays), bounds))
        self._waiting, self._rows = [], 0

    def take(self, slot: int) -> list[Column] | None:
        """The columns of a slot, in the order in which its rows came; None where there are none."""
        self._flush()
        parts = [
            (shelved, int(bounds[slot]), int(bounds[slot + 1]))
            for shelved, bounds in self._blocks
            if bounds[slot] < bounds[slot + 1]
        ]
        if not parts:
            return None
        columns = range(len(parts[0][0].kinds))
        return [
            np.concatenate(
                [self.shelf.column(shelved, index, start, stop) for shelved, start, stop in parts]
            )
            for index in columns
        ]

    def each(self) -> Iterator[list[Column] | None]:
        return (self.take(slot) for slot in range(self.count))
