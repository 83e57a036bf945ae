"""A sorted run as bytes (FORMAT, key-store runs).

A run is a header, a directory of its blocks, for larger runs a filter, and the blocks. A block can
be fetched and decoded alone: a reader that looks for few keys in a remote run reads the header,
asks the filter, and fetches the blocks that may hold them.
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
BLOCK = 8_192  # entries of a block, which a probe reads and decodes whole
MAX_BLOCK, MAX_TIES = 1 << 20, 1 << 10
FILTER_FROM = 1 << 19  # entries; a smaller run is fetched whole
HEAD_GUESS = 16 << 10  # bytes that hold the header and directory of most runs
_MAX_HEADER = 1 << 20
_SPAN_BYTES = 4 << 20  # of neighbouring blocks that are read with one request
_ALL_BITS = (1 << 64) - 1
_HEAD = struct.Struct("<8sII")
_COLUMN = struct.Struct("<QB")
_UNTIED_COLUMNS = 5  # packed ones, next to two for each tie-break column
_CODEC = pa.Codec("zstd", compression_level=1)
_DIRECTORY = np.dtype(
    [("fence", "<u8"), ("at", "<u8"), ("size", "<u4"), ("plain", "<u4"), ("crc32", "<u4")]
)

# Reads so many bytes from a position in a run.
Reader = Callable[[int, int], bytes]
Blocks = npt.NDArray[np.intp]


def encode_run(
    entries: Entries, *, block_entries: int = BLOCK, filter_from: int = FILTER_FROM
) -> bytes:
    """Encode entries as one run.

    They must be sorted, with only the greatest of equal (key, delta). A run of at least
    `filter_from` entries has a filter.
    """
    blocks: list[bytes] = []
    plain_sizes: list[int] = []
    for start in range(0, len(entries), block_entries):
        block, plain_size = _encode_block(entries.take(slice(start, start + block_entries)))
        blocks.append(block)
        plain_sizes.append(plain_size)
    filter_bytes = b""
    if len(entries) >= filter_from:
        filter_bytes = plan_filter(entries.high, entries.low)
    fences = entries.high[::block_entries]
    directory = _directory(fences, blocks, plain_sizes, len(filter_bytes)).tobytes()
    header = {
        "block": block_entries,
        "blocks": len(blocks),
        "count": len(entries),
        "directory_crc32": zlib.crc32(directory),
        "filter": [len(filter_bytes), zlib.crc32(filter_bytes)],
        "ties": len(entries.ties) // 2,
    }
    header_bytes = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    head = _HEAD.pack(MAGIC, len(header_bytes), zlib.crc32(header_bytes))
    return b"".join([head, header_bytes, directory, filter_bytes, *blocks])


def _directory(
    fences: npt.NDArray[np.uint64], blocks: list[bytes], plain_sizes: list[int], filter_size: int
) -> npt.NDArray[np.void]:
    directory = np.zeros(len(blocks), _DIRECTORY)
    if not blocks:
        return directory
    directory["fence"] = fences
    directory["size"] = [len(block) for block in blocks]
    directory["plain"] = plain_sizes
    directory["crc32"] = [zlib.crc32(block) for block in blocks]
    sizes_before = [0, *directory["size"][:-1]]
    directory["at"] = filter_size + np.cumsum(sizes_before)
    return directory


def _encode_block(entries: Entries) -> tuple[bytes, int]:
    """Encode a block; return it with the size of its columns before compression."""
    columns = [pack_sorted(entries.high), *(pack(column) for column in _packed_columns(entries))]
    pieces: list[bytes | memoryview] = []
    for column in columns:
        pieces += [_COLUMN.pack(column.base & _ALL_BITS, column.width), column.planes]
    plain = b"".join(pieces)
    # Nothing can compress the low words of a hash: they are stored as they are.
    low = entries.low.astype("<u8", copy=False).tobytes()
    return low + _CODEC.compress(plain, asbytes=True), len(plain)


def _packed_columns(entries: Entries) -> list[npt.NDArray[np.generic]]:
    """Return the columns in the order of the format, which `_decode_columns` reads."""
    return [
        entries.delta,
        *entries.ties,
        entries.segment,
        entries.offset,
        entries.deleted.view(np.int8),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIndex:
    """The header and directory of a run, with the first hash word of each block."""

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
        """The first hash word of each block."""
        fences: npt.NDArray[np.uint64] = self.directory["fence"]
        return fences

    def rows(self, block: int) -> int:
        return min(self.block, self.count - block * self.block)

    def block_begin(self, block: int) -> int:
        """Return where a block begins, in bytes after `start`."""
        return int(self.directory["at"][block])

    def block_size(self, block: int) -> int:
        return int(self.directory["size"][block])

    def blocks_of(self, words: npt.NDArray[np.uint64]) -> Blocks:
        """Return the blocks that may hold entries with one of these first hash words."""
        if not self.count:
            return np.empty(0, np.intp)
        # A word below the first fence is in no block.
        words = words[words >= self.fences[0]]
        # Entries of a word may begin in the block before the first one with this fence.
        first = np.maximum(np.searchsorted(self.fences, words, "left") - 1, 0)
        last = np.searchsorted(self.fences, words, "right") - 1
        # A range of blocks begins with +1 and ends before -1: a block is in a range if the sum up
        # to it is above 0.
        marks = np.zeros(len(self.directory) + 1, np.int64)
        np.add.at(marks, first, 1)
        np.add.at(marks, last + 1, -1)
        return np.flatnonzero(np.cumsum(marks[:-1]))

    def blocks_between(self, low: int, high: int) -> range:
        """Return the blocks with first hash words from `low` to `high`."""
        # As words: numpy compares plain integers as floats.
        first = int(np.searchsorted(self.fences, np.uint64(low), "left")) - 1
        past = int(np.searchsorted(self.fences, np.uint64(high), "right"))
        return range(max(first, 0), past)


def open_index(read: Reader, path: str) -> RunIndex:
    """Read the header and the directory, with one read if they are not too long."""
    data = read(0, HEAD_GUESS)
    try:
        magic, length, crc = _HEAD.unpack_from(data)
        if magic == _PRE_RELEASE:
            raise pre_release(path)
        if magic != MAGIC or length > _MAX_HEADER:
            raise ValueError("it does not begin as a run")
        start = _HEAD.size + length
        header_bytes = data[_HEAD.size : start]
        if zlib.crc32(header_bytes) != crc:
            raise ValueError("its header does not match its checksum")
        header = checked.parse_json(header_bytes)
        _check_header(header)
        size = header["blocks"] * _DIRECTORY.itemsize
        directory = data[start : start + size]
        if len(directory) < size:
            directory += read(start + len(directory), size - len(directory))
        if zlib.crc32(directory) != header["directory_crc32"]:
            raise ValueError("its directory does not match its checksum")
        return RunIndex(
            path=path,
            count=header["count"],
            block=header["block"],
            ties=header["ties"],
            directory=np.frombuffer(directory, _DIRECTORY),
            start=start + size,
            filter_size=header["filter"][0],
            filter_crc32=header["filter"][1],
        )
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise damaged(path, str(error)) from error


def _check_header(header: dict[str, Any]) -> None:
    """Raise ValueError for counts that contradict each other, or are too large.

    Memory will be allocated by these counts.
    """
    entries = checked.count(header["count"])
    block = checked.count(header["block"])
    blocks = checked.count(header["blocks"])
    ties = checked.count(header["ties"])
    filter_size, _ = map(checked.count, header["filter"])
    is_valid = (
        0 < block <= MAX_BLOCK
        and blocks == -(-entries // block)
        and ties <= MAX_TIES
        and max(blocks, filter_size) < 1 << 32
    )
    if not is_valid:
        raise ValueError(
            f"{entries} entries in {blocks} blocks of {block}, with {ties} tie-breaks, "
            "do not fit this format"
        )


def damaged(path: str, what: str) -> FormatError:
    return FormatError(f"key-store run {path} is damaged: {what}; {MEND}")


def read_blocks(index: RunIndex, read: Reader, blocks: Blocks | range) -> Iterator[Entries]:
    """Yield the entries of blocks in order, one block at a time.

    Neighbouring blocks are read with one request, up to a few MB.
    """
    for first, last in _spans(index, blocks):
        begin = index.block_begin(first)
        end = index.block_begin(last) + index.block_size(last)
        data = memoryview(read(index.start + begin, end - begin))
        for block in range(first, last + 1):
            at = index.block_begin(block) - begin
            yield _decode_block(index, block, data[at : at + index.block_size(block)])


def _spans(index: RunIndex, blocks: Blocks | range) -> Iterator[tuple[int, int]]:
    """Yield the first and last block of each request."""
    numbers = np.asarray(blocks, np.intp)
    if not len(numbers):
        return
    at = index.directory["at"][numbers]
    is_apart = np.diff(numbers) != 1
    is_next_request = np.diff((at - at[0]) // _SPAN_BYTES) != 0
    breaks = np.flatnonzero(is_apart | is_next_request) + 1
    for begin, end in pairwise([0, *breaks.tolist(), len(numbers)]):
        yield int(numbers[begin]), int(numbers[end - 1])


def _decode_block(index: RunIndex, block: int, data: memoryview) -> Entries:
    if zlib.crc32(data) != index.directory["crc32"][block]:
        raise damaged(index.path, f"block {block} does not match its checksum")
    count = index.rows(block)
    column_count = _UNTIED_COLUMNS + 2 * index.ties
    try:
        size = int(index.directory["plain"][block])
        # Both before memory is allocated: the sizes come from the file.
        if 8 * count > len(data):
            raise ValueError(f"{len(data):,} bytes are fewer than {count:,} entries take")
        if size > column_count * (_COLUMN.size + 8 * count):
            raise ValueError(f"{size:,} bytes are more than {count} entries take")
        plain = _CODEC.decompress(data[8 * count :], size, asbytes=True)
        columns = _split_columns(memoryview(plain), count, column_count)
        return _decode_columns(columns, np.frombuffer(data, "<u8", count), count)
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


def _split_columns(plain: memoryview, count: int, column_count: int) -> list[Packed]:
    columns: list[Packed] = []
    at = 0
    for _ in range(column_count):
        base, width = _COLUMN.unpack_from(plain, at)
        at += _COLUMN.size
        columns.append(Packed(base=base, width=width, planes=plain[at : at + width * count]))
        at += width * count
    return columns


def _decode_columns(columns: list[Packed], low: npt.NDArray[np.uint64], count: int) -> Entries:
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
    """Read the filter, which is empty for small runs."""
    if not index.filter_size:
        return b""
    filter_bytes = read(index.start, index.filter_size)
    if zlib.crc32(filter_bytes) != index.filter_crc32:
        raise damaged(index.path, "its filter does not match its checksum")
    return filter_bytes


def blocks_to_probe(index: RunIndex, read: Reader, new: Entries) -> Blocks:
    """Return the blocks that may hold a key of `new`.

    The filter is read only if it is smaller than the blocks that it may rule out.
    """
    blocks = index.blocks_of(new.high)
    block_bytes = int(index.directory["size"][blocks].sum(dtype=np.int64))
    if not 0 < index.filter_size < block_bytes:
        return blocks
    is_possible = may_hold(read_filter(index, read), new.high, new.low)
    return index.blocks_of(new.high[is_possible])


def decode_run(data: bytes, path: str) -> Entries:
    """Decode all entries of a run whose bytes are in memory."""
    reader = reader_of(data)
    index = open_index(reader, path)
    read_filter(index, reader)  # only to verify its checksum
    every_block = range(len(index.directory))
    return concat_entries([no_entries(index.ties), *read_blocks(index, reader, every_block)])


def reader_of(data: bytes | memoryview) -> Reader:
    return lambda start, length: bytes(data[start : start + length])
