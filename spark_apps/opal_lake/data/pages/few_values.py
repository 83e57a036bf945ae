"""Few values of many rows: taken out of their pages by their places, without decoding the others.

That is done of pages as Arrow writes them, without nulls, that hold values of one width, as texts like UUIDs are, too, or places in a
dictionary as packed runs of equal length. Their checksums are verified. Of pages that are otherwise, or whose values are damaged, nothing
is taken: Arrow decodes them, or says what is wrong.
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

SPARSE = 16  # rows of the pages for each chosen one: of fewer it is quicker to decode all
_BYTES, _FIXED_BYTES = 6, 7
_WIDTHS = {1: 4, 2: 8, 4: 4, 5: 8}  # of INT32, INT64, FLOAT and DOUBLE
_PLAIN, _RUNS, _PLACES = 0, 3, (2, 8)  # encodings; places in a dictionary have an old and a new one
_STORED, _ZSTD = 0, 6  # codecs
_REQUIRED, _OPTIONAL = 0, 1
_MOST_BYTES = 16 << 20  # of a page; those of the writer have 1 MB at most
_LENGTH = np.dtype("<u4")  # before each text
_MOST_BITS = 32  # of a place
_SHIFTS = np.arange(0, 40, 8)  # of the bytes that hold one, wherever it begins

# Bytes plain and stored, checksum, rows and encoding of a page whose header says nothing else.
_NUMBER = rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])"
_DATA_PAGE = re.compile(
    rb"\x15\x00" + 3 * _NUMBER + rb"\x1c" + 2 * _NUMBER + rb"\x15\x06\x15\x06\x00\x00"
)
_DICTIONARY_PAGE = re.compile(
    rb"\x15\x04" + 3 * _NUMBER + rb"\x3c" + 2 * _NUMBER + rb"[\x11\x12]?\x00\x00"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """What a page holds, and how many values these are."""

    data: memoryview
    count: int


@dataclass(slots=True, kw_only=True)
class FewValues:
    """Of a column, row group by row group: values as PLAIN pages, and the place of each row's among all of them."""

    element: Struct
    kind: int
    _pages: list[bytes] = field(default_factory=list)
    _count: int = 0
    _places: list[Numbers] = field(default_factory=list)
    _is_refused: bool = False

    def add(
        self, chosen: ChosenPages, pages: Sequence[memoryview], dictionary: memoryview | None
    ) -> bool:
        """False if the pages have to be decoded; then those of later row groups are, too."""
        is_fit = (
            not self._is_refused
            and SPARSE * len(chosen.row) <= chosen.rows
            and chosen.pages.kind == self.kind
        )
        taken = _taken(chosen, pages, dictionary) if is_fit else None
        self._is_refused = taken is None
        if taken is None:
            return False
        values, places = taken
        self._pages.append(_plain_page(values))
        self._places.append(places + self._count)
        self._count += values.count
        return True

    def column(self) -> pa.ChunkedArray:
        """The values of all rows."""
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
        return values.take(pa.array(np.concatenate(self._places)))


def _taken(
    chosen: ChosenPages, pages: Sequence[memoryview], dictionary: memoryview | None
) -> tuple[_Page, Numbers] | None:
    """PLAIN values, and which of these each row has."""
    if dictionary is None:
        return _taken_plain(chosen, pages)
    numbers = _page_numbers(chosen, pages)
    words = (
        None
        if numbers is None
        else _page_of(_DICTIONARY_PAGE, dictionary, chosen.pages.codec, (_PLAIN, _PLACES[0]))
    )
    if (
        numbers is None
        or words is None
        or words.count * _WIDTHS.get(chosen.pages.kind, 1) > len(words.data)
    ):
        return None
    return (words, numbers) if (numbers < words.count).all() else None


def _taken_plain(chosen: ChosenPages, pages: Sequence[memoryview]) -> tuple[_Page, Numbers] | None:
    ends = np.searchsorted(chosen.page_of, np.arange(len(pages)), "right").tolist()
    values = []
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        page = _values_of(chosen, pages, number, (_PLAIN,))
        width = _width_of(chosen, page) if page else 0
        if page is None or width <= 0 or len(page.data) != page.count * width:
            return None
        values.append(np.frombuffer(page.data, f"V{width}")[chosen.row[start:end]].tobytes())
    count = len(chosen.row)
    return _Page(data=memoryview(b"".join(values)), count=count), np.arange(count)


