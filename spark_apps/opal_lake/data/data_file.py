"""Data files in memory: rows to bytes and back (FORMAT: data files).

Two checksums in the commit vouch for a file: one of the whole, and one of its tail, which tells a
reader where everything lies. With the tail verified, Parquet's own page checksums cover the values;
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

from opal_lake.data.bounds import Bounds, bounds_of, merged_bounds, plan_high, plan_low
from opal_lake.data.columns import physical_schema, with_field_ids
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
PAGE_BYTES = (
    128 << 10
)  # encoded: of smaller ones a scan in Spark takes longer, a look-up decodes more of larger ones
THREADED_BYTES = 1 << 20  # of a file; a smaller one is decoded sooner than threads are woken
# Readers count headers and bitmaps as well: a seventh more than what the rows take
SPARE_DIVISOR = 7
INDEXED_BYTES = 1 << 20  # in memory: fewer rows are read whole
STRIPE_BYTES = 64 << 20
ORC_BATCH_ROWS = 8192
ORC_DICTIONARY_SHARE = 0.5
ORC_BUFFER_BYTES = 4 << 20  # that a writer asks malloc for per column, measured
# of freed ORC buffers that may stay with the process: to give them back costs a wide file 0.4 times
# its CPU seconds, because the next file asks the system for the same pages
ORC_FREED_BYTES = 256 << 20
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
    """A data file that is not yet stored, with all that its commit says of it."""

    data: memoryview
    crc32: int
    footer_bytes: int
    footer_crc32: int
    rows: int
    bounds: dict[int, Bounds]


def encode_file(
    table: pa.Table, spec: TableSpec, bound: SizeBound = BOUND, *, may_pad: bool = True
) -> EncodedFile:
    """Rows in physical form, with their row ids, as one file; the same rows give the same bytes."""
    encoder = FileEncoder(spec=spec, bound=bound, may_pad=may_pad)
    encoder.add(table)
    return encoder.finish()


@dataclass(slots=True, kw_only=True)
class FileEncoder:
    """A file that is made in passing, from rows that are added.

    In memory are the rows of one row group, and the bytes so far unless the sink is a spool. How
    columns are encoded is decided by the first row group. With `may_pad` a file gets zeros before
    its footer where it would be too small beside what it takes in memory for readers to accept it:
    a row that was accepted fits into every later file. With `has_outside_ids` rows
    have the columns of `OUTSIDE_FIELDS`, too.
    """

    spec: TableSpec
    level: int | None = None
    bound: SizeBound = BOUND
    may_pad: bool = True
    has_outside_ids: bool = False
    sink: pa.NativeFile = field(default_factory=pa.BufferOutputStream)
    rows: int = 0
    _writer: pq.ParquetWriter | orc.ORCWriter | None = None
    _held: list[pa.Table] = field(default_factory=list)
    _held_rows: int = 0
    _held_bytes: int = 0
    _decoded_bytes: int = 0
    _parts: list[tuple[int, dict[int, Bounds]]] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        """More rows, in the order in which the file has them."""
        rows = _in_file_order(rows, self._schema)
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._held_bytes += decoded_bytes(rows)
        self.rows += rows.num_rows
        if self._held_rows > GROUP_ROWS or self._held_bytes > self.bound.average_bytes:
            self._flush(whole=True)

    @property
    def _schema(self) -> pa.Schema:
        schema = physical_schema(self.spec)
        return pa.schema([*schema, *OUTSIDE_FIELDS]) if self.has_outside_ids else schema

    @property
    def size(self) -> int:
        """The bytes of the row groups that are written."""
        return int(self.sink.tell())

    def finish(self) -> EncodedFile:
        """At least a call of `add` came before."""
        self._flush(whole=False)
        assert self._writer is not None
        self._writer.close()
        if isinstance(self._writer, orc.ORCWriter):
            self._writer = None  # its buffers are freed with it
            _return_orc_buffers(physical_schema(self.spec))
        buffer = self.sink.getvalue()
        data = memoryview(buffer)
        if self.spec.file_format == "orc":
            footer_bytes, known = _orc_footer_bytes(buffer), {}
            if self.may_pad:
                limit = self.bound.limit_bytes(len(data))
                found = orc_size(pa.BufferReader(buffer), None, limit)
                data = _padded(data, self.bound.file_bytes(found.decoded_bytes), footer_bytes)
        else:
            metadata = pq.read_metadata(pa.BufferReader(buffer))
            if self.may_pad:
                groups_bytes = max(self._decoded_bytes, sum(footer_bytes_of_groups(metadata)))
                tail_bytes = int.from_bytes(data[-8:-4], "little") + 8  # with its length, and PAR1
                size = self.bound.file_bytes(groups_bytes + groups_bytes // SPARE_DIVISOR)
                data = _padded(data, size, tail_bytes)
            footer_bytes = _parquet_footer_bytes(metadata, len(data))
            known = _text_extremes(metadata)
        return EncodedFile(
            data=data,
            crc32=zlib.crc32(data),
            footer_bytes=footer_bytes,
            footer_crc32=zlib.crc32(data[len(data) - footer_bytes :]),
            rows=self.rows,
            bounds=self._bounds(known),
        )

    def _flush(self, *, whole: bool) -> None:
        """Write the row groups that are full, or all that is held."""
        rows = pa.concat_tables(self._held)
        group_rows = _group_rows(rows, self.bound)
        ready = rows.num_rows // group_rows * group_rows if whole else rows.num_rows
        rest = rows.slice(ready)
        self._held, self._held_rows = [rest], rest.num_rows
        self._held_bytes = decoded_bytes(rest) if rest.num_rows else 0
        if ready or self._writer is None:
            self._write(rows.slice(0, ready), group_rows)

    def _write(self, rows: pa.Table, group_rows: int) -> None:
        texts = (
            dict.fromkeys(_texts(rows.schema), (None, None))
            if self.spec.file_format == "parquet"
            else {}
        )
        self._parts.append((rows.num_rows, bounds_of(rows, self.spec, texts)))
        if self._writer is None:
            self._writer = (
                _open_orc(self.sink)
                if self.spec.file_format == "orc"
                else _open_parquet_to_write(rows, self.spec, self.sink, self.level)
            )
        if isinstance(self._writer, orc.ORCWriter):
            schema = with_field_ids(rows.schema, self.spec)
            self._writer.write(
                pa.table([_compact(column) for column in rows.columns], schema=schema)
            )
        else:
            self._decoded_bytes += decoded_bytes(rows)
            self._writer.write_table(rows, row_group_size=group_rows)

    def _bounds(self, known: Mapping[str, tuple[Any, Any]]) -> dict[int, Bounds]:
        """Return the extremes of each column; `known` are those of texts.

        The writer computes these anyway: comparing texts again costs a tenth of the write.
        """
        by_field = {}
        for column in self.spec.schema.fields:
            if isinstance(column.type, Atomic):
                merged = merged_bounds(
                    [(rows, bounds[column.id]) for rows, bounds in self._parts], column.type
                )
                low, high = known.get(column.physical, (None, None))
                by_field[column.id] = (
                    merged
                    if low is None
                    else replace(merged, low=plan_low(low), high=plan_high(high))
                )
        return by_field


def _texts(schema: pa.Schema) -> list[str]:
    """Columns whose extremes Parquet's writer finds."""
    return [
        column.name
        for column in schema
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    ]


