"""Few values of many rows, taken out of pages by position, without decoding all values.

A page must be as Arrow writes it, without nulls. It must hold values of one width (UUIDs as texts
have one width, too), or indices of a dictionary as packed runs of equal length. Its checksum is
verified. Nothing is taken out of any other page, or of a damaged one: Arrow decodes it, or raises
the error.
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

SPARSE = 16  # rows of the pages for each chosen row: with fewer it is quicker to decode all rows
_BYTES, _FIXED_BYTES = 6, 7
_WIDTHS = {1: 4, 2: 8, 4: 4, 5: 8}  # of INT32, INT64, FLOAT and DOUBLE
_PLAIN, _RUNS, _INDICES = 0, 3, (2, 8)  # encodings; indices have two numbers, an old and a new one
_STORED, _ZSTD = 0, 6  # codecs
_REQUIRED, _OPTIONAL = 0, 1
_MAX_BYTES = 16 << 20  # of a page; those of the writer have 1 MB at most
_LENGTH = np.dtype("<u4")  # before each text
_MAX_BITS = 32  # of an index
_SHIFTS = np.arange(0, 40, 8)  # of 5 bytes: they hold an index of 32 bits from any bit of the first

# Page headers with these numbers only: plain bytes, stored bytes, checksum, rows and encoding.
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

    `_pages` are PLAIN pages of values, `_count` is their number of values, and `_positions` has the
    position of each row's value among them.
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
        """Take the values of the chosen rows out of a row group's pages.

        Return False if that is impossible: the pages of this row group and of all later ones must
        be decoded then.
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
        """Return the values of all added rows."""
        _, name = self.element[4]
        # The type, encodings, path and codec of a column in a footer
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
    """Return PLAIN values, and the position of each chosen row's value among them.

    Return None for pages that values cannot be taken out of.
    """
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
    """Do as `_extracted` for pages without a dictionary."""
    # Of each page: the first of its chosen rows, and the one after the last
    ends = np.searchsorted(chosen.page_of, np.arange(len(pages)), "right").tolist()
    starts = [0, *ends[:-1]]
    values: list[bytes] = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
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
    """Return the bytes of one value of a PLAIN page; 0 if values differ in length."""
    kind = chosen.pages.kind
    if kind == _FIXED_BYTES:
        return value_of(chosen.element, 2)
    if kind != _BYTES:
        return _WIDTHS.get(kind, 0)
    # Each text follows its length: all have the width of the first if these lengths are equal
    length = int.from_bytes(page.data[: _LENGTH.itemsize], "little")
    width, remainder = divmod(len(page.data), max(1, page.count))
    if remainder or width != _LENGTH.itemsize + length:
        return 0
    lengths = np.ndarray((page.count,), _LENGTH, page.data, strides=(width,))
    return width if (lengths == length).all() else 0


def _dictionary_indices(chosen: ChosenPages, pages: Sequence[memoryview]) -> Numbers | None:
    """Return the dictionary index of each chosen row; None for other pages."""
    packed: list[memoryview] = []
    layouts: list[tuple[int, int, int]] = []
    for number in range(len(pages)):
        page = _values_of(chosen, pages, number, _INDICES)
        if page is None:
            return None
        layout = _run_layout(page)
        if layout is None:
            return None
        packed.append(page.data)
        layouts.append(layout)
    # From here on, every array has an element for each chosen row
    bits, run_rows, run_bytes = np.array(layouts, np.int64).T[:, chosen.page_of]
    run, row_in_run = np.divmod(chosen.row, run_rows)
    page_begin = np.cumsum([0, *map(len, packed)])[chosen.page_of]
    bit_in_run = row_in_run * bits
    # After the page's byte of bits and the head of the run.
    first_byte = page_begin + 2 + run * run_bytes + (bit_in_run >> 3)
    octets = np.frombuffer(b"".join([*packed, bytes(len(_SHIFTS))]), np.uint8)
    octets_of_rows = octets[first_byte[:, None] + np.arange(len(_SHIFTS))]
    words = (octets_of_rows.astype(np.int64) << _SHIFTS).sum(axis=1)
    bit_in_byte = bit_in_run & 7
    mask = (1 << bits) - 1
    indices: Numbers = words >> bit_in_byte & mask
    return indices


def _run_layout(page: _Page) -> tuple[int, int, int] | None:
    """Return the bits of an index, the rows of a packed run, and its bytes.

    Return None unless all runs are packed and of equal length; the last one may be shorter.
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
    """Return the values of a page, without its levels; None if a value may be null."""
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
    """Return the inflated bytes of a page with a matching header and right checksum.

    Return None for any other page, and for an encoding that is not among `encodings`.
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


# Page headers have few different numbers, except for checksums
@lru_cache(maxsize=4096)
def _number(octets: bytes) -> int:
    """Decode a signed number in zigzag form."""
    value, _ = decode_varint(octets, 0)
    return value >> 1 ^ -(value & 1)


def _plain_page(values: _Page) -> bytes:
    """Encode a data page of uncompressed PLAIN values, with its header."""
    size = (I32, len(values.data))
    data_header: Struct = {
        1: (I32, values.count),
        2: (I32, _PLAIN),
        3: (I32, _RUNS),
        4: (I32, _RUNS),
    }
    header: Struct = {
        1: (I32, 0),
        2: size,
        3: size,
        5: (STRUCT, encode_struct(data_header)),
    }
    return encode_struct(header) + values.data
