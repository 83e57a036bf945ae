"""Data files in memory: rows to bytes and back (FORMAT: data files).

Two checksums in the commit verify a file: one of the whole, and one of its tail, by which a reader
finds everything else. With the tail verified, Parquet's own page checksums cover the values;
page headers and ORC stripes are covered by the checksum of the whole only.
"""

import ctypes
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyroaring import BitMap

from opal_lake.data.bounds import Bounds, bounds_of, merged_bounds, plan_high, plan_low, with_unit
from opal_lake.data.columns import conformed, physical_schema, with_field_ids
from opal_lake.data.decoded_size import (
    BOUND,
    GroupSize,
    SizeBound,
    check_group,
    decoded_bytes,
    footer_bytes_of_groups,
)
from opal_lake.data.encodings import plan_encodings
from opal_lake.data.orc_size import orc_size
from opal_lake.data.outside_ids import OUTSIDE_FIELDS
from opal_lake.data.segment import check_rows
from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT, Atomic
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, InvalidInputError, RowCountError

GROUP_ROWS = 1 << 18  # of a row group, which is what Spark splits and prunes by
# Encoded bytes: smaller pages make a scan in Spark slower, larger ones a look-up.
PAGE_BYTES = 128 << 10
THREADED_BYTES = 1 << 20  # a smaller file is decoded before threads are woken
# Readers count headers and bitmaps as well: a seventh more than what the rows take.
SPARE_DIVISOR = 7
INDEXED_BYTES = 1 << 20  # in memory: fewer rows are read whole, without an index of pages
STRIPE_BYTES = 64 << 20
ORC_BATCH_ROWS = 8192
ORC_DICTIONARY_SHARE = 0.5
ORC_BUFFER_BYTES = 4 << 20  # that a writer asks malloc for per column, measured
# Freed ORC buffers that may stay with the process: to return them costs a wide file 0.4 times its
# CPU seconds, because the next file asks the system for the same pages.
ORC_FREED_BYTES = 256 << 20
_PARQUET_MAGIC = b"PAR1"
_BOUNDS_OF_WRITER = (None, None)  # in the place of extremes that Parquet's writer computes
_READ_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFile:
    """A data file that is not yet stored, with all that its commit records."""

    data: memoryview
    crc32: int
    footer_bytes: int
    footer_crc32: int
    rows: int
    bounds: dict[int, Bounds]


def encode_file(
    table: pa.Table, spec: TableSpec, bound: SizeBound = BOUND, *, may_pad: bool = True
) -> EncodedFile:
    """Encode rows in physical form, with their row ids, as one file.

    The same rows give the same bytes.
    """
    encoder = FileEncoder(spec=spec, bound=bound, may_pad=may_pad)
    encoder.add(table)
    return encoder.finish()


