"""A sorted run as bytes, and probing one (FORMAT, key-store runs).

A run is a header and one raw array a column, so that it can be mapped into memory and searched in place. Every block of every column has a
checksum in the header; a block is verified when it is first touched, so that a small probe does not pay for a large run.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opal_lake.errors import FormatError
from opal_lake.key_store.entries import Entries, no_entries

MAGIC = b"OPALRUN1"
BLOCK = 16_384
_HEAD = struct.Struct("<8sII")
_ALIGN = 64

Positions = npt.NDArray[np.intp]


def _columns(entries: Entries) -> list[tuple[str, npt.NDArray[np.generic]]]:
    ties = [(f"tie{number}", tie.astype("<i8" if number % 2 else "<i1")) for number, tie in enumerate(entries.ties)]
    return [
        ("high", entries.high.astype("<u8")),
        ("low", entries.low.astype("<u8")),
        ("delta", entries.delta.astype("<i8")),
        *ties,
        ("segment", entries.segment.astype("<i8")),
        ("offset", entries.offset.astype("<i4")),
        ("deleted", entries.deleted.astype("<i1")),
    ]


def encode_run(entries: Entries) -> bytes:
    """Sorted entries, of equal (key, delta) only the greatest, as one run."""
    bodies, directory, at = [], [], 0
    for name, array in _columns(entries):
        raw = np.ascontiguousarray(array).tobytes()
        width = array.dtype.itemsize
        blocks = [zlib.crc32(raw[start : start + BLOCK * width]) for start in range(0, len(raw), BLOCK * width)]
        directory.append({"name": name, "dtype": array.dtype.str, "at": at, "crc32": blocks})
        padding = -len(raw) % _ALIGN
        bodies.append(raw + bytes(padding))
        at += len(raw) + padding
    fences = [int(value) for value in entries.high[::BLOCK]]
    header = {"count": len(entries), "block": BLOCK, "columns": directory, "fences": fences}
    head = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    head += b" " * (-(_HEAD.size + len(head)) % _ALIGN)
    return _HEAD.pack(MAGIC, len(head), zlib.crc32(head)) + head + b"".join(bodies)


@dataclass(slots=True, kw_only=True)
class OpenRun:
    """A run that is open for probing; `columns` are views into the file."""

    path: str
    count: int
    block: int
    fences: npt.NDArray[np.uint64]
    columns: dict[str, npt.NDArray[np.generic]]
    checksums: dict[str, list[int]]
    verified: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def tie_columns(self) -> list[str]:
        return [name for name in self.columns if name.startswith("tie")]

    def verify(self, name: str, positions: Positions) -> None:
        """Check the blocks of a column that hold these positions, each once."""
        done = self.verified.setdefault(name, np.zeros(len(self.fences), np.bool_))
        wanted = np.zeros(len(done), np.bool_)
        wanted[positions // self.block] = True
        for number in np.flatnonzero(wanted & ~done):
            part = self.columns[name][number * self.block : (number + 1) * self.block]
            if zlib.crc32(part.tobytes()) != self.checksums[name][number]:
                raise FormatError(f"key-store run {self.path} is damaged in block {number} of {name!r}; run `opal check`")
            done[number] = True

    def column(self, name: str, positions: Positions) -> npt.NDArray[np.generic]:
        """Verified values at positions."""
        self.verify(name, positions)
        return self.columns[name][positions]

    def entries(self, positions: Positions) -> Entries:
        """The entries at positions."""
        ties = tuple(self.column(name, positions).astype(np.int64) for name in self.tie_columns)
        return Entries(
            high=self.column("high", positions).astype(np.uint64),
            low=self.column("low", positions).astype(np.uint64),
            delta=self.column("delta", positions).astype(np.int64),
            ties=ties,
            segment=self.column("segment", positions).astype(np.int64),
            offset=self.column("offset", positions).astype(np.int32),
            deleted=self.column("deleted", positions).astype(np.bool_),
        )

    def slices(self, rows: int) -> Iterator[Entries]:
        """All entries in order, so many at a time."""
        for start in range(0, self.count, rows):
            yield self.entries(np.arange(start, min(start + rows, self.count)))


def open_run(data: memoryview | bytes, path: str) -> OpenRun:
    """Read the header; the columns stay where they are."""
    try:
        magic, length, crc = _HEAD.unpack_from(data)
        head = bytes(data[_HEAD.size : _HEAD.size + length])
        if magic != MAGIC or zlib.crc32(head) != crc:
            raise ValueError("its header is not what was written")
        header = json.loads(head)
        start, count = _HEAD.size + length, header["count"]
        columns = {c["name"]: np.frombuffer(data, c["dtype"], count, start + c["at"]) for c in header["columns"]}
    except (ValueError, KeyError, struct.error) as error:
        raise FormatError(f"key-store run {path} is damaged: {error}; run `opal check`") from error
    checksums = {c["name"]: c["crc32"] for c in header["columns"]}
    fences = np.array(header["fences"], np.uint64)
    return OpenRun(path=path, count=count, block=header["block"], fences=fences, columns=columns, checksums=checksums)


def neighbours(run: OpenRun, new: Entries) -> Entries:
    """The predecessor and the successor of each new entry among the run's entries of the same key."""
    nothing = no_entries(len(run.tie_columns) // 2)
    if not run.count:
        return nothing
    greatest = run.column("high", np.array([run.count - 1]))[0]
    near = np.flatnonzero((new.high >= run.fences[0]) & (new.high <= greatest))
    low = _first_equal(run, new.high[near])
    found = run.column("high", low) == new.high[near]
    if not found.any():
        return nothing
    low, probes = low[found], new.take(near[found])
    high = _after_equal(run, probes.high)
    at = _insertion_points(run, probes, low, high)
    before = _of_same_key(run, probes, at - 1, (at - 1 >= low))
    after = _of_same_key(run, probes, at, (at < high))
    both = np.sort(np.concatenate([before, after]), kind="stable")
    return run.entries(both[np.diff(both, prepend=-1) != 0])


def _first_equal(run: OpenRun, words: npt.NDArray[np.uint64]) -> Positions:
    """Where each first hash word, none of them above the run's last, stands or would stand."""
    return _searched(run, np.searchsorted(run.columns["high"], words, "left"), np.searchsorted(run.fences, words, "left"))


def _after_equal(run: OpenRun, words: npt.NDArray[np.uint64]) -> Positions:
    """The positions after the last that has the word."""
    return _searched(run, np.searchsorted(run.columns["high"], words, "right"), np.searchsorted(run.fences, words, "right"))


def _searched(run: OpenRun, found: Positions, fence: Positions) -> Positions:
    """Results of a search. The fences are the header's: a search that damage misled ends outside its block."""
    block = np.maximum(fence - 1, 0)
    if ((found < block * run.block) | (found > np.minimum((block + 1) * run.block, run.count))).any():
        raise FormatError(f"key-store run {run.path} is damaged: its hashes are out of order; run `opal check`")
    run.verify("high", block * run.block)
    return found


def _insertion_points(run: OpenRun, probes: Entries, low: Positions, high: Positions) -> Positions:
    """Bisect by the rest of the order within each range of equal first words, all probes at once."""
    names = ["low", "delta", *run.tie_columns, "segment", "offset"]
    low, high = low.copy(), high.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) // 2
        less = np.zeros(len(open_), np.bool_)
        equal = np.ones(len(open_), np.bool_)
        for name, probe in zip(names, probes.order_columns[1:], strict=True):
            stored = run.column(name, middle)
            less |= equal & np.less(stored, probe[open_])
            equal &= stored == probe[open_]
        low[open_[less]] = middle[less] + 1
        high[open_[~less]] = middle[~less]
    return low


def _of_same_key(run: OpenRun, probes: Entries, at: Positions, inside: npt.NDArray[np.bool_]) -> Positions:
    chosen = np.flatnonzero(inside)
    same = run.column("low", at[chosen]) == probes.low[chosen]
    found: Positions = at[chosen[same]]
    return found
