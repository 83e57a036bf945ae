"""Few values of many rows, taken out of their pages by position, without decoding the others.

Pages must be as Arrow writes them, without nulls. They have values of one width, which texts like
UUIDs are, too, or indices of a dictionary as packed runs of equal length. Their checksums are
verified. Nothing is taken out of other pages, or of damaged ones: Arrow decodes them, or raises the
error.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa

from opal_lake.data.pages.laid_out import Chunk, open_laid_out
from opal_lake.data.pages.page_index import ChosenPages, Numbers
from opal_lake.data.thrift import (
    BINARY,
    I32,
    LIST,
    STRUCT,
    Struct,
    decode_varint,
    encode_fields,
    encode_struct,
    encode_varint,
    value_of,
)

SPARSE = 16  # rows of the pages for each chosen one: with fewer it is quicker to decode all
_BYTES, _FIXED_BYTES = 6, 7
_WIDTHS = {1: 4, 2: 8, 4: 4, 5: 8}  # of INT32, INT64, FLOAT and DOUBLE
_PLAIN, _RUNS, _INDICES = 0, 3, (2, 8)  # encodings; indices have an old and a new one
_STORED, _ZSTD = 0, 6  # codecs
_REQUIRED, _OPTIONAL = 0, 1
_MAX_BYTES = 16 << 20  # of a page; those of the writer have 1 MB at most
_LENGTH = np.dtype("<u4")  # before each text
_MAX_BITS = 32  # of an index
_SHIFTS = np.arange(0, 40, 8)  # of the bytes that hold an index, at whichever bit it begins

# Plain and stored bytes, checksum, rows and encoding of a page whose header has nothing else.
_NUMBER = rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])"
_DATA_PAGE = re.compile(
    rb"\x15\x00" + 3 * _NUMBER + rb"\x1c" + 2 * _NUMBER + rb"\x15\x06\x15\x06\x00\x00"
)
_DICTIONARY_PAGE = re.compile(
    rb"\x15\x04" + 3 * _NUMBER + rb"\x3c" + 2 * _NUMBER + rb"[\x11\x12]?\x00\x00"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """The plain values of a page, and their number."""

    data: memoryview
    count: int


@dataclass(slots=True, kw_only=True)
class FewValues:
    """Values of a column, added row group by row group.

    They are PLAIN pages, with the position of each row's value among all values.
    """

    element: Struct
    kind: int
    _pages: list[bytes] = field(default_factory=list)
    _count: int = 0
    _positions: list[Numbers] = field(default_factory=list)
    _is_refused: bool = False

    def add(
        self, chosen: ChosenPages, pages: Sequence[memoryview], dictionary: memoryview | None
    ) -> bool:
        """Take the values out of a row group's pages; return False if impossible.

        Then the pages of this row group and of later ones must be decoded.
        """
        is_sparse = SPARSE * len(chosen.row) <= chosen.rows
        extracted = None
        if not self._is_refused and is_sparse and chosen.pages.kind == self.kind:
            extracted = _extracted(chosen, pages, dictionary)
        if extracted is None:
            self._is_refused = True
            return False
        values, positions = extracted
        self._pages.append(_plain_page(values))
        self._positions.append(positions + self._count)
        self._count += values.count
        return True

    def column(self) -> pa.ChunkedArray:
        """Return the values of all rows."""
        _, name = self.element[4]
        coding = {
            1: (I32, self.kind),
            2: (LIST, (I32, [_PLAIN, _RUNS])),
            3: (LIST, (BINARY, [name])),
            4: (I32, _STORED),
        }
        chunk = Chunk(
            element=self.element | {3: (I32, _REQUIRED)},
            coding=encode_fields(coding),
            pages=self._pages,
            rows=self._count,
        )
        values = open_laid_out([chunk]).read_row_group(0, use_threads=False).column(0)
        return values.take(pa.array(np.concatenate(self._positions)))


def _extracted(
    chosen: ChosenPages, pages: Sequence[memoryview], dictionary: memoryview | None
) -> tuple[_Page, Numbers] | None:
    """Return PLAIN values, and which of these each row has; None for other pages."""
    if dictionary is None:
        return _extracted_plain(chosen, pages)
    indices = _dictionary_indices(chosen, pages)
    if indices is None:
        return None
    encodings = (_PLAIN, _INDICES[0])
    words = _page_of(_DICTIONARY_PAGE, dictionary, chosen.pages.codec, encodings)
    if words is None:
        return None
    least_bytes = words.count * _WIDTHS.get(chosen.pages.kind, 1)
    if least_bytes > len(words.data) or (indices >= words.count).any():
        return None
    return words, indices


def _extracted_plain(
    chosen: ChosenPages, pages: Sequence[memoryview]
) -> tuple[_Page, Numbers] | None:
    ends = np.searchsorted(chosen.page_of, np.arange(len(pages)), "right").tolist()
    values: list[bytes] = []
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        page = _values_of(chosen, pages, number, (_PLAIN,))
        if page is None:
            return None
        width = _width_of(chosen, page)
        if width <= 0 or len(page.data) != page.count * width:
            return None
        page_values = np.frombuffer(page.data, f"V{width}")
        values.append(page_values[chosen.row[start:end]].tobytes())
    count = len(chosen.row)
    return _Page(data=memoryview(b"".join(values)), count=count), np.arange(count)


def _width_of(chosen: ChosenPages, page: _Page) -> int:
    """Return the bytes of each value of a PLAIN page, 0 if they differ."""
    kind = chosen.pages.kind
    if kind == _FIXED_BYTES:
        return value_of(chosen.element, 2)
    if kind != _BYTES:
        return _WIDTHS.get(kind, 0)
    length = int.from_bytes(page.data[: _LENGTH.itemsize], "little")
    width, rest = divmod(len(page.data), max(1, page.count))
    if rest or width != _LENGTH.itemsize + length:
        return 0
    lengths = np.ndarray((page.count,), _LENGTH, page.data, strides=(width,))
    return width if (lengths == length).all() else 0


def _dictionary_indices(chosen: ChosenPages, pages: Sequence[memoryview]) -> Numbers | None:
    """Return the index of each row in the dictionary."""
    packed: list[memoryview] = []
    layouts: list[tuple[int, int, int]] = []
    for number in range(len(pages)):
        page = _values_of(chosen, pages, number, _INDICES)
        layout = None if page is None else _run_layout(page)
        if page is None or layout is None:
            return None
        packed.append(page.data)
        layouts.append(layout)
    bits, run_rows, run_bytes = np.array(layouts, np.int64).T[:, chosen.page_of]
    run, row_in_run = np.divmod(chosen.row, run_rows)
    page_begins = np.cumsum([0, *map(len, packed)])[chosen.page_of]
    bit = row_in_run * bits
    # After the page's byte of bits and the head of the run.
    at = page_begins + 2 + run * run_bytes + (bit >> 3)
    octets = np.frombuffer(b"".join([*packed, bytes(len(_SHIFTS))]), np.uint8)
    octets_of_rows = octets[at[:, None] + np.arange(len(_SHIFTS))]
    words = (octets_of_rows.astype(np.int64) << _SHIFTS).sum(axis=1)
    indices: Numbers = words >> (bit & 7) & (1 << bits) - 1
    return indices


def _run_layout(page: _Page) -> tuple[int, int, int] | None:
    """Return the bits of an index, and the rows and bytes of a packed run.

    All runs must be alike, but for a shorter last one. Otherwise return None.
    """
    if len(page.data) < 2:
        return None
    # The head of a packed run is its number of 8 values, doubled, plus 1: here in one byte.
    bits, head = page.data[:2]
    if not 0 < bits <= _MAX_BITS or not head & 1 or not 1 < head <= 0x7F:
        return None
    rows, size = 8 * (head >> 1), 1 + (head >> 1) * bits
    full_runs = (page.count - 1) // rows
    last_rows = page.count - full_runs * rows
    heads = bytes(page.data[1 : 2 + full_runs * size : size])
    if heads[:-1] != bytes([head]) * full_runs:
        return None
    is_packed = heads[-1] & 1 and heads[-1] <= 0x7F
    if not is_packed or 8 * (heads[-1] >> 1) < last_rows:
        return None
    end = 2 + full_runs * size + -(-last_rows * bits // 8)
    if end > len(page.data):
        return None
    return bits, rows, size


def _values_of(
    chosen: ChosenPages, pages: Sequence[memoryview], number: int, encodings: Sequence[int]
) -> _Page | None:
    """Return the values of a page after its levels; None if one may be null."""
    repetition, rows = value_of(chosen.element, 3), int(chosen.counts[number])
    page = _page_of(_DATA_PAGE, pages[number], chosen.pages.codec, encodings)
    if page is None or page.count != rows or repetition not in (_REQUIRED, _OPTIONAL):
        return None
    levels = _no_nulls(rows) if repetition == _OPTIONAL else b""
    if page.data[: len(levels)] != levels:
        return None
    return _Page(data=page.data[len(levels) :], count=rows)


@lru_cache
def _no_nulls(rows: int) -> bytes:
    """Return the levels of an optional column without nulls: one run."""
    run = encode_varint(rows << 1) + b"\x01"
    return len(run).to_bytes(4, "little") + run


def _page_of(
    header: re.Pattern[bytes], page: memoryview, codec: int, encodings: Sequence[int]
) -> _Page | None:
    """Return the inflated values of a page with such a header and a right checksum.

    Return None for another page, or if its encoding is not among `encodings`.
    """
    match = header.match(page)
    if match is None or codec not in (_STORED, _ZSTD):
        return None
    plain_bytes, stored_bytes, crc, count, encoding = map(_number, match.groups())
    data = page[match.end() :]
    if encoding not in encodings or len(data) != stored_bytes or plain_bytes > _MAX_BYTES:
        return None
    if zlib.crc32(data) != crc & 0xFFFFFFFF:
        return None
    if codec == _ZSTD:
        data = memoryview(pa.Codec("zstd").decompress(data, plain_bytes)).cast("B")
    if len(data) != plain_bytes:
        return None
    return _Page(data=data, count=count)


# The numbers of page headers are few, but for checksums.
@lru_cache(maxsize=4096)
def _number(octets: bytes) -> int:
    value, _ = decode_varint(octets, 0)
    return value >> 1 ^ -(value & 1)


def _plain_page(values: _Page) -> bytes:
    size = (I32, len(values.data))
    data_header = {1: (I32, values.count), 2: (I32, _PLAIN), 3: (I32, _RUNS), 4: (I32, _RUNS)}
    header = {1: (I32, 0), 2: size, 3: size, 5: (STRUCT, encode_struct(data_header))}
    return encode_struct(header) + values.data