def _in_file_order(table: pa.Table, schema: pa.Schema) -> pa.Table:
    try:
        ordered = table.select(schema.names).replace_schema_metadata(None)
    except KeyError as error:
        raise InvalidInputError(
            f"a data file needs the columns {schema.names}, got {table.column_names}: add what is missing"
        ) from error
    return ordered if ordered.schema == schema else ordered.cast(schema)


def _open_parquet_to_write(
    sample: pa.Table, spec: TableSpec, sink: pa.NativeFile, level: int | None
) -> pq.ParquetWriter:
    is_large = sample.nbytes > INDEXED_BYTES
    encodings = plan_encodings(sample, may_be_dense=is_large and level is None)
    return pq.ParquetWriter(
        sink,
        with_field_ids(sample.schema, spec),
        compression={
            path: "none" if path in encodings.dense else "zstd" for path in encodings.paths
        },
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
    rows: int = table.num_rows
    size = decoded_bytes(table)
    group_rows = max(1, min(GROUP_ROWS, bound.average_bytes * rows // max(1, size)))
    while size > bound.cut_bytes and _largest_group(table, group_rows) > bound.cut_bytes:
        if group_rows == 1:
            break
        group_rows //= 2
    return group_rows


def _largest_group(table: pa.Table, group_rows: int) -> int:
    """Return the bytes in memory of the largest row group: long values may all lie in one."""
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

    Of each buffer only the first pages are used. The next writer gets its buffers at other places of
    the heap, so that file by file all of it becomes resident: 0.8 GB for 200 columns.
    """
    buffer_bytes = _column_count(schema) * ORC_BUFFER_BYTES
    if buffer_bytes > ORC_FREED_BYTES and sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
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
    """Arrow's ORC writer takes the wrong rows of a struct that is a slice: copied, nothing is a slice any more."""
    if not pa.types.is_nested(column.type) or not column.num_chunks:
        return column
    nothing = column.chunk(0).slice(0, 0)  # one array alone might be handed back as it is
    return pa.chunked_array(
        [_null_within(pa.concat_arrays([chunk, nothing])) for chunk in column.chunks]
    )


def _null_within(array: pa.Array) -> pa.Array:
    """What lies in a null struct made null itself: Arrow's ORC writer would store it, and later values would be read a row too late."""
    kind, null = array.type, array.is_null()
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [_null_within(member) for member in array.flatten()], fields=list(kind), mask=null
        )
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(
            array.offsets, _null_within(array.keys), _null_within(array.items), kind, mask=null
        )
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, _null_within(array.values), kind, mask=null)
    return array


def _padded(data: memoryview, size: int, tail_bytes: int) -> memoryview:
    """Return a file of at least this size, with zeros before its footers where it is smaller.

    Offsets in the footers stay right: all that they lead to lies before the zeros.
    """
    missing = size - len(data)
    if missing <= 0:
        return data
    start = len(data) - tail_bytes
    return memoryview(b"".join([data[:start], bytes(missing), data[start:]]))


def _parquet_footer_bytes(metadata: pq.FileMetaData, size: int) -> int:
    """All that follows the last page."""
    chunks = [
        metadata.row_group(group).column(index)
        for group in range(metadata.num_row_groups)
        for index in range(metadata.num_columns)
    ]
    last: int = max((_chunk_end(chunk) for chunk in chunks), default=len(b"PAR1"))
    return size - last


def _chunk_end(chunk: pq.ColumnChunkMetaData) -> int:
    start: int = (
        chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    )
    size: int = chunk.total_compressed_size
    return start + size


def _orc_footer_bytes(buffer: pa.Buffer) -> int:
    """Stripe statistics, footer, postscript, and the byte that holds the postscript's length."""
    file = orc.ORCFile(pa.BufferReader(buffer))
    parts: list[int] = [
        file.stripe_statistics_length,
        file.file_footer_length,
        file.file_postscript_length,
    ]
    return sum(parts) + 1


def _text_extremes(metadata: pq.FileMetaData) -> dict[str, tuple[Any, Any]]:
    """The extremes of string and binary columns as the writer left them in the footer."""
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    extremes = {}
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        if column.physical_type == "BYTE_ARRAY" and (
            pair := _merged_extremes([group.column(index).statistics for group in groups])
        ):
            extremes[column.path] = pair
    return extremes


def _merged_extremes(statistics: list[Any]) -> tuple[Any, Any] | None:
    filled = [chunk for chunk in statistics if chunk is None or chunk.num_values]
    if not filled or any(chunk is None or not chunk.has_min_max for chunk in filled):
        return None
    try:
        return min(chunk.min for chunk in filled), max(chunk.max for chunk in filled)
    except UnicodeDecodeError:  # Spark's strings need not be UTF-8
        return None


def decode_parts(
    data: Any, spec: TableSpec, path: str, *, rows: int, bound: SizeBound = BOUND
) -> Iterator[pa.Table]:
    """All rows by row groups or stripes; columns that are younger than the file are null."""
    source = pa.BufferReader(data)
    parts = stored_parts(source, spec, None, path, rows=rows, bound=bound)
    return (_completed(part, spec) for part in parts)


@contextmanager
def reading(path: str, spec: TableSpec) -> Iterator[None]:
    """Whatever a decoder says of the file at the path: an error that names it."""
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
) -> Iterator[pa.Table]:
    """Yield row groups or stripes, at least one: the physical columns named that the file has.

    By default all columns. FormatError, before anything is decoded, if the file does not have the
    `rows` that its commit says.
    """
    names = physical_schema(spec).names if physical_columns is None else list(physical_columns)
    with reading(path, spec):
        for part in (
            _orc_parts(source, names, rows, bound)
            if spec.file_format == "orc"
            else _parquet_parts(source, names, rows, bound)
        ):
            part.validate()
            yield part


