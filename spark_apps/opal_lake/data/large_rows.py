"""Rows that take more memory than readers give to a row group (FORMAT, sizes).

A row group of several rows is cut below the bound; a single row cannot be cut. A row is accepted if
readers accept a file that holds only this row. Then they accept every file that it is moved to.
"""

import io
from collections.abc import Iterator

import pyarrow as pa

from opal_lake.data.data_file import decode_file, encode_file
from opal_lake.data.decoded_size import BOUND, SizeBound, decoded_bytes
from opal_lake.definition.schema import Field, type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError

_KEY_CHARACTERS = 100


def unreadable_rows(
    physical: pa.Table, spec: TableSpec, bound: SizeBound = BOUND
) -> dict[int, str]:
    """Return the rows that some reader would refuse: the reason by position."""
    reasons: dict[int, str] = {}
    for position in _large_rows(physical, 0, physical.num_rows, bound.cut_bytes):
        row = physical.slice(position, 1)
        encoded = encode_file(row, spec, bound, may_pad=False)
        # A reader that fetches parts of a file measures a row by the sizes in the footer, which
        # include the headers of pages: it may refuse a row that a reader of the whole file accepts
        read_in_parts = pa.PythonFile(io.BytesIO(encoded.data), mode="r")
        try:
            for source in (encoded.data, read_in_parts):
                decode_file(source, spec, None, "the row", rows=1, bound=bound)
        except FormatError:
            reasons[position] = _reason(row, spec, len(encoded.data), bound)
    return reasons


def _large_rows(rows: pa.Table, start: int, count: int, max_bytes: int) -> Iterator[int]:
    """Yield the positions of rows above `max_bytes`, by halving larger ranges of rows."""
    if not count or decoded_bytes(rows.slice(start, count)) <= max_bytes:
        return
    if count == 1:
        yield start
        return
    half = count // 2
    yield from _large_rows(rows, start, half, max_bytes)
    yield from _large_rows(rows, start + half, count - half, max_bytes)


def _reason(row: pa.Table, spec: TableSpec, file_bytes: int, bound: SizeBound) -> str:
    """Return why readers refuse a row whose file has `file_bytes`."""

    def size_of(column: Field) -> int:
        return decoded_bytes(row.select([column.physical]))

    largest = max(spec.schema.fields, key=size_of)
    keys = ", ".join(f"{key.name}={_text(row[key.physical])}" for key in spec.keys)
    return (
        f"column {largest.name!r} holds {size_of(largest):,} bytes in the row of {keys}. "
        f"The row takes {decoded_bytes(row):,} bytes in memory and {file_bytes:,} in a file; "
        f"readers accept {bound.limit_bytes(file_bytes):,} bytes in memory. Split the value "
        "into several rows, or store it as a file and its address in the row"
    )


def _text(column: pa.ChunkedArray) -> str:
    """Return the first value of a column for a message, cut if it is long."""
    try:
        text = repr(column[0].as_py())
    except (UnicodeDecodeError, ValueError, OverflowError):
        text = f"a {type_name(column.type)} that cannot be shown"
    if len(text) <= _KEY_CHARACTERS:
        return text
    return text[:_KEY_CHARACTERS] + "..."
