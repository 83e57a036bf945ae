"""Which rows of a segment are not visible: roaring bitmaps, their packed words, and the bitmap base as bytes (FORMAT, bitmap bases)."""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from opal_lake import checked
from opal_lake.checked import count, parse_json
from opal_lake.data.segment import MOST_SEGMENT_ROWS
from opal_lake.decoding import decoding
from opal_lake.errors import FormatError
from opal_lake.events.segment_log import Events
from opal_lake.layout import PathKind, own_path

MAGIC = b"OPALBIT1"
_HEAD = struct.Struct("<8sII")

Bitmaps = dict[int, BitMap]


@dataclass(frozen=True, slots=True, kw_only=True)
class BitmapBase:
    """A group's bitmaps as of a version, at the end of time; with `after`, only what came since that version, on top of those before."""

    group: int
    path: str
    size: int
    crc32: int
    version: int
    write_id: str
    after: int | None = None


def base_to_json(base: BitmapBase) -> list[Any]:
    where = [base.group, base.path, base.size, base.crc32, base.version, base.write_id]
    return where if base.after is None else [*where, base.after]


def base_from_json(data: list[Any]) -> BitmapBase:
    return BitmapBase(
        group=checked.count(data[0]),
        path=own_path(PathKind.BASE, data[1]),
        size=checked.count(data[2]),
        crc32=checked.crc(data[3]),
        version=checked.count(data[4]),
        write_id=checked.plain_id(data[5]),
        after=checked.count(data[6]) if len(data) > 6 else None,
    )


def add_events(bitmaps: Bitmaps, events: Events) -> None:
    """Mark the rows of events in place; the set is grow-only, so order and repeats do not matter."""
    add_rows(bitmaps, events.segment, events.offset)


def add_rows(
    bitmaps: Bitmaps, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]
) -> None:
    """Mark rows in place."""
    if not len(segment):
        return
    order = np.argsort(segment, kind="stable")
    segments, offsets = segment[order], offset[order].astype(np.uint32)
    starts = np.flatnonzero(np.r_[True, segments[1:] != segments[:-1]])
    for start, end in zip(starts, [*starts[1:], len(segments)], strict=True):
        marks = BitMap(offsets[start:end].data)  # a buffer is read four times as fast as an array
        number = int(segments[start])
        if number in bitmaps:
            bitmaps[number] |= marks
        else:
            bitmaps[number] = marks


def add_bitmaps(bitmaps: Bitmaps, more: Mapping[int, BitMap]) -> None:
    """Mark more rows in place; `more` may be used on."""
    for segment, rows in more.items():
        bitmaps[segment] = bitmaps[segment] | rows if segment in bitmaps else rows


def offsets_of(bitmap: BitMap) -> npt.NDArray[np.uint32]:
    """The marked row offsets, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint32)


def words_of(bitmap: BitMap, rows: int) -> npt.NDArray[np.int64]:
    """One bit a row, packed into 64-bit words, least significant bit first."""
    if bitmap and bitmap.max() >= rows:
        raise FormatError(
            f"row {bitmap.max()} is hidden in a segment that has {rows} rows; run `opal check`, which names the damaged file"
        )
    return _packed(np.int64(0), offsets_of(bitmap), (rows + 63) // 64).view(np.int64)


def _packed(
    first_word: npt.NDArray[np.int64] | np.int64, offsets: npt.NDArray[np.uint32], size: int
) -> npt.NDArray[np.uint64]:
    """So many words with a bit for each offset, counted from its first word; in ascending order."""
    words = np.zeros(size, np.uint64)
    if len(offsets):
        word = first_word + (offsets >> 6)
        bits = np.uint64(1) << (offsets & 63).astype(np.uint64)
        starts = np.flatnonzero(np.r_[True, word[1:] != word[:-1]])
        words[word[starts]] = np.add.reduceat(bits, starts)
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The bitmaps of some segments, for asking about many rows at once."""

    segments: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, bitmaps: Mapping[int, BitMap]) -> "Marks":
        chosen = sorted(segment for segment, bitmap in bitmaps.items() if bitmap)
        offsets = [offsets_of(bitmaps[segment]) for segment in chosen]
        starts = np.cumsum([0, *((int(marked[-1]) >> 6) + 1 for marked in offsets)], dtype=np.int64)
        first_words = np.repeat(starts[:-1], [len(marked) for marked in offsets])
        words = _packed(
            first_words, np.concatenate([*offsets, np.empty(0, np.uint32)]), int(starts[-1]) + 1
        )
        return cls(segments=np.array(chosen, np.int64), starts=starts, words=words)

    def at(
        self, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.bool_]:
        """Whether each row is marked."""
        if not len(self.segments):
            return np.zeros(len(segment), np.bool_)
        position = np.minimum(np.searchsorted(self.segments, segment), len(self.segments) - 1)
        word = self.starts[position] + (offset >> 6)
        known = (self.segments[position] == segment) & (word < self.starts[position + 1])
        bits = self.words[np.where(known, word, len(self.words) - 1)] >> (offset & 63).astype(
            np.uint64
        )
        return np.asarray(known & ((bits & np.uint64(1)) != 0), np.bool_)


def encode_base(bitmaps: Mapping[int, BitMap], origin: Mapping[str, object]) -> bytes:
    """Header, directory, and the portable roaring bytes of each segment."""
    chosen = sorted(bitmaps)
    bodies = [bitmaps[segment].serialize() for segment in chosen]
    directory = {
        "origin": dict(origin),
        "segments": [[segment, len(body)] for segment, body in zip(chosen, bodies, strict=True)],
    }
    head = json.dumps(directory, sort_keys=True, separators=(",", ":")).encode()
    return _HEAD.pack(MAGIC, len(head), zlib.crc32(head)) + head + b"".join(bodies)


def decode_base(data: bytes, path: str) -> Bitmaps:
    """The inverse; the caller has verified the whole file's checksum."""
    with decoding(path, "a bitmap base", "delete it, it is derived and will be made again"):
        magic, length, crc = _HEAD.unpack_from(data)
        head = data[_HEAD.size : _HEAD.size + length]
        if magic != MAGIC or zlib.crc32(head) != crc:
            raise ValueError("not a bitmap base of this format")
        bitmaps: Bitmaps = {}
        at = _HEAD.size + length
        for segment, size in parse_json(head)["segments"]:
            rows = bitmaps[count(segment)] = BitMap.deserialize(data[at : at + count(size)])
            if rows and rows.max() >= MOST_SEGMENT_ROWS:
                raise ValueError(f"segment {segment} has no row {rows.max()}")
            at += size
        if at != len(data):
            raise ValueError(f"its directory speaks of {at:,} bytes, of {len(data):,}")
        return bitmaps
