"""Data files in memory: rows to bytes and back (FORMAT: data files).

Two checksums in the commit vouch for a file: one of the whole, and one of its tail, which tells a reader where everything lies. With the
tail verified, Parquet's own page checksums cover the values; page headers and ORC stripes are covered by the checksum of the whole only.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from opal_lake.bounds import Bounds, bounds_of
from opal_lake.columns import physical_schema
from opal_lake.encodings import plan_encodings
from opal_lake.errors import FormatError, InvalidInputError
from opal_lake.table_spec import TableSpec

GROUP_ROWS, GROUP_BYTES = 1 << 20, 128 << 20  # of a row group, which is what Spark splits by; bytes in memory
STRIPE_BYTES = 64 << 20
ORC_BATCH_ROWS = 8192
ORC_DICTIONARY_SHARE = 0.5
_READ_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFile:
    """A data file that is not yet stored, with all that its commit says of it."""

    data: memoryview
    crc32: int
    footer_bytes: int
    footer_crc32: int
    rows: int
    bounds: dict[int, Bounds]


def encode_file(table: pa.Table, spec: TableSpec) -> EncodedFile:
    """Rows in physical form, with their row ids, as one file; the same rows give the same bytes."""
    table = _in_file_order(table, spec)
    sink = pa.BufferOutputStream()
    if spec.file_format == "orc":
        _write_orc(table, sink)
    else:
        _write_parquet(table, sink)
    buffer = sink.getvalue()
    data = memoryview(buffer)
    if spec.file_format == "orc":
        footer_bytes, known = _orc_footer_bytes(buffer), {}
    else:
        metadata = pq.read_metadata(pa.BufferReader(buffer))
        footer_bytes, known = _parquet_footer_bytes(metadata, len(data)), _text_extremes(metadata)
    return EncodedFile(
        data=data,
        crc32=zlib.crc32(data),
        footer_bytes=footer_bytes,
        footer_crc32=zlib.crc32(data[len(data) - footer_bytes :]),
        rows=table.num_rows,
        bounds=bounds_of(table, spec, known),
    )


def _in_file_order(table: pa.Table, spec: TableSpec) -> pa.Table:
    schema = physical_schema(spec)
    try:
        ordered = table.select(schema.names).replace_schema_metadata(None)
    except KeyError as error:
        raise InvalidInputError(f"a data file needs the columns {schema.names}, got {table.column_names}: add what is missing") from error
    return ordered if ordered.schema == schema else ordered.cast(schema)


def _write_parquet(table: pa.Table, sink: pa.NativeFile) -> None:
    encodings = plan_encodings(table)
    pq.write_table(
        table,
        sink,
        row_group_size=_group_rows(table),
        compression="zstd",
        use_dictionary=list(encodings.dictionary),
        column_encoding=dict.fromkeys(encodings.delta, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
        store_decimal_as_integer=True,  # as Spark does: reads twice as fast
        store_schema=False,
    )


def _group_rows(table: pa.Table) -> int:
    rows: int = table.num_rows
    size: int = table.nbytes
    return max(1, min(GROUP_ROWS, GROUP_BYTES * rows // max(1, size)))


def _write_orc(table: pa.Table, sink: pa.NativeFile) -> None:
    orc.write_table(
        pa.table([_compact(column) for column in table.columns], schema=table.schema),
        sink,
        compression="zstd",
        batch_size=ORC_BATCH_ROWS,
        stripe_size=STRIPE_BYTES,
        dictionary_key_size_threshold=ORC_DICTIONARY_SHARE,
    )


def _compact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow's ORC writer takes the wrong rows of a struct that is a slice: copied, nothing is a slice any more."""
    if not pa.types.is_nested(column.type) or not column.num_chunks:
        return column
    nothing = column.chunk(0).slice(0, 0)  # one array alone might be handed back as it is
    return pa.chunked_array([pa.concat_arrays([chunk, nothing]) for chunk in column.chunks])


def _parquet_footer_bytes(metadata: pq.FileMetaData, size: int) -> int:
    """All that follows the last page."""
    chunks = [metadata.row_group(group).column(place) for group in range(metadata.num_row_groups) for place in range(metadata.num_columns)]
    last: int = max((_chunk_end(chunk) for chunk in chunks), default=len(b"PAR1"))
    return size - last


def _chunk_end(chunk: pq.ColumnChunkMetaData) -> int:
    start: int = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    size: int = chunk.total_compressed_size
    return start + size


def _orc_footer_bytes(buffer: pa.Buffer) -> int:
    """Stripe statistics, footer, postscript, and the byte that holds the postscript's length."""
    file = orc.ORCFile(pa.BufferReader(buffer))
    parts: list[int] = [file.stripe_statistics_length, file.file_footer_length, file.file_postscript_length]
    return sum(parts) + 1


def _text_extremes(metadata: pq.FileMetaData) -> dict[str, tuple[Any, Any]]:
    """The extremes of string and binary columns as the writer left them in the footer."""
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    found = {}
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place)
        if column.physical_type == "BYTE_ARRAY" and (pair := _merged_extremes([group.column(place).statistics for group in groups])):
            found[column.path] = pair
    return found


def _merged_extremes(statistics: list[Any]) -> tuple[Any, Any] | None:
    filled = [one for one in statistics if one is None or one.num_values]
    if not filled or any(one is None or not one.has_min_max for one in filled):
        return None
    try:
        return min(one.min for one in filled), max(one.max for one in filled)
    except UnicodeDecodeError:  # Spark's strings need not be UTF-8
        return None


def decode_file(data: Any, spec: TableSpec, physical_columns: Sequence[str] | None, path: str) -> pa.Table:
    """The named physical columns (default: all) that the file has; columns younger than the file are left out."""
    wanted = physical_schema(spec).names if physical_columns is None else list(physical_columns)
    reader = pa.BufferReader(data)
    try:
        table = _read_orc(reader, wanted) if spec.file_format == "orc" else _read_parquet(reader, wanted)
        table.validate()
    except _READ_ERRORS as error:
        raise FormatError(f"{path} cannot be read as {spec.file_format}: {error}; restore the file") from error
    return table


def _read_parquet(reader: pa.NativeFile, wanted: list[str]) -> pa.Table:
    file = pq.ParquetFile(reader, page_checksum_verification=True)
    names = [name for name in wanted if name in file.schema_arrow.names]
    return file.read(columns=names).select(names)


def _read_orc(reader: pa.NativeFile, wanted: list[str]) -> pa.Table:
    file = orc.ORCFile(reader)
    names = [name for name in wanted if name in file.schema.names]
    return file.read(columns=names).select(names)


def verify_footer(tail: Any, expected_footer_bytes: int, expected_crc: int, path: str) -> None:
    """The last `expected_footer_bytes` bytes of a file against its commit."""
    what = f"the footer of {path}"
    if len(tail) != expected_footer_bytes:
        raise FormatError(f"{what} has {len(tail)} bytes, its commit says {expected_footer_bytes}; restore the file")
    if (found := zlib.crc32(tail)) != expected_crc:
        raise FormatError(f"{what} has checksum {found:08x}, its commit says {expected_crc:08x}; restore the file")
