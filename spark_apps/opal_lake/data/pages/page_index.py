"""The positions of a Parquet file's pages, decoded from its footer and offset indexes.

Footer and offset indexes are untrusted.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

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
MAX_FOOTER = 1 << 20  # bytes: the objects of a larger one would take more memory than a row group
_REPEATED = 2
_CODING = (1, 2, 3, 4)  # fields of a ColumnMetaData: type, encodings, path, codec
_BYTE_ARRAY = 6
_LIST_FIELD = 0x19  # field 1, a list
# A PageLocation: field 1, a long; field 2, an int; field 3, a long; the end. -1 is a value.
_LOCATION = np.array([0x16, -1, 0x15, -1, 0x16, -1, 0x00])
_MAX_OCTETS = 9  # of a number that fits into a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The data pages of a column in a row group.

    - `starts` are the positions of the pages in the file, `sizes` their bytes with the header, and
      `first_rows` their first rows in the row group.
    - `coding` are the encoded fields of the footer that describe type, encodings, path and codec.
    - `dictionary` is the begin and the end of the dictionary's page in the file.
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
    """The pages of a column and a row group that hold chosen rows.

    By page, `spans` are begin and end in the file, and `counts` the number of rows. By chosen row,
    `page_of` is the number of its page among these pages, and `row` its position in the page.
    """

    element: Struct
    pages: Pages
    spans: list[tuple[int, int]]
    counts: Numbers
    page_of: Numbers
    row: Numbers

    @property
    def all_spans(self) -> list[tuple[int, int]]:
        """The span of the dictionary, if any, and the spans of the pages."""
        if self.pages.dictionary is None:
            return self.spans
        return [self.pages.dictionary, *self.spans]

    @property
    def rows(self) -> int:
        """The number of all rows of the pages."""
        return int(self.counts.sum())

    @property
    def chosen(self) -> Numbers:
        """The positions of the chosen rows among all rows of the pages."""
        rows_before_page: Numbers = np.cumsum(self.counts) - self.counts
        return rows_before_page[self.page_of] + self.row


@dataclass(frozen=True, kw_only=True)
class PageIndex:
    """The footer of a Parquet file, with the indexes of its pages.

    - `groups` are the column chunks of each row group.
    - `first_rows` are the first row of each row group, and the number of all rows.
    - `columns` are the top-level columns without parts, by name: the number among all leaves, and
      the element of the schema. They are empty if the footer was too large to decode.
    - `others` are the names of the nested columns.
    """

    tail: bytes
    size: int
    columns: dict[str, tuple[int, Struct]]
    others: frozenset[str]
    groups: list[list[Struct]]
    first_rows: Numbers
    _pages: dict[tuple[int, int], Pages] = field(default_factory=dict)

    def pages(self, group: int, column: int) -> Pages:
        """Return the pages of a column; raise ValueError for impossible positions.

        Without an index of its pages, the whole column counts as one page.
        """
        pages = self._pages.get((group, column))
        if pages is None:
            pages = self._find_pages(self.groups[group][column], group)
            self._pages[group, column] = pages
        return pages

    def choose(self, group: int, names: Sequence[str], rows: Numbers) -> dict[str, ChosenPages]:
        """Return the pages of columns that hold the given rows of a row group, ascending."""
        # Computed once for columns whose pages have the same rows, as those of numbers often do.
        by_first_rows: dict[bytes, _PagesOfRows] = {}
        chosen: dict[str, ChosenPages] = {}
        for name in names:
            column, element = self.columns[name]
            pages = self.pages(group, column)
            key = pages.first_rows.tobytes()
            if key not in by_first_rows:
                by_first_rows[key] = self._pages_of_rows(group, pages.first_rows, rows)
            pages_of_rows = by_first_rows[key]
            starts = pages.starts[pages_of_rows.numbers]
            ends = starts + pages.sizes[pages_of_rows.numbers]
            chosen[name] = ChosenPages(
                element=element,
                pages=pages,
                spans=[*zip(starts.tolist(), ends.tolist(), strict=True)],
                counts=pages_of_rows.counts,
                page_of=pages_of_rows.page_of,
                row=pages_of_rows.row,
            )
        return chosen

    def _pages_of_rows(self, group: int, first_rows: Numbers, rows: Numbers) -> "_PagesOfRows":
        """Return the pages that hold some rows, by the first rows of all pages."""
        page_of_row = np.searchsorted(first_rows, rows, "right") - 1
        numbers, page_of = np.unique(page_of_row, return_inverse=True)
        group_rows = self.first_rows[group + 1] - self.first_rows[group]
        counts = np.diff(first_rows, append=group_rows)
        return _PagesOfRows(
            numbers=numbers,
            counts=counts[numbers],
            page_of=page_of,
            row=rows - first_rows[page_of_row],
        )

    def _find_pages(self, chunk: Struct, group: int) -> Pages:
        """Decode the pages of a column chunk, from the footer and the offset index."""
        metadata = struct_of(chunk, 3)
        end = self.size - len(self.tail)
        data_start, dictionary_start = value_of(metadata, 9), value_of(metadata, 11)
        # A missing position is 0
        positions = [start for start in (data_start, dictionary_start) if start]
        begin = min(positions, default=0)
        size = value_of(metadata, 7)
        rows = int(self.first_rows[group + 1] - self.first_rows[group])
        index_start, index_size = value_of(chunk, 4), value_of(chunk, 5)
        if not (0 < begin < begin + size <= end and rows):
            raise ValueError(
                f"a column of {rows:,} rows does not fit into {size:,} bytes "
                f"at byte {begin:,} of {end:,}"
            )
        kind, codec = value_of(metadata, 1), value_of(metadata, 4)
        pages = Pages(
            coding=_coding(metadata),
            kind=kind,
            codec=codec,
            is_text_by_dictionary=kind == _BYTE_ARRAY and dictionary_start > 0,
            starts=np.array([begin], np.int64),
            sizes=np.array([size], np.int64),
            first_rows=np.array([0], np.int64),
        )
        if not index_start or not index_size:
            return pages
        start_in_tail = index_start - end
        if not 0 <= start_in_tail <= start_in_tail + index_size <= len(self.tail):
            raise ValueError(
                f"the offset index at byte {index_start:,} is not in the file's tail, which "
                f"begins at byte {end:,}"
            )
        index = self.tail[start_in_tail : start_in_tail + index_size]
        starts, sizes, first_rows = _decode_locations(index)
        pages = replace(pages, starts=starts, sizes=sizes, first_rows=first_rows)
        _check_pages(pages, rows, begin, begin + size)
        # Bytes before the first data page are the dictionary.
        if starts[0] > begin:
            return replace(pages, dictionary=(begin, int(starts[0])))
        return pages


def _coding(metadata: Struct) -> bytes:
    """Return the encoded fields of a ColumnMetaData that describe its encoding."""
    fields: Struct = {}
    for number in _CODING:
        if number in metadata:
            fields[number] = metadata[number]
    return encode_fields(fields)


class _PagesOfRows(NamedTuple):
    """The numbers of pages that hold some rows, and three fields of `ChosenPages`."""

    numbers: Numbers
    counts: Numbers
    page_of: Numbers
    row: Numbers


def decode_page_index(tail: bytes, size: int, *, max_footer: int = MAX_FOOTER) -> PageIndex:
    """Decode the page index of a file of `size` bytes that ends with `tail`.

    The index of a footer with more than `max_footer` bytes is empty.
    """
    length, magic = _TAIL.unpack(tail[-_TAIL.size :])
    if magic != b"PAR1" or length > len(tail) - _TAIL.size:
        raise ValueError("it does not end as Parquet files do")
    if length > max_footer:
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
    """Return the columns and the names of nested columns, as `PageIndex` has them."""
    columns: dict[str, tuple[int, Struct]] = {}
    others: set[str] = set()
    leaf = 0
    nested_left = 0  # elements that the current top-level column still has
    for element in schema[1:]:
        children = value_of(element, 5)
        kind, name = element.get(4, (0, None))
        if kind != BINARY:
            raise ValueError("a column has no name")
        is_top_level = nested_left == 0
        is_nested = children or value_of(element, 3) == _REPEATED
        if is_top_level and is_nested:
            others.add(name.decode())
        elif is_top_level:
            columns[name.decode()] = (leaf, element)
        if not is_top_level:
            nested_left -= 1
        nested_left += children
        leaf += not children
    return columns, others


def _decode_locations(data: bytes) -> list[Numbers]:
    """Return the starts, sizes and first rows of the pages in an offset index."""
    if len(data) < 2 or data[0] != _LIST_FIELD or data[1] & 0x0F != STRUCT:
        raise ValueError("an offset index does not begin with its pages")
    count, at = data[1] >> 4, 2
    if count == LONG_LIST:
        count, at = decode_varint(data, at)
    # Heads of fields and their values are both varints. By page: the varints of its location
    varints = _varints(data[at:], count * len(_LOCATION)).reshape(count, len(_LOCATION))
    is_head = _LOCATION >= 0
    if (varints[:, is_head] != _LOCATION[is_head]).any():
        raise ValueError("an offset index holds something else than pages")
    # In zigzag form, a number that is not negative is doubled.
    return [varints[:, position] >> 1 for position in np.flatnonzero(~is_head)]


def _varints(data: bytes, count: int) -> Numbers:
    """Decode `count` varints: numbers of 7 bits a byte, whose last byte is below 128."""
    octets = np.frombuffer(data, np.uint8)
    # By varint: its first and its last byte
    ends = np.flatnonzero(octets < 0x80)[:count]
    starts = np.concatenate([np.zeros(1, np.int64), ends + 1])[:count]
    if len(ends) < count:
        raise ValueError("an offset index ends within a number")
    values = np.zeros(count, np.int64)
    if not count:
        return values
    max_octets = int((ends - starts).max()) + 1
    if max_octets > _MAX_OCTETS:
        raise ValueError(f"an offset index has a number of more than {_MAX_OCTETS} bytes")
    for number in range(max_octets):
        has_octet = np.flatnonzero(starts + number <= ends)
        seven_bits = octets[starts[has_octet] + number] & 0x7F
        values[has_octet] |= seven_bits.astype(np.int64) << (7 * number)
    return values


def _check_pages(pages: Pages, rows: int, begin: int, end: int) -> None:
    """Raise ValueError unless pages and their rows follow each other without gaps.

    So no byte and no row can be read twice.
    """
    starts, sizes, first_rows = pages.starts, pages.sizes, pages.first_rows
    # Checked before the sums below: sums of greater numbers could overflow.
    are_within = (
        len(starts)
        and starts[0] >= begin
        and (sizes > 0).all()
        and (starts <= end).all()
        and (sizes <= end).all()
    )
    if not are_within or (starts + sizes != np.append(starts[1:], end)).any():
        raise ValueError(
            f"an offset index has pages that do not fill the bytes from {begin:,} to {end:,}"
        )
    are_rows_ascending = (np.diff(first_rows) > 0).all()
    if first_rows[0] != 0 or not are_rows_ascending or first_rows[-1] >= rows:
        raise ValueError(
            f"an offset index has pages whose rows do not follow each other from 0 to {rows:,}"
        )
