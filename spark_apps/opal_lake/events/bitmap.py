"""The hidden rows of segments, as roaring bitmaps and as packed words.

Bitmap bases (FORMAT, bitmap bases) are encoded and decoded here.
"""

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
from opal_lake.data.segment import MAX_SEGMENT_ROWS
from opal_lake.decoding import decoding
from opal_lake.errors import FormatError
from opal_lake.events.segment_log import Events
from opal_lake.layout import PathKind, own_path

MAGIC = b"OPALBIT1"
_HEAD = struct.Struct("<8sII")

Bitmaps = dict[int, BitMap]


@dataclass(frozen=True, slots=True, kw_only=True)
class BitmapBase:
    """The file of a group's bitmaps as of a version, at the end of time.

    With `after`, it marks only the rows hidden since that version, on top of the bases before it.
    """

    group: int
    path: str
    size: int
    crc32: int
    version: int
    write_id: str
    after: int | None = None


def base_to_json(base: BitmapBase) -> list[Any]:
    fields: list[Any] = [
        base.group,
        base.path,
        base.size,
        base.crc32,
        base.version,
        base.write_id,
    ]
    if base.after is not None:
        fields.append(base.after)
    return fields


def base_from_json(data: list[Any]) -> BitmapBase:
    after = checked.count(data[6]) if len(data) > 6 else None
    return BitmapBase(
        group=checked.count(data[0]),
        path=own_path(PathKind.BASE, data[1]),
        size=checked.count(data[2]),
        crc32=checked.crc(data[3]),
        version=checked.count(data[4]),
        write_id=checked.plain_id(data[5]),
        after=after,
    )


def add_events(bitmaps: Bitmaps, events: Events) -> None:
    """Mark the rows of events in place.

    The set of events only grows, so that their order and repeats do not matter.
    """
    add_rows(bitmaps, events.segment, events.offset)


def add_rows(
    bitmaps: Bitmaps, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]
) -> None:
    """Mark rows in place."""
    if not len(segment):
        return
    order = np.argsort(segment, kind="stable")
    segments, offsets = segment[order], offset[order].astype(np.uint32)
    starts = _starts_of_equal(segments)
    for start, end in zip(starts, [*starts[1:], len(segments)], strict=True):
        # BitMap reads a buffer four times as fast as an array.
        marks = BitMap(offsets[start:end].data)
        number = int(segments[start])
        if number in bitmaps:
            bitmaps[number] |= marks
        else:
            bitmaps[number] = marks


def _starts_of_equal(values: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return where each range of equal values starts; there must be a value."""
    return np.flatnonzero(np.r_[True, values[1:] != values[:-1]])


def add_bitmaps(bitmaps: Bitmaps, more: Mapping[int, BitMap]) -> None:
    """Mark more rows in place. The bitmaps of `more` are shared, and never changed."""
    for segment, rows in more.items():
        if segment in bitmaps:
            # A new bitmap instead of `|=`: the old one may be shared with an earlier `more`.
            bitmaps[segment] = bitmaps[segment] | rows
        else:
            bitmaps[segment] = rows


def offsets_of(bitmap: BitMap) -> npt.NDArray[np.uint32]:
    """Return the marked row offsets, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint32)


def words_of(bitmap: BitMap, rows: int) -> npt.NDArray[np.int64]:
    """Return a bit for each row, in 64-bit words, least significant bit first."""
    if bitmap and bitmap.max() >= rows:
        raise FormatError(
            f"row {bitmap.max()} is hidden in a segment that has {rows} rows; "
            "run `opal check`, which names the damaged file"
        )
    word_count = (rows + 63) // 64
    return _packed(np.int64(0), offsets_of(bitmap), word_count).view(np.int64)