def open_parquet(
    source: pa.NativeFile,
    rows: int,
    *,
    pre_buffer: bool = False,
    read_dictionary: Sequence[str] = (),
) -> pq.ParquetFile:
    """A footer that speaks of other rows than its commit would have memory made for them."""
    file = pq.ParquetFile(
        source,
        page_checksum_verification=True,
        pre_buffer=pre_buffer,
        read_dictionary=[*read_dictionary],
    )
    groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    if min(groups, default=0) < 0 or file.metadata.num_rows != sum(groups):
        raise ValueError(
            f"its footer says {file.metadata.num_rows:,} rows, and {sum(groups):,} in row groups"
        )
    check_expected(sum(groups), rows)
    check_rows(rows, source.size())
    return file


def check_expected(found: int, rows: int) -> None:
    """Raise RowCountError if a footer says other rows than the commit of its file."""
    if found != rows:
        raise RowCountError(f"its footer says {found:,} rows, its commit says {rows:,}")


def read_groups(
    file: pq.ParquetFile,
    source: pa.NativeFile,
    groups: Sequence[int],
    names: Sequence[str],
    bound: SizeBound = BOUND,
) -> pa.Table:
    """Decode columns of row groups.

    ValueError if they take more memory, together, than a writer's.
    """
    data, file_size = _bytes_of(source), source.size()
    limit = bound.limit_bytes(file_size)
    sizes = [
        check_group(file.metadata.row_group(number), frozenset(names), data, file_size, bound)
        for number in groups
    ]
    least = sum(size.least for size in sizes)
    if least > limit:
        raise ValueError(
            f"{len(sizes)} row groups take {least:,} bytes in memory, "
            f"of a file of {file_size:,} bytes they may take {limit:,}"
        )
    if sum(size.most for size in sizes) <= limit:
        # A thread may let go of Python's bytes only when Python ends already, which aborts: a file
        # that is read in no time is read without
        has_threads = file_size > THREADED_BYTES
        return file.read_row_groups(groups, columns=names, use_threads=has_threads).select(names)
    parts, held_bytes = [], 0
    for number, size in zip(groups, sizes, strict=True):
        for part in _group_parts(file, number, names, size, limit):
            held_bytes += part.nbytes
            if held_bytes > limit:
                raise ValueError(
                    f"it takes more than the {limit:,} bytes in memory that such a file may take"
                )
            parts.append(part)
    return pa.concat_tables(parts).select(names)


