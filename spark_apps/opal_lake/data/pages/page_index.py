"""Where the pages of a Parquet file lie, by its footer and offset indexes. All of it is untrusted."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from opal_lake.data.segment import check_rows
from opal_lake.data.thrift import (
    BINARY,
    LONG_LIST,
    STRUCT,
    Struct,
    decode_struct,
    decode_varint,
    encode_fields,
    struct_of,
    structs_of,
    value_of,
)

Numbers = npt.NDArray[np.int64]

_TAIL = struct.Struct("<I4s")  # the footer's length, and the magic
_MOST_FOOTER = 1 << 20  # bytes: the objects of a larger one would take more memory than a row group
_REPEATED = 2
_CODING = (1, 2, 3, 4)  # of what a footer says of a chunk: type, encodings, path, codec
_BYTE_ARRAY = 6
_LIST_FIELD = 0x19  # field 1, a list
_LOCATION = np.array(
    [0x16, -1, 0x15, -1, 0x16, -1, 0x00]
)  # field 1, a long; field 2, an int; field 3, a long; the end
_MOST_OCTETS = 9  # of a number that fits into a word


@dataclass(frozen=True, slots=True)
class Pages:
    """The data pages of a column in a row group: where each begins in the file, its bytes with the header, and its first row.

    `coding` are the fields of the footer that tell how to decode them, among these their type and codec. Their dictionary lies between
    two bytes of the file.
    """

    coding: bytes
    kind: int
    codec: int
    is_text_by_dictionary: bool
    starts: Numbers
    sizes: Numbers
    first_rows: Numbers
    dictionary: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPages:
    """Of a column the pages of one row group that hold chosen rows: their bytes in the file, their rows, and where each chosen one is."""

    element: Struct
    pages: Pages
    spans: list[tuple[int, int]]
    counts: Numbers
    page_of: Numbers
    row: Numbers

    @property
    def all_spans(self) -> list[tuple[int, int]]:
        """With the dictionary, which comes first."""
        return [self.pages.dictionary, *self.spans] if self.pages.dictionary else self.spans

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def chosen(self) -> Numbers:
        """The chosen ones among all rows of the pages."""
        before: Numbers = np.cumsum(self.counts) - self.counts
        return before[self.page_of] + self.row


@dataclass(frozen=True, kw_only=True)
class PageIndex:
    """Of a file. `groups` are its row groups as the footer has them, `first_rows` those of each, and one more for the end.

    `columns` are those that are leaves themselves, by name: their number among all leaves, and what the schema says of them. `others` are
    nested. Without any, the footer was too large to take apart.
    """

    tail: bytes
    size: int
    columns: dict[str, tuple[int, Struct]]
    others: frozenset[str]
    groups: list[list[Struct]]
    first_rows: Numbers
    _pages: dict[tuple[int, int], Pages] = field(default_factory=dict)

    def pages(self, group: int, column: int) -> Pages:
        """ValueError where no such column can be. Without an index of its pages the whole of it is one page."""
        known = self._pages.get((group, column))
        if known is None:
            known = self._pages[group, column] = self._find_pages(self.groups[group][column], group)
        return known

    def choose(self, group: int, names: Sequence[str], rows: Numbers) -> dict[str, ChosenPages]:
        """The pages of columns that hold some rows of a row group, given in ascending order."""
        known: dict[bytes, tuple[Numbers, Numbers, Numbers, Numbers]] = {}
        chosen = {}
        for name in names:
            column, element = self.columns[name]
            pages = self.pages(group, column)
            first_rows = pages.first_rows.tobytes()
            if first_rows not in known:
                at = np.searchsorted(pages.first_rows, rows, "right") - 1
                numbers, page_of = np.unique(at, return_inverse=True)
                counts = np.diff(
                    pages.first_rows, append=self.first_rows[group + 1] - self.first_rows[group]
                )[numbers]
                known[first_rows] = numbers, counts, page_of, rows - pages.first_rows[at]
            numbers, counts, page_of, row = known[first_rows]
            starts = pages.starts[numbers]
            spans = [*zip(starts.tolist(), (starts + pages.sizes[numbers]).tolist(), strict=True)]
            chosen[name] = ChosenPages(
                element=element, pages=pages, spans=spans, counts=counts, page_of=page_of, row=row
            )
        return chosen

    def _find_pages(self, chunk: Struct, group: int) -> Pages:
        meta, end = struct_of(chunk, 3), self.size - len(self.tail)
        begin = min(filter(None, (value_of(meta, 9), value_of(meta, 11))), default=0)
        size, rows = value_of(meta, 7), int(self.first_rows[group + 1] - self.first_rows[group])
        start, length = value_of(chunk, 4), value_of(chunk, 5)
        if not (0 < begin < begin + size <= end and rows):
            raise ValueError(
                f"a column of {rows:,} rows cannot lie in {size:,} bytes at byte {begin:,} of {end:,}"
            )
        coding = encode_fields({number: meta[number] for number in _CODING if number in meta})
        kind, codec = value_of(meta, 1), value_of(meta, 4)
        is_text = kind == _BYTE_ARRAY and value_of(meta, 11) > 0
        if not start or not length:
            first_byte, octets, first_row = (
                np.array([number], np.int64) for number in (begin, size, 0)
            )
            return Pages(coding, kind, codec, is_text, first_byte, octets, first_row)
        first = start - end
        if not 0 <= first <= first + length <= len(self.tail):
            raise ValueError(
                f"an offset index at byte {start:,} lies outside of what follows the pages"
            )
        starts, sizes, first_rows = _decode_locations(self.tail[first : first + length])
        pages = Pages(coding, kind, codec, is_text, starts, sizes, first_rows)
        _check_pages(pages, rows, begin, begin + size)
        return (
            replace(pages, dictionary=(begin, int(pages.starts[0])))
            if pages.starts[0] > begin
            else pages
        )


def decode_page_index(tail: bytes, size: int) -> PageIndex:
    """Of a file of `size` bytes that ends with `tail`."""
    length, magic = _TAIL.unpack(tail[-_TAIL.size :])
    if magic != b"PAR1" or length > len(tail) - _TAIL.size:
        raise ValueError("it does not end as Parquet files do")
    if length > _MOST_FOOTER:
        return PageIndex(
            tail=b"",
            size=size,
            columns={},
            others=frozenset(),
            groups=[],
            first_rows=np.zeros(1, np.int64),
        )
    footer = decode_struct(tail[-_TAIL.size - length : -_TAIL.size])
    groups = structs_of(footer, 4)
    rows = [check_rows(value_of(group, 3), size) for group in groups]
    columns, others = _columns(structs_of(footer, 2))
    return PageIndex(
        tail=tail,
        size=size,
        columns=columns,
        others=frozenset(others),
        groups=[structs_of(group, 1) for group in groups],
        first_rows=np.cumsum([0, *rows], dtype=np.int64),
    )


def _columns(schema: list[Struct]) -> tuple[dict[str, tuple[int, Struct]], set[str]]:
    """Those of the top that are leaves, and the names of the others."""
    columns: dict[str, tuple[int, Struct]] = {}
    others: set[str] = set()
    leaf, within = 0, 0
    for element in schema[1:]:
        children, (kind, name) = value_of(element, 5), element.get(4, (0, None))
        if kind != BINARY:
            raise ValueError("a column has no name")
        if not within and (children or value_of(element, 3) == _REPEATED):
            others.add(name.decode())
        elif not within:
            columns[name.decode()] = (leaf, element)
        leaf += not children
        within = within + children if within == 0 else within - 1 + children
    return columns, others


def _decode_locations(data: bytes) -> list[Numbers]:
    """Where pages begin, their bytes, and their first rows: a list of structs of three numbers. Nothing behind it is read."""
    if len(data) < 2 or data[0] != _LIST_FIELD or data[1] & 0x0F != STRUCT:
        raise ValueError("an offset index does not begin with its pages")
    count, at = data[1] >> 4, 2
    if count == LONG_LIST:
        count, at = decode_varint(data, at)
    units = _units(data[at:], count * len(_LOCATION)).reshape(count, len(_LOCATION))
    if (units[:, _LOCATION >= 0] != _LOCATION[_LOCATION >= 0]).any():
        raise ValueError("an offset index holds something else than pages")
    return [units[:, position] >> 1 for position in np.flatnonzero(_LOCATION < 0)]


def _units(data: bytes, count: int) -> Numbers:
    """So many numbers of as many bytes as each takes, the last of them below 128."""
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 0x80)[:count]
    starts = np.concatenate([np.zeros(1, np.int64), ends + 1])[:count]
    if len(ends) < count or (count and (ends - starts).max() >= _MOST_OCTETS):
        raise ValueError("an offset index ends within a number")
    values = np.zeros(count, np.int64)
    for place in range(int((ends - starts).max()) + 1 if count else 0):
        more = np.flatnonzero(starts + place <= ends)
        values[more] |= (octets[starts[more] + place] & 0x7F).astype(np.int64) << (7 * place)
    return values


def _check_pages(pages: Pages, rows: int, begin: int, end: int) -> None:
    """They follow each other up to the end, as their rows do: nothing can be read twice."""
    starts, sizes, first_rows = pages.starts, pages.sizes, pages.first_rows
    lie = (
        len(starts)
        and starts[0] >= begin
        and (sizes > 0).all()
        and (starts <= end).all()
        and (sizes <= end).all()
    )
    if not lie or (starts + sizes != np.append(starts[1:], end)).any():
        raise ValueError(
            f"an offset index has pages that do not fill the bytes from {begin:,} to {end:,}"
        )
    if first_rows[0] or (np.diff(first_rows) <= 0).any() or first_rows[-1] >= rows:
        raise ValueError(
            f"an offset index has pages whose rows do not follow each other from 0 to {rows:,}"
        )