def _packed(
    first_word: npt.NDArray[np.int64] | np.int64, offsets: npt.NDArray[np.uint32], size: int
) -> npt.NDArray[np.uint64]:
    """Return `size` words in which the bit of each offset is set.

    An offset counts from the begin of its `first_word`. The resulting words must be ascending.
    """
    words = np.zeros(size, np.uint64)
    if len(offsets):
        word = first_word + (offsets >> 6)
        bits = np.uint64(1) << (offsets & 63).astype(np.uint64)
        starts = _starts_of_equal(word)
        # The bits of a word differ, so that their sum is their union.
        words[word[starts]] = np.add.reduceat(bits, starts)
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The bitmaps of some segments as 64-bit words, to look up many rows at once.

    `words` holds the words of all segments, one segment after the other, and an empty word at the
    end. `starts` has the position of each segment's first word, and then that of the empty word.
    """

    segments: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, bitmaps: Mapping[int, BitMap]) -> "Marks":
        chosen = sorted(segment for segment, bitmap in bitmaps.items() if bitmap)
        offsets = [offsets_of(bitmaps[segment]) for segment in chosen]
        # A segment has words up to its last marked row
        word_counts = [(int(marked[-1]) >> 6) + 1 for marked in offsets]
        starts = np.cumsum([0, *word_counts], dtype=np.int64)
        marks_by_segment = [len(marked) for marked in offsets]
        first_words = np.repeat(starts[:-1], marks_by_segment)
        all_offsets = np.concatenate([*offsets, np.empty(0, np.uint32)])
        words = _packed(first_words, all_offsets, int(starts[-1]) + 1)
        return cls(segments=np.array(chosen, np.int64), starts=starts, words=words)

    def at(
        self, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.bool_]:
        """Return whether each row is marked."""
        if not len(self.segments):
            return np.zeros(len(segment), np.bool_)
        position = np.minimum(np.searchsorted(self.segments, segment), len(self.segments) - 1)
        word = self.starts[position] + (offset >> 6)
        is_known_segment = self.segments[position] == segment
        has_word = is_known_segment & (word < self.starts[position + 1])
        # A row without a word takes the empty one at the end.
        words = self.words[np.where(has_word, word, len(self.words) - 1)]
        bits = words >> (offset & 63).astype(np.uint64)
        return np.asarray(has_word & ((bits & np.uint64(1)) != 0), np.bool_)


def encode_base(bitmaps: Mapping[int, BitMap], origin: Mapping[str, object]) -> bytes:
    """Encode a header, a directory, and the portable roaring bytes of each segment."""
    segments = sorted(bitmaps)
    bodies = [bitmaps[segment].serialize() for segment in segments]
    sizes = [[segment, len(body)] for segment, body in zip(segments, bodies, strict=True)]
    directory = {"origin": dict(origin), "segments": sizes}
    head = json.dumps(directory, sort_keys=True, separators=(",", ":")).encode()
    return _HEAD.pack(MAGIC, len(head), zlib.crc32(head)) + head + b"".join(bodies)


def decode_base(data: bytes, path: str) -> Bitmaps:
    """Decode a bitmap base. The caller has verified the whole file's checksum."""
    with decoding(path, "a bitmap base", "delete it; it is derived and is written again"):
        magic, length, crc = _HEAD.unpack_from(data)
        head = data[_HEAD.size : _HEAD.size + length]
        if magic != MAGIC or zlib.crc32(head) != crc:
            raise ValueError("not a bitmap base of this format")
        bitmaps: Bitmaps = {}
        at = _HEAD.size + length
        for segment, size in parse_json(head)["segments"]:
            rows = BitMap.deserialize(data[at : at + count(size)])
            bitmaps[count(segment)] = rows
            if rows and rows.max() >= MAX_SEGMENT_ROWS:
                raise ValueError(
                    f"it marks row {rows.max()} of segment {segment}, "
                    f"but a segment has at most {MAX_SEGMENT_ROWS:,} rows"
                )
            at += size
        if at != len(data):
            raise ValueError(f"its directory ends at byte {at:,}, the file at {len(data):,}")
        return bitmaps
