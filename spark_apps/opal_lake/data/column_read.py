"""Reads of some columns of a data file, or of the row groups or pages of some rows.

Only the needed bytes of a large Parquet file are fetched. They are verified as Spark verifies them:
the footer by its checksum in the commit, the values by the checksums of their pages. An ORC file
has no checksums within. It is fetched and verified whole, and only decoded in part.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from opal_lake.data.columns import conformed
from opal_lake.data.data_file import (
    check_expected,
    decode_file,
    may_hold,
    names_to_read,
    open_parquet,
    read_groups,
    reading,
    stored_parts,
    verify_footer,
)
from opal_lake.data.pages.chosen_rows import read_chosen
from opal_lake.data.pages.near_indexes import near_index
from opal_lake.data.pages.page_index import Numbers
from opal_lake.data.segment import DataFile
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.uris import is_local
from opal_lake.storage.verified import missing_error, read_verified

WHOLE_BYTES = 1 << 20  # a smaller file takes one request, which is cheaper than two for a part
_LOCAL_READERS = 2
_TAIL_BYTES = 64 << 10  # at the end of a file, which Arrow's reader looks at first

# Decides on a row group by its metadata and its first row in the file.
_IsWanted = Callable[[pq.RowGroupMetaData, int], bool]


def readers(storage: Storage, spec: TableSpec) -> int:
    """Return how many files to read at the same time.

    Local Parquet files are read two at a time. Python decodes their pages, so that more threads
    would wait for its lock.
    """
    is_local_parquet = spec.file_format == "parquet" and is_local(storage.uri)
    return _LOCAL_READERS if is_local_parquet else READERS


def read_columns(
    storage: Storage, file: DataFile, spec: TableSpec, physical_columns: Sequence[str]
) -> pa.Table:
    """Read the named physical columns that the file has.

    Raises FormatError, with the file's name, if its bytes differ from the written ones.
    """
    unread = {field.physical for field in spec.schema.fields} - set(physical_columns)
    if not _has_parts(file, spec) or not unread:
        data = read_verified(storage, file)
        return decode_file(data, spec, physical_columns, file.path, rows=file.rows)
    with pa.PythonFile(StoredRanges(storage, file), mode="r") as ranges:
        return decode_file(ranges, spec, physical_columns, file.path, rows=file.rows)


def column_parts(
    storage: Storage, file: DataFile, spec: TableSpec, physical_columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows of `read_columns` in parts: a row group or a stripe at a time.

    A row group of a large Parquet file is fetched when the caller asks for it.
    """
    if _has_parts(file, spec):
        with pa.PythonFile(StoredRanges(storage, file), mode="r") as ranges:
            yield from stored_parts(ranges, spec, physical_columns, file.path, rows=file.rows)
        return
    data = pa.BufferReader(read_verified(storage, file))
    yield from stored_parts(data, spec, physical_columns, file.path, rows=file.rows)


def read_near(
    storage: Storage,
    file: DataFile,
    spec: TableSpec,
    physical_columns: Sequence[str],
    rows: Mapping[int, BitMap],
) -> pa.Table:
    """Read columns of the row groups that may hold wanted rows.

    `rows` has the offsets of wanted rows by segment; the result may have other rows, too. ORC files
    and small Parquet files are read whole.
    """
    table, _ = read_near_places(storage, file, spec, physical_columns, rows)
    return table


def read_near_places(
    storage: Storage,
    file: DataFile,
    spec: TableSpec,
    physical_columns: Sequence[str],
    rows: Mapping[int, BitMap],
) -> tuple[pa.Table, Numbers]:
    """Return the rows of `read_near`, and the position of each in the file, from 0."""
    if not _has_parts(file, spec):
        table = read_columns(storage, file, spec, physical_columns)
        return table, np.arange(table.num_rows)
    rows_of_file = {segment: rows[segment] for segment in file.segments if segment in rows}

    def is_wanted(group: pq.RowGroupMetaData, first_row: int) -> bool:
        return may_hold(group, rows_of_file)

    return _read_groups(storage, file, spec, physical_columns, is_wanted)


