"""Arrays that wait for their slot: in memory, then in a file without a name.

The file disappears with the process at the latest.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from opal_lake.arrays import IndexArray
from opal_lake.data.spool import nameless_file, room_errors

Column = npt.NDArray[Any]
MEMORY_BYTES = 32 << 20  # of arrays in memory, before others are written to the file
FLUSH_ROWS = 1 << 18  # rows that are sorted by slot at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Spilled:
    """Columns of one length, in memory or at a position in the file."""

    rows: int
    kinds: tuple[np.dtype[Any], ...]
    at: int = 0
    arrays: tuple[Column, ...] = ()


@dataclass(slots=True)
class SpillBuffer:
    """A buffer of arrays that spills to disk.

    The file is on the first disk that Spark gives, or where temporary files are (TMPDIR).
    """

    memory_bytes: int = MEMORY_BYTES
    size: int = 0
    _bytes_in_memory: int = 0
    _file: IO[bytes] | None = None

    def put(self, arrays: Sequence[Column]) -> Spilled:
        """Store columns of one length."""
        kinds = tuple(array.dtype for array in arrays)
        rows = len(arrays[0])
        new_bytes = sum(array.nbytes for array in arrays)
        if self._bytes_in_memory + new_bytes <= self.memory_bytes:
            self._bytes_in_memory += new_bytes
            return Spilled(rows=rows, kinds=kinds, arrays=tuple(arrays))
        with room_errors():
            if self._file is None:
                self._file = nameless_file()
            at = self.size
            for array in arrays:
                self._file.write(np.ascontiguousarray(array).view(np.uint8).data)
            self._file.flush()
        self.size += new_bytes
        return Spilled(rows=rows, kinds=kinds, at=at)

    def column(
        self, spilled: Spilled, index: int, start: int = 0, stop: int | None = None
    ) -> Column:
        """Return the rows from `start` to `stop` of one column."""
        stop = spilled.rows if stop is None else stop
        if spilled.arrays:
            return spilled.arrays[index][start:stop]
        assert self._file is not None
        kind = spilled.kinds[index]
        # The columns are stored one after the other
        row_bytes_before = sum(other.itemsize for other in spilled.kinds[:index])
        begin = spilled.at + row_bytes_before * spilled.rows + start * kind.itemsize
        data = bytearray((stop - start) * kind.itemsize)
        view = memoryview(data)
        done = 0
        # A call may read less than asked for
        while done < len(data):
            done += os.preadv(self._file.fileno(), [view[done:]], begin + done)
        return np.frombuffer(data, kind)


@dataclass(slots=True, kw_only=True)
class Slots:
    """Rows that are added in any order, and read slot by slot."""

    count: int
    buffer: SpillBuffer
    flush_rows: int = FLUSH_ROWS
    _waiting: list[tuple[Column, ...]] = field(default_factory=list)
    _rows: int = 0
    _blocks: list[tuple[Spilled, IndexArray]] = field(default_factory=list)

    def add(self, slot: Column, columns: Sequence[Column]) -> None:
        """Add rows, each with its slot."""
        if len(slot):
            self._waiting.append((slot.astype(np.int32, copy=False), *columns))
            self._rows += len(slot)
        if self._rows >= self.flush_rows:
            self._flush()

    def _flush(self) -> None:
        """Store the waiting rows as a block, sorted by slot, with each slot's bounds."""
        if not self._waiting:
            return
        slot = np.concatenate([part[0] for part in self._waiting])
        order = np.argsort(slot, kind="stable")
        arrays: list[Column] = []
        for index in range(1, len(self._waiting[0])):
            column = np.concatenate([part[index] for part in self._waiting])
            arrays.append(column[order])
        bounds = np.searchsorted(slot[order], np.arange(self.count + 1))
        self._blocks.append((self.buffer.put(arrays), bounds))
        self._waiting, self._rows = [], 0

    def take(self, slot: int) -> list[Column] | None:
        """Return the columns of a slot, with rows in the order in which they came.

        None if it has no rows.
        """
        self._flush()
        parts: list[tuple[Spilled, int, int]] = []
        for spilled, bounds in self._blocks:
            start, stop = int(bounds[slot]), int(bounds[slot + 1])
            if start < stop:
                parts.append((spilled, start, stop))
        if not parts:
            return None
        columns: list[Column] = []
        for index in range(len(parts[0][0].kinds)):
            pieces = [self.buffer.column(spilled, index, *rows) for spilled, *rows in parts]
            columns.append(np.concatenate(pieces))
        return columns

    def each(self) -> Iterator[list[Column] | None]:
        return (self.take(slot) for slot in range(self.count))