def _width_of(chosen: ChosenPages, page: _Page) -> int:
    """The bytes of each value of a PLAIN page, 0 if they differ."""
    kind = chosen.pages.kind
    if kind != _BYTES:
        return value_of(chosen.element, 2) if kind == _FIXED_BYTES else _WIDTHS.get(kind, 0)
    length = int.from_bytes(page.data[: _LENGTH.itemsize], "little")
    width, rest = divmod(len(page.data), max(1, page.count))
    if rest or width != _LENGTH.itemsize + length:
        return 0
    lengths = np.ndarray((page.count,), _LENGTH, page.data, strides=(width,))
    return width if (lengths == length).all() else 0


def _page_numbers(chosen: ChosenPages, pages: Sequence[memoryview]) -> Numbers | None:
    """Of each row its place in the dictionary."""
    packed, runs = [], []
    for number in range(len(pages)):
        page = _values_of(chosen, pages, number, _PLACES)
        layout = None if page is None else _run_of(page)
        if page is None or layout is None:
            return None
        packed.append(page.data)
        runs.append(layout)
    bits, run_rows, run_bytes = np.array(runs, np.int64).T[:, chosen.page_of]
    run, nth = np.divmod(chosen.row, run_rows)
    begins = np.cumsum([0, *map(len, packed)])[chosen.page_of]
    bit = nth * bits
    at = begins + 2 + run * run_bytes + (bit >> 3)
    octets = np.frombuffer(b"".join([*packed, bytes(len(_SHIFTS))]), np.uint8)
    words = (octets[at[:, None] + np.arange(len(_SHIFTS))].astype(np.int64) << _SHIFTS).sum(axis=1)
    numbers: Numbers = words >> (bit & 7) & (1 << bits) - 1
    return numbers


def _run_of(page: _Page) -> tuple[int, int, int] | None:
    """The bits of a place, and the rows and bytes of a packed run, if all runs are such, but for a shorter last one."""
    bits, head = page.data[:2] if len(page.data) > 1 else (0, 0)
    if not 0 < bits <= _MOST_BITS or not head & 1 or not 1 < head <= 0x7F:
        return None
    rows, size = 8 * (head >> 1), 1 + (head >> 1) * bits
    others = (page.count - 1) // rows
    heads = bytes(page.data[1 : 2 + others * size : size])
    left = page.count - others * rows
    if (
        heads[:-1] != bytes([head]) * others
        or not heads[-1] & 1
        or heads[-1] > 0x7F
        or 8 * (heads[-1] >> 1) < left
    ):
        return None
    return (
        (bits, rows, size) if 2 + others * size + -(-left * bits // 8) <= len(page.data) else None
    )


def _values_of(
    chosen: ChosenPages, pages: Sequence[memoryview], number: int, encodings: Sequence[int]
) -> _Page | None:
    """A page without its levels, if no value is null."""
    repetition, rows = value_of(chosen.element, 3), int(chosen.counts[number])
    page = _page_of(_DATA_PAGE, pages[number], chosen.pages.codec, encodings)
    levels = _no_nulls(rows) if repetition == _OPTIONAL else b""
    if (
        page is None
        or page.count != rows
        or repetition not in (_REQUIRED, _OPTIONAL)
        or page.data[: len(levels)] != levels
    ):
        return None
    return _Page(data=page.data[len(levels) :], count=rows)


@lru_cache
def _no_nulls(rows: int) -> bytes:
    """The levels of an optional column without nulls: a run."""
    run = encode_varint(rows << 1) + b"\x01"
    return len(run).to_bytes(4, "little") + run


def _page_of(
    header: re.Pattern[bytes], page: memoryview, codec: int, encodings: Sequence[int]
) -> _Page | None:
    """What such a page holds, in one of the encodings, if its checksum is right."""
    told = header.match(page)
    if told is None or codec not in (_STORED, _ZSTD):
        return None
    plain, stored, crc, count, encoding = map(_number, told.groups())
    data = page[told.end() :]
    if (
        encoding not in encodings
        or len(data) != stored
        or plain > _MOST_BYTES
        or zlib.crc32(data) != crc & 0xFFFFFFFF
    ):
        return None
    if codec == _ZSTD:
        data = memoryview(pa.Codec("zstd").decompress(data, plain)).cast("B")
    return _Page(data=data, count=count) if len(data) == plain else None


@lru_cache(maxsize=4096)
def _number(octets: bytes) -> int:
    """The same few, but for checksums."""
    value, _ = decode_varint(octets, 0)
    return value >> 1 ^ -(value & 1)


def _plain_page(values: _Page) -> bytes:
    size = (I32, len(values.data))
    about = {1: (I32, values.count), 2: (I32, _PLAIN), 3: (I32, _RUNS), 4: (I32, _RUNS)}
    return (
        encode_struct({1: (I32, 0), 2: size, 3: size, 5: (STRUCT, encode_struct(about))})
        + values.data
    )