def read_places(
    storage: Storage,
    file: DataFile,
    spec: TableSpec,
    physical_columns: Sequence[str],
    places: Numbers,
) -> pa.Table:
    """Read columns of the rows at some ascending positions in the file.

    Of a large Parquet file, only the pages that hold these rows are read.
    """
    if len(places) and places[-1] >= file.rows:
        raise FormatError(
            f"{storage.uri}/{file.path} has {file.rows:,} rows, "
            f"and none at position {places[-1]:,}; run `opal check`"
        )
    if not _has_parts(file, spec):
        rows = read_columns(storage, file, spec, physical_columns)
        with reading(file.path, spec):
            return rows.take(pa.array(places))
    with reading(file.path, spec):
        index = near_index(file, partial(read_footer, storage, file))
        if index.groups:
            check_expected(int(index.first_rows[-1]), file.rows)
        columns = read_chosen(index, partial(_get_range, storage, file), physical_columns, places)
    # The index lacks nested columns. It is empty if the footer is too large to decode.
    unindexed = list(physical_columns)
    if index.columns:
        unindexed = [name for name in physical_columns if name in index.others]
    if unindexed:
        columns |= _read_by_groups(storage, file, spec, unindexed, places)
    names = [name for name in physical_columns if name in columns]
    with reading(file.path, spec):
        rows = pa.table({name: columns[name] for name in names})
        if not names:
            # Arrow has no other way to express rows without columns
            rows = pa.table({"": pa.nulls(len(places))}).select([])
        return conformed(rows, spec, physical_columns)


def _read_by_groups(
    storage: Storage, file: DataFile, spec: TableSpec, names: Sequence[str], places: Numbers
) -> dict[str, pa.ChunkedArray]:
    """Read columns of the rows at ascending positions, from their whole row groups."""

    def has_place(group: pq.RowGroupMetaData, first_row: int) -> bool:
        start, end = np.searchsorted(places, [first_row, first_row + group.num_rows])
        return bool(start < end)

    group_rows, places_in_file = _read_groups(storage, file, spec, names, has_place)
    rows = group_rows.take(pa.array(np.searchsorted(places_in_file, places)))
    return dict(zip(rows.column_names, rows.columns, strict=True))


def _has_parts(file: DataFile, spec: TableSpec) -> bool:
    """Return whether parts of the file are fetched, instead of the whole file."""
    return spec.file_format == "parquet" and file.size > WHOLE_BYTES


def _read_groups(
    storage: Storage,
    file: DataFile,
    spec: TableSpec,
    physical_columns: Sequence[str],
    is_wanted: _IsWanted,
) -> tuple[pa.Table, Numbers]:
    """Return the rows of the wanted row groups of a Parquet file, and their positions."""
    with pa.PythonFile(StoredRanges(storage, file), mode="r") as ranges, reading(file.path, spec):
        parquet = open_parquet(ranges, file.rows, pre_buffer=True)
        groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        first_rows = np.cumsum([0, *(group.num_rows for group in groups)], dtype=np.int64)
        wanted: list[int] = []
        for number, group in enumerate(groups):
            if is_wanted(group, int(first_rows[number])):
                wanted.append(number)
        names = names_to_read(physical_columns, parquet.schema_arrow)
        table = read_groups(parquet, ranges, wanted, names)
        table.validate()
        table = conformed(table, spec, physical_columns)
    places = [np.arange(first_rows[number], first_rows[number + 1]) for number in wanted]
    return table, np.concatenate([np.empty(0, np.int64), *places])


def read_footer(storage: Storage, file: DataFile, *, least: int = 0) -> bytes:
    """Read the end of a file and verify the footer in it.

    The result has at least `least` bytes, and at least the footer.
    """
    path = f"{storage.uri}/{file.path}"
    try:
        tail = storage.get(file.path, -max(file.footer_bytes, least))
    except NotFoundError as error:
        raise missing_error(storage, file.path) from error
    verify_footer(tail[-file.footer_bytes :], file.footer_bytes, file.footer_crc32, path)
    return tail


def _get_range(storage: Storage, file: DataFile, start: int, length: int) -> bytes:
    if not length:
        return b""
    try:
        return storage.get(file.path, start, length)
    except NotFoundError as error:
        raise missing_error(storage, file.path) from error


class StoredRanges(io.RawIOBase):
    """A stored file whose bytes are fetched when they are read."""

    def __init__(self, storage: Storage, file: DataFile) -> None:
        self._storage = storage
        self._file = file
        self._at = 0
        self._tail = read_footer(storage, file, least=_TAIL_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}
        self._at = origins[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        length = left if size < 0 else min(size, left)
        data = self._get(length)
        self._at += len(data)
        return data

    def _get(self, length: int) -> bytes:
        tail_begin = self._file.size - len(self._tail)
        start_in_tail = self._at - tail_begin
        if start_in_tail >= 0:
            return self._tail[start_in_tail : start_in_tail + length]
        return _get_range(self._storage, self._file, self._at, length)
