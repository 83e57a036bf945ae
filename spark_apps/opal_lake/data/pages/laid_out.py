"""Pages laid out as a Parquet file of their own, for Arrow to decode: it knows row groups only."""

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
_LAST_CODING = 4  # the last of the fields that pages bring along


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A column: what the schema says of it, how its pages are encoded, and they, behind a dictionary of so many bytes."""

    element: Struct
    coding: bytes
    pages: Sequence[bytes | memoryview]
    rows: int
    dictionary_bytes: int = 0


def open_laid_out(
    chunks: Sequence[Chunk], *, read_dictionary: Sequence[str] = ()
) -> pq.ParquetFile:
    """Columns of as many rows each, as a file of one row group, or of none if there are no rows."""
    body: list[bytes | memoryview] = [MAGIC]
    at, columns = len(MAGIC), []
    for chunk in chunks:
        size = sum(map(len, chunk.pages))
        told = {
            5: (I64, chunk.rows),
            6: (I64, size),
            7: (I64, size),
            9: (I64, at + chunk.dictionary_bytes),
        }
        told |= {11: (I64, at)} if chunk.dictionary_bytes else {}
        columns.append(
            {2: (I64, at), 3: (STRUCT, chunk.coding + encode_fields(told, _LAST_CODING) + b"\0")}
        )
        body += chunk.pages
        at += size
    rows = chunks[0].rows
    root = {4: (BINARY, b"schema"), 5: (I32, len(chunks))}
    group = {1: (LIST, (STRUCT, columns)), 2: (I64, at - len(MAGIC)), 3: (I64, rows)}
    schema = [root, *(chunk.element for chunk in chunks)]
    footer = encode_struct(
        {
            1: (I32, 2),
            2: (LIST, (STRUCT, schema)),
            3: (I64, rows),
            4: (LIST, (STRUCT, [group] if rows else [])),
        }
    )
    data = b"".join([*body, footer, len(footer).to_bytes(4, "little"), MAGIC])
    return open_parquet(pa.BufferReader(data), rows, read_dictionary=read_dictionary)
