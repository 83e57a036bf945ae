"""A sorted run as bytes (FORMAT, key-store runs).

A run is a header, a directory of its blocks, for larger runs a filter, and the blocks. A block can be fetched and decoded alone: whoever
looks for few keys in a run that is far away reads the header, asks the filter, and fetches the blocks that may hold them.
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake import checked
from opal_lake.errors import FormatError, pre_release
from opal_lake.key_store.columns import Packed, pack, pack_sorted, unpack, unpack_sorted
from opal_lake.key_store.entries import Entries, concat_entries, no_entries
from opal_lake.key_store.filter import may_hold, plan_filter

MAGIC = b"OPALRUN1"
_PRE_RELEASE = b"OPALRUN2"
MEND = "`opal rebuild-key-store` rebuilds the key store from the data files"
BLOCK = 8_192
MOST_BLOCK, MOST_TIES = 1 << 20, 1 << 10
FILTER_FROM = 1 << 19  # entries; a smaller run is fetched whole
HEAD_GUESS = 16 << 10  # bytes that hold the header and directory of most runs
_HEAD = struct.Struct("<8sII")
_COLUMN = struct.Struct("<QB")
_CODEC = pa.Codec("zstd", compression_level=1)
_DIRECTORY = np.dtype(
    [("fence", "<u8"), ("at", "<u8"), ("size", "<u4"), ("plain", "<u4"), ("crc32", "<u4")]
)

Reader = Callable[[int, int], bytes]
Blocks = npt.NDArray[np.intp]


def encode_run(entries: Entries) -> bytes:
    """Sorted entries, of equal (key, delta) only the greatest, as one run."""
    bodies = [
        _encode_block(entries.take(slice(start, start + BLOCK)))
        for start in range(0, len(entries), BLOCK)
    ]
    held = plan_filter(entries.high, entries.low) if len(entries) >= FILTER_FROM else b""
    directory = np.zeros(len(bodies), _DIRECTORY)
    directory["fence"] = entries.high[::BLOCK]
    directory["size"] = [len(body) for body, _ in bodies]
    directory["plain"] = [plain for _, plain in bodies]
    directory["crc32"] = [zlib.crc32(body) for body, _ in bodies]
    directory["at"] = len(held) + np.cumsum([0, *directory["size"][:-1]]) if bodies else 0
    listed = directory.tobytes()
    header = {
        "block": BLOCK,
        "blocks": len(bodies),
        "count": len(entries),
        "directory_crc32": zlib.crc32(listed),
        "filter": [len(held), zlib.crc32(held)],
        "ties": len(entries.ties) // 2,
    }
    head = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return b"".join(
        [
            _HEAD.pack(MAGIC, len(head), zlib.crc32(head)),
            head,
            listed,
            held,
            *(body for body, _ in bodies),
        ]
    )


def _encode_block(entries: Entries) -> tuple[bytes, int]:
    """The low words as they are, which nothing can compress; all else packed and compressed."""
    columns = [pack_sorted(entries.high), *(pack(column) for column in _packed_columns(entries))]
    plain = b"".join(
        [_COLUMN.pack(column.base & _ALL, column.width) + column.planes for column in columns]
    )
    return entries.low.astype("<u8", copy=False).tobytes() + _CODEC.compress(
        plain, asbytes=True
    ), len(plain)


_ALL = (1 << 64) - 1


def _packed_columns(entries: Entries) -> list[npt.NDArray[np.generic]]:
    return [
        entries.delta,
        *entries.ties,
        entries.segment,
        entries.offset,
        entries.deleted.view(np.int8),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIndex:
    """What a run says of itself: where its blocks lie, and their first hash words."""

    path: str
    count: int
    block: int
    ties: int
    directory: npt.NDArray[np.void]
    start: int
    filter_size: int
    filter_crc32: int

    @property
    def size(self) -> int:
        """The bytes of the whole run."""
        return self.start + self.filter_size + int(self.directory["size"].sum(dtype=np.int64))

    @property
    def fences(self) -> npt.NDArray[np.uint64]:
        fences: npt.NDArray[np.uint64] = self.directory["fence"]
        return fences

    def rows(self, block: int) -> int:
        return min(self.block, self.count - block * self.block)

    def blocks_of(self, words: npt.NDArray[np.uint64]) -> Blocks:
        """The blocks that may hold entries with one of these first hash words."""
        words = words[words >= self.fences[0]] if self.count else words[:0]
        first = np.maximum(np.searchsorted(self.fences, words, "left") - 1, 0)
        last = np.searchsorted(self.fences, words, "right") - 1
        marks = np.zeros(len(self.directory) + 1, np.int64)
        np.add.at(marks, first, 1)
        np.add.at(marks, last + 1, -1)
        return np.flatnonzero(np.cumsum(marks[:-1]))

    def blocks_between(self, low: int, high: int) -> range:
        """The blocks with first hash words from `low` to `high`."""
        first = int(np.searchsorted(self.fences, np.uint64(low), "left")) - 1
        return range(max(first, 0), int(np.searchsorted(self.fences, np.uint64(high), "right")))


def open_index(read: Reader, path: str) -> RunIndex:
    """The header and directory, with one read where they are as short as usual."""
    data = read(0, HEAD_GUESS)
    try:
        magic, length, crc = _HEAD.unpack_from(data)
        if magic == _PRE_RELEASE:
            raise pre_release(path)
        if magic != MAGIC or length > 1 << 20:
            raise ValueError("it does not begin as a run")
        head = data[_HEAD.size : _HEAD.size + length]
        if zlib.crc32(head) != crc:
            raise ValueError("its header is not what was written")
        header = checked.parse_json(head)
        _check_header(header)
        start, size = _HEAD.size + length, header["blocks"] * _DIRECTORY.itemsize
        listed = data[start : start + size]
        if len(listed) < size:
            listed += read(start + len(listed), size - len(listed))
        if zlib.crc32(listed) != header["directory_crc32"]:
            raise ValueError("its directory is not what was written")
        return RunIndex(
            path=path,
            count=header["count"],
            block=header["block"],
            ties=header["ties"],
            directory=np.frombuffer(listed, _DIRECTORY),
            start=start + size,
            filter_size=header["filter"][0],
            filter_crc32=header["filter"][1],
        )
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise damaged(path, str(error)) from error


def _check_header(header: dict[str, Any]) -> None:
    """What is made room for follows from these."""
    entries, block, blocks, ties = (
        checked.count(header[name]) for name in ("count", "block", "blocks", "ties")
    )
    filter_size, _ = map(checked.count, header["filter"])
    if (
        not 0 < block <= MOST_BLOCK
        or blocks != -(-entries // block)
        or ties > MOST_TIES
        or max(blocks, filter_size) >= 1 << 32
    ):
        raise ValueError(
            f"{entries} entries in {blocks} blocks of {block}, with {ties} tie-breaks, are none of this format"
        )


def damaged(path: str, what: str) -> FormatError:
    return FormatError(f"key-store run {path} is damaged: {what}; {MEND}")


def read_blocks(index: RunIndex, read: Reader, blocks: Blocks | range) -> Iterator[Entries]:
    """The entries of blocks in order, one block at a time; blocks that lie side by side are read at once, up to a few MB."""
    for first, last in _spans(index, blocks):
        begin, end = (
            int(index.directory["at"][first]),
            int(index.directory["at"][last]) + int(index.directory["size"][last]),
        )
        data = memoryview(read(index.start + begin, end - begin))
        for block in range(first, last + 1):
            at = int(index.directory["at"][block]) - begin
            yield _decode_block(index, block, data[at : at + int(index.directory["size"][block])])


_SPAN_BYTES = 4 << 20


def _spans(index: RunIndex, blocks: Blocks | range) -> Iterator[tuple[int, int]]:
    places = np.asarray(blocks, np.intp)
    if not len(places):
        return
    at = index.directory["at"][places]
    breaks = (np.diff(places) != 1) | (np.diff((at - at[0]) // _SPAN_BYTES) != 0)
    ends = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(places)]
    for begin, end in pairwise(ends):
        yield int(places[begin]), int(places[end - 1])


def _decode_block(index: RunIndex, block: int, data: memoryview) -> Entries:
    if zlib.crc32(data) != index.directory["crc32"][block]:
        raise damaged(index.path, f"block {block} is not what was written")
    count = index.rows(block)
    try:
        size = int(index.directory["plain"][block])
        if 8 * count > len(data):
            raise ValueError(f"{len(data):,} bytes are fewer than {count:,} entries take")
        if size > (5 + 2 * index.ties) * (_COLUMN.size + 8 * count):
            raise ValueError(f"{size:,} bytes are more than {count} entries take")
        plain = _CODEC.decompress(data[8 * count :], size, asbytes=True)
        columns = _columns(memoryview(plain), count, 5 + 2 * index.ties)
        return _entries(columns, np.frombuffer(data, "<u8", count), count)
    except (
        ValueError,
        IndexError,
        TypeError,
        OverflowError,
        struct.error,
        pa.ArrowException,
        OSError,
    ) as error:
        raise damaged(index.path, f"block {block} cannot be decoded ({error})") from error


def _columns(plain: memoryview, count: int, column_count: int) -> list[Packed]:
    columns, at = [], 0
    for _ in range(column_count):
        base, width = _COLUMN.unpack_from(plain, at)
        at += _COLUMN.size
        columns.append(Packed(base=base, width=width, planes=plain[at : at + width * count]))
        at += width * count
    return columns


def _entries(columns: list[Packed], low: npt.NDArray[np.uint64], count: int) -> Entries:
    delta, *ties, segment, offset, deleted = (unpack(column, count) for column in columns[1:])
    return Entries(
        high=unpack_sorted(columns[0], count),
        low=low.astype(np.uint64, copy=False),
        delta=delta,
        ties=tuple(ties),
        segment=segment,
        offset=offset.astype(np.int32),
        deleted=deleted.astype(np.bool_),
    )


def read_filter(index: RunIndex, read: Reader) -> bytes:
    """The filter, empty for small runs."""
    if not index.filter_size:
        return b""
    held = read(index.start, index.filter_size)
    if zlib.crc32(held) != index.filter_crc32:
        raise damaged(index.path, "its filter is not what was written")
    return held


def blocks_to_probe(index: RunIndex, read: Reader, new: Entries) -> Blocks:
    """The blocks that may hold a key of `new`. The filter is asked where it is less to read than what it may save."""
    blocks = index.blocks_of(new.high)
    if 0 < index.filter_size < int(index.directory["size"][blocks].sum(dtype=np.int64)):
        blocks = index.blocks_of(new.high[may_hold(read_filter(index, read), new.high, new.low)])
    return blocks


def decode_run(data: bytes, path: str) -> Entries:
    """All entries of a run that is at hand."""
    reader = reader_of(data)
    index = open_index(reader, path)
    read_filter(index, reader)
    return concat_entries(
        [no_entries(index.ties), *read_blocks(index, reader, range(len(index.directory)))]
    )


def reader_of(data: bytes | memoryview) -> Reader:
    return lambda start, length: bytes(data[start : start + length])
