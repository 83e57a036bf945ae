"""Some columns of a data file, and the row groups of some rows, without the bytes of the others where that pays.

A part of a Parquet file is vouched for as Spark's own reads are: the footer by its checksum in the commit, the values by the checksums of
their pages. ORC has none within, so such a file is fetched and verified whole, and only decoded in part.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from opal_lake.data.data_file import (
    check_expected,
    decode_file,
    held_names,
    may_hold,
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

WHOLE_BYTES = 1 << 20  # of a small file one request for all is cheaper than two for a part
_IsWanted = Callable[[pq.RowGroupMetaData, int], bool]
_LOCAL_READERS = 2
_TAIL_BYTES = 64 << 10  # what Arrow's reader looks at first


def readers(storage: Storage, spec: TableSpec) -> int:
    """Files that are read at once. Of local Parquet files two: their pages are taken apart in Python, which more threads would wait for."""
    return _LOCAL_READERS if spec.file_format == "parquet" and is_local(storage.uri) else READERS


def read_columns(
    storage: Storage, file: DataFile, spec: TableSpec, physical_columns: Sequence[str]
) -> pa.Table:
    """The named physical columns that the file has; FormatError names a file that is not what was written."""
    others = {field.physical for field in spec.schema.fields} - set(physical_columns)
    if spec.file_format != "parquet" or file.size <= WHOLE_BYTES or not others:
        return decode_file(
            read_verified(storage, file), spec, physical_columns, file.path, rows=file.rows
        )
    with pa.PythonFile(StoredRanges(storage, file), mode="r") as ranges:
        return decode_file(ranges, spec, physical_columns, file.path, rows=file.rows)


def column_parts(
    storage: Storage, file: DataFile, spec: TableSpec, physical_columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield what `read_columns` returns, a row group or stripe at a time.

    Of a large Parquet file no more is fetched than what is taken.
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
    """As `read_columns`, without the row groups of a Parquet file that hold none of these rows, given by segment and offset."""
    return read_near_places(storage, file, spec, physical_columns, rows)[0]


def read_near_places(
    storage: Storage,
    file: DataFile,
    spec: TableSpec,
    physical_columns: Sequence[str],
    rows: Mapping[int, BitMap],
) -> tuple[pa.Table, Numbers]:
    """The same, and the place of each row in the file, counted from 0."""
    if not _has_parts(file, spec):
        table = read_columns(storage, file, spec, physical_columns)
        return table, np.arange(table.num_rows)
    mine = {segment: rows[segment] for segment in file.segments if segment in rows}
    return _read_groups(
        storage, file, spec, physical_columns, lambda group, first: may_hold(group, mine)
    )


def read_places(
    storage: Storage,
    file: DataFile,
    spec: TableSpec,
    physical_columns: Sequence[str],
    places: Numbers,
) -> pa.Table:
    """As `read_columns`, of the rows at these places, which ascend: of a Parquet file only the pages that hold them."""
    if len(places) and places[-1] >= file.rows:
        raise FormatError(
            f"{storage.uri}/{file.path} has {file.rows:,} rows, and none at place {places[-1]:,}; run `opal check`"
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
    if others := [name for name in physical_columns if name in index.others or not index.columns]:
        whole, at = _read_groups(
            storage,
            file,
            spec,
            others,
            lambda group, first: _reaches(places, first, group.num_rows),
        )
        rows = whole.take(pa.array(np.searchsorted(at, places)))
        columns |= dict(zip(rows.column_names, rows.columns, strict=True))
    return pa.table({name: columns[name] for name in physical_columns if name in columns})


def _has_parts(file: DataFile, spec: TableSpec) -> bool:
    return spec.file_format == "parquet" and file.size > WHOLE_BYTES


def _reaches(places: Numbers, first: int, rows: int) -> bool:
    """Whether one of the places is among so many rows."""
    start, end = np.searchsorted(places, [first, first + rows])
    return bool(start < end)


def _read_groups(
    storage: Storage,
    file: DataFile,
    spec: TableSpec,
    physical_columns: Sequence[str],
    is_wanted: Callable[[pq.RowGroupMetaData, int], bool],
) -> tuple[pa.Table, Numbers]:
    """Of a Parquet file the row groups that are wanted, by what the footer says of them and by their first rows."""
    with pa.PythonFile(StoredRanges(storage, file), mode="r") as ranges, reading(file.path, spec):
        parquet = open_parquet(ranges, file.rows, pre_buffer=True)
        groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        first = np.cumsum([0, *(group.num_rows for group in groups)], dtype=np.int64)
        wanted = [
            number for number, group in enumerate(groups) if is_wanted(group, int(first[number]))
        ]
        names = held_names(physical_columns, parquet.schema_arrow)
        table = read_groups(parquet, ranges, wanted, names)
        table.validate()
    places = [np.arange(first[number], first[number + 1]) for number in wanted]
    return table, np.concatenate([np.empty(0, np.int64), *places])


def read_footer(storage: Storage, file: DataFile, *, least: int = 0) -> bytes:
    """The last bytes of a file, at least its footer, which is verified."""
    where = f"{storage.uri}/{file.path}"
    try:
        tail = storage.get(file.path, -max(file.footer_bytes, least))
    except NotFoundError as error:
        raise missing_error(storage, file.path) from error
    verify_footer(tail[-file.footer_bytes :], file.footer_bytes, file.footer_crc32, where)
    return tail


def _get_range(storage: Storage, file: DataFile, start: int, length: int) -> bytes:
    if not length:
        return b""
    try:
        return storage.get(file.path, start, length)
    except NotFoundError as error:
        raise missing_error(storage, file.path) from error


class StoredRanges(io.RawIOBase):
    """A stored file whose bytes come as they are asked for."""

    def __init__(self, storage: Storage, file: DataFile) -> None:
        self._storage, self._file, self._at = storage, file, 0
        self._tail = read_footer(storage, file, least=_TAIL_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        )
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        length = left if size < 0 else min(size, left)
        in_tail = self._at - (self._file.size - len(self._tail))
        data = (
            self._tail[in_tail : in_tail + length]
            if in_tail >= 0
            else _get_range(self._storage, self._file, self._at, length)
        )
        self._at += len(data)
        return data
