"""Pages as a Parquet file of their own: Arrow decodes whole row groups, and no single pages."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from opal_lake.data.data_file import open_parquet
from opal_lake.data.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    encode_fields,
    encode_struct,
)

MAGIC = b"PAR1"
_LAST_CODING = 4  # the last of the fields in `Chunk.coding`


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A column: its element of the schema, the encoding of its pages, and the pages.

    If the column has a dictionary, the first page is the dictionary, of `dictionary_bytes`.
    """

    element: Struct
    coding: bytes
    pages: Sequence[bytes | memoryview]
    rows: int
    dictionary_bytes: int = 0


def open_laid_out(
    chunks: Sequence[Chunk], *, read_dictionary: Sequence[str] = ()
) -> pq.ParquetFile:
    """Open columns with the same number of rows as a file of one row group.

    Columns without rows give a file without a row group.
    """
    body: list[bytes | memoryview] = [MAGIC]
    at = len(MAGIC)
    columns: list[Struct] = []
    for chunk in chunks:
        size = sum(map(len, chunk.pages))
        columns.append(_column(chunk, at, size))
        body += chunk.pages
        at += size
    rows = chunks[0].rows
    group = {1: (LIST, (STRUCT, columns)), 2: (I64, at - len(MAGIC)), 3: (I64, rows)}
    root = {4: (BINARY, b"schema"), 5: (I32, len(chunks))}
    schema = [root, *(chunk.element for chunk in chunks)]
    groups = [group] if rows else []
    footer = encode_struct(
        {
            1: (I32, 2),
            2: (LIST, (STRUCT, schema)),
            3: (I64, rows),
            4: (LIST, (STRUCT, groups)),
        }
    )
    data = b"".join([*body, footer, len(footer).to_bytes(4, "little"), MAGIC])
    return open_parquet(pa.BufferReader(data), rows, read_dictionary=read_dictionary)


def _column(chunk: Chunk, at: int, size: int) -> Struct:
    """Return the ColumnChunk of a column with `size` bytes of pages from byte `at`."""
    placement: Struct = {
        5: (I64, chunk.rows),
        6: (I64, size),
        7: (I64, size),
        9: (I64, at + chunk.dictionary_bytes),
    }
    if chunk.dictionary_bytes:
        placement[11] = (I64, at)
    metadata = chunk.coding + encode_fields(placement, _LAST_CODING) + b"\0"
    return {2: (I64, at), 3: (STRUCT, metadata)}
