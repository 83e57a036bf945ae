"""Chosen rows of a Parquet file: of each column only the pages are fetched and decoded that hold them.

Single values are taken out of pages where that is quicker; all else Arrow decodes. Either verifies the checksums of the pages. Where no
index tells of pages, the whole of a column in a row group counts as one. Row groups are fetched and decoded one after the other, so that
memory holds what a few requests fetched, and the same memory serves the next ones.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from opal_lake.data.pages.few_values import FewValues
from opal_lake.data.pages.laid_out import Chunk, open_laid_out
from opal_lake.data.pages.page_index import ChosenPages, Numbers, PageIndex

Fetch = Callable[[int, int], bytes]  # so many bytes from there
NEAR_BYTES = 256 << 10  # what lies between two pages and is no more than this is fetched with them
MOST_BYTES = 16 << 20  # of a request, unless a span has more

_Group = dict[str, ChosenPages]  # of one row group the pages of each column
_Span = tuple[int, int]
_Fetched = Mapping[_Span, memoryview]


def read_chosen(
    index: PageIndex, fetch: Fetch, names: Sequence[str], rows: Numbers
) -> dict[str, pa.ChunkedArray]:
    """These rows of the file, in ascending order, of the columns of these names that the file has and that are not nested."""
    known = [name for name in dict.fromkeys(names) if name in index.columns]
    in_group = np.searchsorted(index.first_rows, rows, "right") - 1
    groups = [
        index.choose(group, known, rows[in_group == group] - index.first_rows[group])
        for group in np.unique(in_group).tolist()
    ]
    if not known or not groups:
        empty = [
            Chunk(element=index.columns[name][1], coding=b"", pages=(), rows=0) for name in known
        ]
        return dict(zip(known, open_laid_out(empty).read().columns, strict=True)) if known else {}
    few = {
        name: FewValues(element=chosen.element, kind=chosen.pages.kind)
        for name, chosen in groups[0].items()
    }
    decoded = [*map(partial(_decoded, few), groups, _fetched(fetch, groups))]
    return {
        name: _joined(
            few[name],
            [
                (len(group[name].row), columns.get(name))
                for group, columns in zip(groups, decoded, strict=True)
            ],
        )
        for name in known
    }


def _joined(few: FewValues, parts: Sequence[tuple[int, pa.ChunkedArray | None]]) -> pa.ChunkedArray:
    """A column in the order of its row groups. The few values are those of the groups that were not decoded."""
    chunks: list[pa.Array] = []
    values = few.column() if any(decoded is None for _, decoded in parts) else None
    for count, decoded in parts:
        if values is not None and decoded is None:
            decoded, values = values.slice(0, count), values.slice(count)
        chunks += decoded.chunks if decoded is not None else []
    return pa.chunked_array(chunks)


def _fetched(fetch: Fetch, groups: Sequence[_Group]) -> Iterator[_Fetched]:
    """The bytes of each span of a group, for all groups; of neighbours by one request."""
    spans = sorted(
        {span for group in groups for chosen in group.values() for span in chosen.all_spans}
    )
    begins: list[int] = []
    ends: list[int] = []
    request_of: dict[_Span, int] = {}
    for start, end in spans:
        if not begins or start - ends[-1] > NEAR_BYTES or end - begins[-1] > MOST_BYTES:
            begins.append(start)
            ends.append(end)
        ends[-1] = max(end, ends[-1])
        request_of[start, end] = len(begins) - 1
    held: dict[int, memoryview] = {}
    for group in groups:
        wanted = {span: request_of[span] for chosen in group.values() for span in chosen.all_spans}
        requests = sorted({*wanted.values()})
        held = {request: held[request] for request in requests if request in held}
        for request in requests:
            if request not in held:
                held[request] = memoryview(fetch(begins[request], ends[request] - begins[request]))
        yield {
            span: held[request][span[0] - begins[request] : span[1] - begins[request]]
            for span, request in wanted.items()
        }


def _decoded(
    few: Mapping[str, FewValues], group: _Group, fetched: _Fetched
) -> dict[str, pa.ChunkedArray]:
    """The chosen rows of the columns that few values were not taken of. Those whose pages have the same rows are decoded together."""
    alike: dict[bytes, _Group] = defaultdict(dict)
    for name, chosen in group.items():
        pages = [fetched[span] for span in chosen.spans]
        dictionary = fetched[chosen.pages.dictionary] if chosen.pages.dictionary else None
        if not few[name].add(chosen, pages, dictionary):
            alike[chosen.counts.tobytes() + chosen.row.tobytes()][name] = chosen
    columns: dict[str, pa.ChunkedArray] = {}
    for together in alike.values():
        columns |= _decoded_together(together, fetched)
    return columns


def _decoded_together(group: _Group, fetched: _Fetched) -> dict[str, pa.ChunkedArray]:
    """Texts of a dictionary are decoded as their places in it: that is quicker where few are chosen."""
    texts = [name for name, chosen in group.items() if chosen.pages.is_text_by_dictionary]
    file = open_laid_out(
        [_chunk_of(chosen, fetched) for chosen in group.values()], read_dictionary=texts
    )
    places = next(iter(group.values())).chosen
    rows = file.read_row_group(0, use_threads=False).take(pa.array(places))
    columns = zip(group, rows.columns, strict=True)
    return {
        name: column.cast(column.type.value_type) if name in texts else column
        for name, column in columns
    }


def _chunk_of(chosen: ChosenPages, fetched: _Fetched) -> Chunk:
    return Chunk(
        element=chosen.element,
        coding=chosen.pages.coding,
        pages=[fetched[span] for span in chosen.all_spans],
        rows=chosen.rows,
        dictionary_bytes=len(fetched[chosen.pages.dictionary]) if chosen.pages.dictionary else 0,
    )
