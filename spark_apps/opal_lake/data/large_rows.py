"""Rows that take more memory than readers give to a row group (FORMAT, sizes).

A row group of several rows is cut below the bound; a single row cannot be. It is accepted if a file of it
alone can be read, by the reader's own rule: then it can be read in every file that it is moved to.
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
    """Return which rows of a data file no reader would accept, and why."""
    reasons: dict[int, str] = {}
    for place in _large_rows(physical, 0, physical.num_rows, bound.cut_bytes):
        row = physical.slice(place, 1)
        encoded = encode_file(row, spec, bound, may_pad=False)
        try:
            # Whoever fetches parts of a file believes its footer, which counts headers of pages as well
            for source in (encoded.data, pa.PythonFile(io.BytesIO(encoded.data), mode="r")):
                decode_file(source, spec, None, "the row", rows=1, bound=bound)
        except FormatError:
            reasons[place] = _reason(row, spec, len(encoded.data), bound)
    return reasons


def _large_rows(rows: pa.Table, start: int, count: int, most_bytes: int) -> Iterator[int]:
    if not count or decoded_bytes(rows.slice(start, count)) <= most_bytes:
        return
    if count == 1:
        yield start
        return
    half = count // 2
    yield from _large_rows(rows, start, half, most_bytes)
    yield from _large_rows(rows, start + half, count - half, most_bytes)


def _reason(row: pa.Table, spec: TableSpec, file_bytes: int, bound: SizeBound) -> str:
    def size_of(column: Field) -> int:
        return decoded_bytes(row.select([column.physical]))

    largest = max(spec.schema.fields, key=size_of)
    keys = ", ".join(f"{key.name}={_text(row[key.physical])}" for key in spec.keys)
    return (
        f"column {largest.name!r} holds {size_of(largest):,} bytes in the row of {keys}; the row takes "
        f"{decoded_bytes(row):,} bytes in memory and {file_bytes:,} in a file, of which readers accept "
        f"{bound.limit_bytes(file_bytes):,}: split the value into several rows, or store it as a "
        "file and its address in the row"
    )


def _text(column: pa.ChunkedArray) -> str:
    try:
        text = repr(column[0].as_py())
    except (UnicodeDecodeError, ValueError, OverflowError):
        text = f"a {type_name(column.type)} that cannot be shown"
    return text if len(text) <= _KEY_CHARACTERS else text[:_KEY_CHARACTERS] + "..."