@dataclass(slots=True, kw_only=True)
class FileEncoder:
    """An encoder of one file, from rows that are added.

    It holds the rows of one row group in memory, and the bytes so far unless the sink is a spool.
    The first row group decides how columns are encoded.

    Readers refuse a file whose rows take too much memory for its size. With `may_pad`, such a file
    gets zeros before its footer, so that an accepted row fits into every later file. With
    `has_outside_ids`, rows have the columns of `OUTSIDE_FIELDS`, too.
    """

    spec: TableSpec
    level: int | None = None
    bound: SizeBound = BOUND
    may_pad: bool = True
    has_outside_ids: bool = False
    sink: pa.NativeFile = field(default_factory=pa.BufferOutputStream)
    rows: int = 0
    _writer: pq.ParquetWriter | orc.ORCWriter | None = None
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_rows: int = 0
    _waiting_bytes: int = 0
    _decoded_bytes: int = 0
    _parts: list[tuple[int, dict[int, Bounds]]] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        """Add rows, in the order in which the file has them."""
        rows = _in_file_order(rows, self._schema)
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += decoded_bytes(rows)
        self.rows += rows.num_rows
        if self._waiting_rows > GROUP_ROWS or self._waiting_bytes > self.bound.average_bytes:
            self._flush(only_full_groups=True)

    @property
    def _schema(self) -> pa.Schema:
        schema = physical_schema(self.spec)
        return pa.schema([*schema, *OUTSIDE_FIELDS]) if self.has_outside_ids else schema

    @property
    def size(self) -> int:
        """The bytes of the written row groups."""
        return int(self.sink.tell())

    def finish(self) -> EncodedFile:
        """Encode the footer and return the file. There must have been a call of `add`."""
        self._flush(only_full_groups=False)
        assert self._writer is not None
        self._writer.close()
        if isinstance(self._writer, orc.ORCWriter):
            self._writer = None  # its buffers are freed with it
            _return_orc_buffers(physical_schema(self.spec))
        buffer = self.sink.getvalue()
        if self.spec.file_format == "orc":
            return self._finish_orc(buffer)
        return self._finish_parquet(buffer)

    def _finish_orc(self, buffer: pa.Buffer) -> EncodedFile:
        data = memoryview(buffer)
        footer_bytes = _orc_footer_bytes(buffer)
        if self.may_pad:
            limit = self.bound.limit_bytes(len(data))
            size = orc_size(pa.BufferReader(buffer), None, limit)
            data = _padded(data, self.bound.file_bytes(size.decoded_bytes), footer_bytes)
        return self._encoded(data, footer_bytes, {})

    def _finish_parquet(self, buffer: pa.Buffer) -> EncodedFile:
        data = memoryview(buffer)
        metadata = pq.read_metadata(pa.BufferReader(buffer))
        if self.may_pad:
            groups_bytes = max(self._decoded_bytes, sum(footer_bytes_of_groups(metadata)))
            least_size = self.bound.file_bytes(groups_bytes + groups_bytes // SPARE_DIVISOR)
            # The footer, its length in 4 bytes, and the magic.
            tail_bytes = int.from_bytes(data[-8:-4], "little") + 8
            data = _padded(data, least_size, tail_bytes)
        footer_bytes = _parquet_footer_bytes(metadata, len(data))
        return self._encoded(data, footer_bytes, _text_extremes(metadata))

    def _encoded(
        self, data: memoryview, footer_bytes: int, known: Mapping[str, tuple[Any, Any]]
    ) -> EncodedFile:
        return EncodedFile(
            data=data,
            crc32=zlib.crc32(data),
            footer_bytes=footer_bytes,
            footer_crc32=zlib.crc32(data[len(data) - footer_bytes :]),
            rows=self.rows,
            bounds=self._bounds(known),
        )

    def _flush(self, *, only_full_groups: bool) -> None:
        """Write the waiting rows in row groups.

        With `only_full_groups`, the last rows that do not fill a group stay waiting.
        """
        rows = pa.concat_tables(self._waiting)
        group_rows = _group_rows(rows, self.bound)
        ready_rows = rows.num_rows
        if only_full_groups:
            ready_rows -= ready_rows % group_rows
        waiting = rows.slice(ready_rows)
        self._waiting = [waiting]
        self._waiting_rows = waiting.num_rows
        self._waiting_bytes = decoded_bytes(waiting) if waiting.num_rows else 0
        # A file without rows needs a writer, too.
        if ready_rows or self._writer is None:
            self._write(rows.slice(0, ready_rows), group_rows)

    def _write(self, rows: pa.Table, group_rows: int) -> None:
        """Write rows in groups of `group_rows`; the first call opens the writer."""
        is_orc = self.spec.file_format == "orc"
        known: dict[str, tuple[Any, Any]] = {}
        if not is_orc:
            known = dict.fromkeys(_text_columns(rows.schema), _BOUNDS_OF_WRITER)
        self._parts.append((rows.num_rows, bounds_of(rows, self.spec, known)))
        if self._writer is None and is_orc:
            self._writer = _open_orc(self.sink)
        elif self._writer is None:
            self._writer = _open_parquet_to_write(rows, self.spec, self.sink, self.level)
        if isinstance(self._writer, orc.ORCWriter):
            columns = [_compact(column) for column in rows.columns]
            schema = with_field_ids(rows.schema, self.spec)
            self._writer.write(pa.table(columns, schema=schema))
        else:
            self._decoded_bytes += decoded_bytes(rows)
            self._writer.write_table(rows, row_group_size=group_rows)

    def _bounds(self, known: Mapping[str, tuple[Any, Any]]) -> dict[int, Bounds]:
        """Return the bounds of each column by field id.

        `known` has the extremes of texts that the writer has computed, by physical name.
        """
        by_field: dict[int, Bounds] = {}
        for column in self.spec.schema.fields:
            if not isinstance(column.type, Atomic):
                continue
            parts = [(rows, bounds[column.id]) for rows, bounds in self._parts]
            merged = merged_bounds(parts, column.type)
            low, high = known.get(column.physical, _BOUNDS_OF_WRITER)
            if low is not None:
                merged = replace(merged, low=plan_low(low), high=plan_high(high))
            by_field[column.id] = with_unit(merged, column)
        return by_field


def _text_columns(schema: pa.Schema) -> list[str]:
    """Return the columns whose extremes Parquet's writer computes."""
    return [column.name for column in schema if _is_text(column.type)]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _in_file_order(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns in the order and with the types of the schema."""
    try:
        ordered = table.select(schema.names).replace_schema_metadata(None)
    except KeyError as error:
        raise InvalidInputError(
            f"a data file needs the columns {schema.names}, got {table.column_names}: "
            "add the missing ones"
        ) from error
    return ordered if ordered.schema == schema else ordered.cast(schema)


def _open_parquet_to_write(
    sample: pa.Table, spec: TableSpec, sink: pa.NativeFile, level: int | None
) -> pq.ParquetWriter:
    is_large = sample.nbytes > INDEXED_BYTES
    encodings = plan_encodings(sample, may_be_dense=is_large and level is None)
    compression = dict.fromkeys(encodings.paths, "zstd")
    compression.update(dict.fromkeys(encodings.dense, "none"))
    return pq.ParquetWriter(
        sink,
        with_field_ids(sample.schema, spec),
        compression=compression,
        compression_level=level,
        use_dictionary=list(encodings.dictionary),
        column_encoding=dict.fromkeys(encodings.delta, "DELTA_BINARY_PACKED"),
        write_statistics=list(encodings.statistics),
        write_page_checksum=True,
        write_page_index=is_large,
        data_page_size=PAGE_BYTES,
        store_decimal_as_integer=True,  # as Spark does: reads twice as fast
        store_schema=False,
    )


def _group_rows(table: pa.Table, bound: SizeBound) -> int:
    """Return how many rows a row group gets, to be within the bound if possible."""
    rows: int = table.num_rows
    size = decoded_bytes(table)
    rows_of_average_size = bound.average_bytes * rows // max(1, size)
    group_rows = max(1, min(GROUP_ROWS, rows_of_average_size))
    while size > bound.cut_bytes and _largest_group(table, group_rows) > bound.cut_bytes:
        if group_rows == 1:
            break
        group_rows //= 2
    return group_rows


def _largest_group(table: pa.Table, group_rows: int) -> int:
    """Return the bytes in memory of the largest row group."""
    starts = range(0, table.num_rows, group_rows)
    sizes = [decoded_bytes(table.slice(start, group_rows)) for start in starts]
    return max(sizes, default=0)


def _open_orc(sink: pa.NativeFile) -> orc.ORCWriter:
    return orc.ORCWriter(
        sink,
        compression="zstd",
        batch_size=ORC_BATCH_ROWS,
        stripe_size=STRIPE_BYTES,
        dictionary_key_size_threshold=ORC_DICTIONARY_SHARE,
    )


def _return_orc_buffers(schema: pa.Schema) -> None:
    """Return the freed memory of an ORC writer to the system if its file is wide.

    Only the first pages of each buffer are used. The next writer gets its buffers elsewhere on the
    heap, so that file by file all of it becomes resident: 0.8 GB for 200 columns.
    """
    buffer_bytes = _column_count(schema) * ORC_BUFFER_BYTES
    if buffer_bytes > ORC_FREED_BYTES and sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
        if trim is not None:
            trim(0)


def _column_count(fields: Iterable[pa.Field]) -> int:
    """Return how many columns ORC stores for these fields, with those within them."""
    count = 0
    for column in fields:
        kind = column.type
        members = [kind.field(index) for index in range(kind.num_fields)]
        count += 1 + _column_count(members)
    return count


def _compact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Copy a nested column, so that no chunk is a slice.

    Arrow's ORC writer writes the wrong rows of a struct that is a slice.
    """
    if not pa.types.is_nested(column.type) or not column.num_chunks:
        return column
    # concat_arrays may return a single array as it is: an empty one next to it makes a copy.
    nothing = column.chunk(0).slice(0, 0)
    copies = [pa.concat_arrays([chunk, nothing]) for chunk in column.chunks]
    return pa.chunked_array([_null_within(copy) for copy in copies])


def _null_within(array: pa.Array) -> pa.Array:
    """Return an array whose null structs have null members.

    Arrow's ORC writer would store such members, and later values would be read a row too late.
    """
    kind, null = array.type, array.is_null()
    if pa.types.is_struct(kind):
        members = [_null_within(member) for member in array.flatten()]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=null)
    if pa.types.is_map(kind):
        keys, items = _null_within(array.keys), _null_within(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=null)
    if pa.types.is_list(kind):
        values = _null_within(array.values)
        return pa.ListArray.from_arrays(array.offsets, values, kind, mask=null)
    return array


def _padded(data: memoryview, size: int, tail_bytes: int) -> memoryview:
    """Return a file of at least `size` bytes; smaller ones get zeros before the tail.

    Offsets in the tail stay right: they point to bytes before the zeros.
    """
    missing = size - len(data)
    if missing <= 0:
        return data
    start = len(data) - tail_bytes
    return memoryview(b"".join([data[:start], bytes(missing), data[start:]]))


def _parquet_footer_bytes(metadata: pq.FileMetaData, size: int) -> int:
    """Return how many bytes come after the last page."""
    end_of_pages = len(_PARQUET_MAGIC)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(metadata.num_columns):
            end_of_pages = max(end_of_pages, _chunk_end(group.column(index)))
    return size - end_of_pages


def _chunk_end(chunk: pq.ColumnChunkMetaData) -> int:
    start: int = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = chunk.dictionary_page_offset
    size: int = chunk.total_compressed_size
    return start + size


def _orc_footer_bytes(buffer: pa.Buffer) -> int:
    """Return how many bytes come after the last stripe."""
    file = orc.ORCFile(pa.BufferReader(buffer))
    size: int = file.stripe_statistics_length
    size += file.file_footer_length
    size += file.file_postscript_length
    return size + 1  # the byte that holds the postscript's length


def _text_extremes(metadata: pq.FileMetaData) -> dict[str, tuple[Any, Any]]:
    """Return the extremes of string and binary columns, from the footer."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    extremes: dict[str, tuple[Any, Any]] = {}
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        if column.physical_type != "BYTE_ARRAY":
            continue
        merged = _merged_extremes([group.column(index).statistics for group in groups])
        if merged is not None:
            extremes[column.path] = merged
    return extremes


def _merged_extremes(statistics: list[Any]) -> tuple[Any, Any] | None:
    """Return the extremes over all row groups; None if they are unknown."""
    with_values = [chunk for chunk in statistics if chunk is None or chunk.num_values]
    if not with_values:
        return None
    if any(chunk is None or not chunk.has_min_max for chunk in with_values):
        return None
    try:
        return min(chunk.min for chunk in with_values), max(chunk.max for chunk in with_values)
    except UnicodeDecodeError:  # Spark's strings need not be UTF-8
        return None


def decode_parts(
    data: Any, spec: TableSpec, path: str, *, rows: int, bound: SizeBound = BOUND
) -> Iterator[pa.Table]:
    """Yield all rows by row groups or stripes; columns that the file lacks are null."""
    source = pa.BufferReader(data)
    parts = stored_parts(source, spec, None, path, rows=rows, bound=bound)
    return (_completed(part, spec) for part in parts)


@contextmanager
def reading(path: str, spec: TableSpec) -> Iterator[None]:
    """Turn the errors of decoders into one that names the file."""
    try:
        yield
    except RowCountError as error:
        raise RowCountError(f"{path}: {error}; restore the file from a backup") from error
    except _READ_ERRORS as error:
        raise FormatError(
            f"{path} cannot be read as {spec.file_format}: {error}; restore the file from a backup"
        ) from error


def stored_parts(
    source: pa.NativeFile,
    spec: TableSpec,
    physical_columns: Sequence[str] | None,
    path: str,
    *,
    rows: int,
    bound: SizeBound = BOUND,
    as_stored: bool = False,
) -> Iterator[pa.Table]:
    """Yield the named columns (default: all) of each row group or stripe.

    Columns that the file lacks are left out. A file without rows yields an empty table. Values have
    the types that the columns have now, or those of the file if `as_stored`. Raises
    FormatError, before anything is decoded, if the file does not have the `rows` of its commit.
    """
    names = _column_names(spec, physical_columns)
    parts_of = _orc_parts if spec.file_format == "orc" else _parquet_parts
    with reading(path, spec):
        for part in parts_of(source, names, rows, bound):
            part.validate()
            yield part if as_stored else conformed(part, spec, names)


def _column_names(spec: TableSpec, physical_columns: Sequence[str] | None) -> list[str]:
    if physical_columns is not None:
        return list(physical_columns)
    return list(physical_schema(spec).names)


def open_parquet(
    source: pa.NativeFile,
    rows: int,
    *,
    pre_buffer: bool = False,
    read_dictionary: Sequence[str] = (),
) -> pq.ParquetFile:
    """Open a Parquet file; raise ValueError unless it has the `rows` of its commit.

    This is checked first because readers allocate memory for the rows that a footer claims.
    """
    file = pq.ParquetFile(
        source,
        page_checksum_verification=True,
        pre_buffer=pre_buffer,
        read_dictionary=[*read_dictionary],
    )
    rows_of_groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    group_rows = sum(rows_of_groups)
    if min(rows_of_groups, default=0) < 0 or file.metadata.num_rows != group_rows:
        raise ValueError(
            f"its footer says {file.metadata.num_rows:,} rows, but {group_rows:,} in row groups"
        )
    check_expected(group_rows, rows)
    check_rows(rows, source.size())
    return file


def check_expected(footer_rows: int, rows: int) -> None:
    """Raise RowCountError if a footer and a commit differ in the number of rows."""
    # I11: a data file has the rows that its commit records.
    if footer_rows != rows:
        raise RowCountError(f"its footer says {footer_rows:,} rows, but its commit says {rows:,}")


def read_groups(
    file: pq.ParquetFile,
    source: pa.NativeFile,
    groups: Sequence[int],
    names: Sequence[str],
    bound: SizeBound = BOUND,
) -> pa.Table:
    """Decode columns of row groups.

    Raises ValueError if they take more memory than the bound allows for a file of this size.
    """
    data = _bytes_of(source)
    file_size = source.size()
    limit = bound.limit_bytes(file_size)
    chosen = frozenset(names)
    sizes: list[GroupSize] = []
    for number in groups:
        group = file.metadata.row_group(number)
        sizes.append(check_group(group, chosen, data, file_size, bound))
    least = sum(size.least for size in sizes)
    if least > limit:
        raise ValueError(
            f"{len(sizes)} row groups take {least:,} bytes in memory, "
            f"but in a file of {file_size:,} bytes they may take at most {limit:,}"
        )
    if sum(size.most for size in sizes) <= limit:
        # A thread may release Python's bytes when Python ends already, which aborts the process: a
        # small file is read without threads.
        use_threads = file_size > THREADED_BYTES
        return file.read_row_groups(groups, columns=names, use_threads=use_threads).select(names)
    # Each row could have the longest text of a dictionary, so the decoded bytes are counted.
    parts: list[pa.Table] = []
    decoded_so_far = 0
    for number, size in zip(groups, sizes, strict=True):
        for part in _group_parts(file, number, names, size, limit):
            decoded_so_far += part.nbytes
            if decoded_so_far > limit:
                raise ValueError(
                    f"its rows take more than {limit:,} bytes in memory, "
                    f"the limit of a file of {file_size:,} bytes"
                )
            parts.append(part)
    return pa.concat_tables(parts).select(names)


def _group_parts(
    file: pq.ParquetFile, group: int, names: Sequence[str], size: GroupSize, limit: int
) -> Iterator[pa.Table]:
    """Decode a row group, some rows at a time where its texts could be too long."""
    if size.most <= limit:
        yield file.read_row_group(group, columns=names)
        return
    batch_rows = min(max(1, limit // size.by_words), GROUP_ROWS)
    for batch in file.iter_batches(batch_rows, row_groups=[group], columns=names):
        yield pa.Table.from_batches([batch])


def _bytes_of(source: pa.NativeFile) -> pa.Buffer | None:
    """Return the bytes of a file that is in memory; None for another."""
    if not isinstance(source, pa.BufferReader):
        return None
    source.seek(0)
    return source.read_buffer()


def _open_orc_to_read(
    source: pa.NativeFile, names: Sequence[str], rows: int, bound: SizeBound
) -> orc.ORCFile:
    file_size = source.size()
    check_rows(rows, file_size)
    limit = bound.limit_bytes(file_size)
    size = orc_size(source, names, limit)
    check_expected(size.rows, rows)
    if size.decoded_bytes > limit:
        raise ValueError(
            f"its rows take {size.decoded_bytes:,} bytes in memory, "
            f"but those of a file of {file_size:,} bytes may take at most {limit:,}"
        )
    return orc.ORCFile(source)


def _parquet_parts(
    source: pa.NativeFile, physical_columns: list[str], rows: int, bound: SizeBound
) -> Iterator[pa.Table]:
    file = open_parquet(source, rows, pre_buffer=isinstance(source, pa.PythonFile))
    names = names_to_read(physical_columns, file.schema_arrow)
    if not file.num_row_groups:
        yield file.schema_arrow.empty_table().select(names)
    for group in range(file.num_row_groups):
        yield read_groups(file, source, [group], names, bound)


def _orc_parts(
    source: pa.NativeFile, physical_columns: list[str], rows: int, bound: SizeBound
) -> Iterator[pa.Table]:
    file = _open_orc_to_read(source, physical_columns, rows, bound)
    names = names_to_read(physical_columns, file.schema)
    if not file.nstripes:
        yield file.schema.empty_table().select(names)
    for stripe in range(file.nstripes):
        yield pa.Table.from_batches([file.read_stripe(stripe, columns=names)]).select(names)


def existing_names(names: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return the names that a schema has, in their given order."""
    existing = frozenset(schema.names)
    return [name for name in names if name in existing]


def names_to_read(names: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return the names to read of a file that may lack some.

    A file that lacks them all is read for the number of its rows.
    """
    existing = existing_names(names, schema)
    if names and not existing:
        return [SEGMENT]
    return existing


def _completed(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Return rows with all physical columns, in their order."""
    schema = physical_schema(spec)
    existing = frozenset(rows.column_names)
    columns: list[pa.ChunkedArray | pa.Array] = []
    for column in schema:
        if column.name in existing:
            columns.append(rows[column.name])
        else:
            columns.append(_absent(column, rows.num_rows))
    return pa.Table.from_arrays(columns, names=schema.names)


def _absent(column: pa.Field, rows: int) -> pa.Array:
    """Return the values of a column that was added after the file."""
    if column.name == DELETED:
        return pa.array(np.zeros(rows, np.bool_))
    return pa.nulls(rows, column.type)


def decode_file(
    data: Any,
    spec: TableSpec,
    physical_columns: Sequence[str] | None,
    path: str,
    *,
    rows: int,
    bound: SizeBound = BOUND,
) -> pa.Table:
    """Decode the named physical columns (default: all) that the file has.

    `data` are the file's bytes, or an Arrow file that fetches them. Raises FormatError unless the
    file has the `rows` of its commit, and if they would take more memory than `bound` allows.
    """
    names = _column_names(spec, physical_columns)
    read = _read_orc if spec.file_format == "orc" else _read_parquet
    reader = data if isinstance(data, pa.NativeFile) else pa.BufferReader(data)
    with reading(path, spec):
        table = read(reader, names, rows, bound)
        table.validate()
        return conformed(table, spec, names)


def _read_parquet(
    reader: pa.NativeFile, physical_columns: list[str], rows: int, bound: SizeBound
) -> pa.Table:
    file = open_parquet(reader, rows, pre_buffer=isinstance(reader, pa.PythonFile))
    names = names_to_read(physical_columns, file.schema_arrow)
    return read_groups(file, reader, range(file.num_row_groups), names, bound)


def may_hold(group: pq.RowGroupMetaData, rows: Mapping[int, BitMap]) -> bool:
    """Return whether a row group may hold wanted rows, by its extreme row ids.

    `rows` has offsets by segment.
    """
    statistics: dict[str, Any] = {}
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema in (SEGMENT, OFFSET):
            extremes = column.statistics
            if extremes is None or not extremes.has_min_max:
                return True
            statistics[column.path_in_schema] = extremes
    if len(statistics) < 2:
        return True
    segments, offsets = statistics[SEGMENT], statistics[OFFSET]
    for segment, bitmap in rows.items():
        is_possible = segments.min <= segment <= segments.max
        if is_possible and bitmap.range_cardinality(offsets.min, offsets.max + 1):
            return True
    return False


def _read_orc(
    reader: pa.NativeFile, physical_columns: list[str], rows: int, bound: SizeBound
) -> pa.Table:
    file = _open_orc_to_read(reader, physical_columns, rows, bound)
    names = names_to_read(physical_columns, file.schema)
    return file.read(columns=names).select(names)


def verify_footer(tail: Any, expected_footer_bytes: int, expected_crc: int, path: str) -> None:
    """Raise FormatError unless `tail` is the footer that the commit of a file records."""
    if len(tail) != expected_footer_bytes:
        raise FormatError(
            f"the footer of {path} has {len(tail)} bytes, but the file's commit says "
            f"{expected_footer_bytes}; restore the file from a backup"
        )
    actual_crc = zlib.crc32(tail)
    if actual_crc != expected_crc:
        raise FormatError(
            f"the footer of {path} has checksum {actual_crc:08x}, but the file's commit says "
            f"{expected_crc:08x}; restore the file from a backup"
        )