def _group_parts(
    file: pq.ParquetFile, group: int, names: Sequence[str], size: GroupSize, limit: int
) -> Iterator[pa.Table]:
    """Decode a group: at once, or some rows at a time where its texts could be too long."""
    if size.most <= limit:
        yield file.read_row_group(group, columns=names)
        return
    batch_rows = min(max(1, limit // size.by_words), GROUP_ROWS)
    for batch in file.iter_batches(batch_rows, row_groups=[group], columns=names):
        yield pa.Table.from_batches([batch])


def _bytes_of(source: pa.NativeFile) -> pa.Buffer | None:
    """The bytes of a file that lies in memory."""
    if not isinstance(source, pa.BufferReader):
        return None
    source.seek(0)
    return source.read_buffer()


def _open_orc_to_read(
    source: pa.NativeFile, names: Sequence[str], rows: int, bound: SizeBound
) -> orc.ORCFile:
    size = source.size()
    check_rows(rows, size)
    limit = bound.limit_bytes(size)
    found = orc_size(source, names, limit)
    check_expected(found.rows, rows)
    if found.decoded_bytes > limit:
        raise ValueError(
            f"it takes {found.decoded_bytes:,} bytes in memory, of {size:,} bytes it may take {limit:,}"
        )
    return orc.ORCFile(source)


def _parquet_parts(
    source: pa.NativeFile, physical_columns: list[str], rows: int, bound: SizeBound
) -> Iterator[pa.Table]:
    file = open_parquet(source, rows, pre_buffer=isinstance(source, pa.PythonFile))
    names = held_names(physical_columns, file.schema_arrow)
    if not file.num_row_groups:
        yield file.schema_arrow.empty_table().select(names)
    for group in range(file.num_row_groups):
        yield read_groups(file, source, [group], names, bound)


def _orc_parts(
    source: pa.NativeFile, physical_columns: list[str], rows: int, bound: SizeBound
) -> Iterator[pa.Table]:
    file = _open_orc_to_read(source, physical_columns, rows, bound)
    names = held_names(physical_columns, file.schema)
    if not file.nstripes:
        yield file.schema.empty_table().select(names)
    for stripe in range(file.nstripes):
        yield pa.Table.from_batches([file.read_stripe(stripe, columns=names)]).select(names)


def held_names(names: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return those of the names that a schema has, in their order."""
    held = frozenset(schema.names)
    return [name for name in names if name in held]


def _completed(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """In one order, however many columns the file lacks."""
    schema, held = physical_schema(spec), frozenset(rows.column_names)
    columns = [
        rows[column.name] if column.name in held else _absent(column, rows.num_rows)
        for column in schema
    ]
    return pa.Table.from_arrays(columns, names=schema.names)


def _absent(column: pa.Field, rows: int) -> pa.Array:
    """Return what a column holds that is younger than the file."""
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
    """Return the named physical columns (default: all); those younger than the file are left out.

    `data` are the file's bytes, or an Arrow file that fetches them; `rows` are those that its
    commit says. FormatError if they would take more memory, together, than a writer's file.
    """
    names = physical_schema(spec).names if physical_columns is None else list(physical_columns)
    reader = data if isinstance(data, pa.NativeFile) else pa.BufferReader(data)
    with reading(path, spec):
        table = (
            _read_orc(reader, names, rows, bound)
            if spec.file_format == "orc"
            else _read_parquet(reader, names, rows, bound)
        )
        table.validate()
    return table


def _read_parquet(
    reader: pa.NativeFile, physical_columns: list[str], rows: int, bound: SizeBound
) -> pa.Table:
    file = open_parquet(reader, rows, pre_buffer=isinstance(reader, pa.PythonFile))
    names = held_names(physical_columns, file.schema_arrow)
    return read_groups(file, reader, range(file.num_row_groups), names, bound)


def may_hold(group: pq.RowGroupMetaData, rows: Mapping[int, BitMap]) -> bool:
    """Whether the extremes of the row ids leave room for one of the rows."""
    known = {
        column.path_in_schema: column.statistics
        for column in map(group.column, range(group.num_columns))
    }
    segments, offsets = known.get(SEGMENT), known.get(OFFSET)
    if not (segments and segments.has_min_max and offsets and offsets.has_min_max):
        return True
    near = [bitmap for segment, bitmap in rows.items() if segments.min <= segment <= segments.max]
    return any(bitmap.range_cardinality(offsets.min, offsets.max + 1) for bitmap in near)


def _read_orc(
    reader: pa.NativeFile, physical_columns: list[str], rows: int, bound: SizeBound
) -> pa.Table:
    file = _open_orc_to_read(reader, physical_columns, rows, bound)
    names = held_names(physical_columns, file.schema)
    return file.read(columns=names).select(names)


def verify_footer(tail: Any, expected_footer_bytes: int, expected_crc: int, path: str) -> None:
    """The last `expected_footer_bytes` bytes of a file against its commit."""
    what = f"the footer of {path}"
    if len(tail) != expected_footer_bytes:
        raise FormatError(
            f"{what} has {len(tail)} bytes, its commit says {expected_footer_bytes}; restore the file from a backup"
        )
    if (actual_crc := zlib.crc32(tail)) != expected_crc:
        raise FormatError(
            f"{what} has checksum {actual_crc:08x}, its commit says {expected_crc:08x}; restore the file from a backup"
        )
