"""Reads of chosen rows of a Parquet file, by the pages of each column that hold them.

Single values are taken out of a page where that is quicker; otherwise Arrow decodes the page. Both
verify the checksums of pages. Without an index of its pages, a column of a row group counts as one
page. Row groups are fetched and decoded one after the other, so that memory holds the bytes of only
a few requests.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from opal_lake.data.pages.few_values import FewValues
from opal_lake.data.pages.laid_out import Chunk, open_laid_out
from opal_lake.data.pages.page_index import ChosenPages, Numbers, PageIndex

Fetch = Callable[[int, int], bytes]  # of a position and a length
NEAR_BYTES = 256 << 10  # a smaller gap between two pages is fetched with them
MAX_BYTES = 16 << 20  # of a request, unless a span has more

_Group = dict[str, ChosenPages]  # the pages of each column of a row group
_Span = tuple[int, int]  # begin and end in the file
_Fetched = Mapping[_Span, memoryview]


def read_chosen(
    index: PageIndex,
    fetch: Fetch,
    names: Sequence[str],
    rows: Numbers,
    *,
    near_bytes: int = NEAR_BYTES,
    max_bytes: int = MAX_BYTES,
) -> dict[str, pa.ChunkedArray]:
    """Read the rows at ascending positions, of the named columns that the index has.

    Pages with a gap of up to `near_bytes` between them are fetched together, up to `max_bytes` by
    one request.
    """
    known = [name for name in dict.fromkeys(names) if name in index.columns]
    if not known:
        return {}
    group_of_row = np.searchsorted(index.first_rows, rows, "right") - 1
    groups: list[_Group] = []
    for number in np.unique(group_of_row).tolist():
        rows_in_group = rows[group_of_row == number] - index.first_rows[number]
        groups.append(index.choose(number, known, rows_in_group))
    if not groups:
        return _empty_columns(index, known)
    few_values: dict[str, FewValues] = {}
    for name, chosen in groups[0].items():
        few_values[name] = FewValues(element=chosen.element, kind=chosen.pages.kind)
    # A row group is fetched after the one before it is decoded. `map` no longer refers to the bytes
    # of the one before it then, as the variable of a loop would: they are freed.
    fetched = _fetched(fetch, groups, near_bytes, max_bytes)
    decoded = [*map(partial(_decoded, few_values), groups, fetched)]
    return {name: _joined(name, few_values[name], groups, decoded) for name in known}


def _empty_columns(index: PageIndex, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Return columns without rows, of the types that Arrow reads them as."""
    chunks: list[Chunk] = []
    for name in names:
        _, element = index.columns[name]
        chunks.append(Chunk(element=element, coding=b"", pages=(), rows=0))
    columns = open_laid_out(chunks).read().columns
    return dict(zip(names, columns, strict=True))


def _joined(
    name: str,
    few: FewValues,
    groups: Sequence[_Group],
    decoded: Sequence[Mapping[str, pa.ChunkedArray]],
) -> pa.ChunkedArray:
    """Return a column in the order of its row groups.

    `decoded` has the decoded columns of each group; `few` has the values of the column in groups
    that lack it there.
    """
    few_values = None
    if not all(name in columns for columns in decoded):
        few_values = few.column()
    chunks: list[pa.Array] = []
    few_before = 0
    for group, columns in zip(groups, decoded, strict=True):
        if name in columns:
            chunks += columns[name].chunks
        elif few_values is not None:
            count = len(group[name].row)
            chunks += few_values.slice(few_before, count).chunks
            few_before += count
    return pa.chunked_array(chunks)


def _spans_of(group: _Group) -> set[_Span]:
    """Return the spans of all chosen pages and dictionaries of a row group."""
    spans: set[_Span] = set()
    for chosen in group.values():
        spans.update(chosen.all_spans)
    return spans


def _fetched(
    fetch: Fetch, groups: Sequence[_Group], near_bytes: int, max_bytes: int
) -> Iterator[_Fetched]:
    """Yield the bytes of each group's spans; one request fetches neighbours."""
    all_spans = set[_Span]().union(*map(_spans_of, groups))
    # Of each request: where it begins and ends in the file
    begins: list[int] = []
    ends: list[int] = []
    request_of: dict[_Span, int] = {}
    for start, end in sorted(all_spans):
        is_new_request = not begins or start - ends[-1] > near_bytes or end - begins[-1] > max_bytes
        if is_new_request:
            begins.append(start)
            ends.append(end)
        ends[-1] = max(end, ends[-1])
        request_of[start, end] = len(begins) - 1
    responses: dict[int, memoryview] = {}

    def pages_of(span: _Span) -> memoryview:
        start, end = span
        request = request_of[span]
        begin = begins[request]
        return responses[request][start - begin : end - begin]

    for group in groups:
        spans = _spans_of(group)
        requests = sorted({request_of[span] for span in spans})
        # Responses that this group does not need are freed before more are fetched.
        for unneeded in responses.keys() - requests:
            del responses[unneeded]
        for request in requests:
            if request not in responses:
                size = ends[request] - begins[request]
                responses[request] = memoryview(fetch(begins[request], size))
        yield {span: pages_of(span) for span in spans}


def _decoded(
    few: Mapping[str, FewValues], group: _Group, fetched: _Fetched
) -> dict[str, pa.ChunkedArray]:
    """Decode the chosen rows of a row group's columns that are not added to `few`.

    Columns whose pages have the same rows are decoded together.
    """
    by_rows: dict[bytes, _Group] = defaultdict(dict)
    for name, chosen in group.items():
        pages = [fetched[span] for span in chosen.spans]
        dictionary = None
        if chosen.pages.dictionary is not None:
            dictionary = fetched[chosen.pages.dictionary]
        if not few[name].add(chosen, pages, dictionary):
            same_rows = chosen.counts.tobytes() + chosen.row.tobytes()
            by_rows[same_rows][name] = chosen
    columns: dict[str, pa.ChunkedArray] = {}
    for together in by_rows.values():
        columns |= _decoded_together(together, fetched)
    return columns


def _decoded_together(group: _Group, fetched: _Fetched) -> dict[str, pa.ChunkedArray]:
    """Decode the chosen rows of columns whose pages have the same rows."""
    # Texts of a dictionary are decoded as their indices: that is quicker where few are chosen.
    texts = [name for name, chosen in group.items() if chosen.pages.is_text_by_dictionary]
    chunks = [_chunk_of(chosen, fetched) for chosen in group.values()]
    page_rows = open_laid_out(chunks, read_dictionary=texts).read_row_group(0, use_threads=False)
    any_column = next(iter(group.values()))
    rows = page_rows.take(pa.array(any_column.chosen))
    columns: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(group, rows.columns, strict=True):
        if name in texts:
            columns[name] = column.cast(column.type.value_type)
        else:
            columns[name] = column
    return columns


def _chunk_of(chosen: ChosenPages, fetched: _Fetched) -> Chunk:
    """Return the chosen pages of a column as a column of a file of their own."""
    dictionary_bytes = 0
    if chosen.pages.dictionary is not None:
        dictionary_bytes = len(fetched[chosen.pages.dictionary])
    return Chunk(
        element=chosen.element,
        coding=chosen.pages.coding,
        pages=[fetched[span] for span in chosen.all_spans],
        rows=chosen.rows,
        dictionary_bytes=dictionary_bytes,
    )
