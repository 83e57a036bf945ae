"""Chosen rows of a Parquet file: of each column only the pages are fetched and decoded that hold them.

Arrow decodes them, and verifies their checksums as ever: the pages of a column, behind the dictionary of their row group, are laid out
as a file of that column alone. Where no index tells of pages, the whole of a column in a row group counts as one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opal_lake.data.data_file import open_parquet
from opal_lake.data.pages.page_index import Numbers, PageIndex, Pages
from opal_lake.data.pages.thrift import BINARY, I32, I64, LIST, STRUCT, Struct, encode_fields, encode_struct

Fetch = Callable[[int, int], bytes]  # the bytes from here to there

MAGIC = b"PAR1"
NEAR_BYTES = 128 << 10  # what lies between two pages and is no more than this is fetched with them
_LAST_CODING = 4  # the last of the fields that pages bring along


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Of a column some pages in one row group: their bytes in the file, all rows in them, and which of these are chosen."""

    pages: Pages
    spans: list[tuple[int, int]]
    rows: int
    chosen: Numbers


def read_chosen(index: PageIndex, fetch: Fetch, names: Sequence[str], rows: Numbers) -> dict[str, pa.ChunkedArray]:
    """These rows of the file, in ascending order, of the columns of these names that the file has and that are not nested."""
    groups = np.searchsorted(index.first_rows, rows, "right") - 1
    by_group = [(int(group), rows[groups == group] - index.first_rows[group]) for group in np.unique(groups)]
    found = {name: index.columns[name] for name in names if name in index.columns}
    parts = {name: [_part(index, group, leaf, local) for group, local in by_group] for name, (leaf, _) in found.items()}
    fetched = dict(_fetched(fetch, sorted({span for column in parts.values() for part in column for span in part.spans})))
    return {name: _decoded(name, found[name][1], column, fetched) for name, column in parts.items()}


def _part(index: PageIndex, group: int, column: int, rows: Numbers) -> _Part:
    pages = index.pages(group, column)
    numbers = np.unique(np.searchsorted(pages.first_rows, rows, "right") - 1)
    counts = np.diff(pages.first_rows, append=index.first_rows[group + 1] - index.first_rows[group])[numbers]
    before = np.cumsum(counts) - counts
    nth = np.searchsorted(pages.first_rows[numbers], rows, "right") - 1
    spans = zip(pages.starts[numbers].tolist(), (pages.starts + pages.sizes)[numbers].tolist(), strict=True)
    return _Part(
        pages=pages,
        spans=[*([pages.dictionary] if pages.dictionary else []), *spans],
        rows=int(counts.sum()),
        chosen=before[nth] + rows - pages.first_rows[numbers][nth],
    )


def _fetched(fetch: Fetch, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], memoryview]]:
    """The bytes of each range; of neighbours by one request."""
    bounds = np.array(ranges, np.int64).reshape(-1, 2)
    far = np.flatnonzero(bounds[1:, 0] - bounds[:-1, 1] > NEAR_BYTES) + 1
    for first, last in zip([0, *far.tolist()], [*far.tolist(), len(ranges)], strict=True):
        if first == last:
            continue
        start, end = ranges[first][0], ranges[last - 1][1]
        data = memoryview(fetch(start, end - start))
        for span in ranges[first:last]:
            yield span, data[span[0] - start : span[1] - start]


def _decoded(name: str, element: Struct, parts: Sequence[_Part], fetched: dict[tuple[int, int], memoryview]) -> pa.ChunkedArray:
    is_text = bool(parts) and all(part.pages.is_text_by_dictionary for part in parts)
    file = open_parquet(pa.BufferReader(_file_of(element, parts, fetched)), read_dictionary=[name] if is_text else [])
    chosen = [file.read_row_group(group, use_threads=False).column(0).take(pa.array(part.chosen)) for group, part in enumerate(parts)]
    column = pa.chunked_array([chunk for taken in chosen for chunk in taken.chunks], type=file.schema_arrow.field(0).type)
    return column.cast(column.type.value_type) if is_text else column


def _file_of(element: Struct, parts: Sequence[_Part], fetched: dict[tuple[int, int], memoryview]) -> bytes:
    """A column's pages as a file, a row group for each of theirs."""
    body: list[bytes | memoryview] = [MAGIC]
    at, groups = len(MAGIC), []
    for part in parts:
        size = sum(end - start for start, end in part.spans)
        first = part.pages.dictionary[1] - part.pages.dictionary[0] if part.pages.dictionary else 0
        told = {5: (I64, part.rows), 6: (I64, size), 7: (I64, size), 9: (I64, at + first)} | ({11: (I64, at)} if first else {})
        meta = part.pages.coding + encode_fields(told, _LAST_CODING) + b"\0"
        body += [fetched[span] for span in part.spans]
        chunk = {2: (I64, at), 3: (STRUCT, meta)}
        groups.append({1: (LIST, (STRUCT, [chunk])), 2: (I64, size), 3: (I64, part.rows)})
        at += size
    root = {4: (BINARY, b"schema"), 5: (I32, 1)}
    footer = encode_struct(
        {
            1: (I32, 2),
            2: (LIST, (STRUCT, [root, element])),
            3: (I64, sum(part.rows for part in parts)),
            4: (LIST, (STRUCT, groups)),
        }
    )
    return b"".join([*body, footer, len(footer).to_bytes(4, "little"), MAGIC])
