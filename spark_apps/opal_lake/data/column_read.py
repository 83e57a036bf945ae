"""Some columns of a data file, and the row groups of some rows, without the bytes of the others where that pays.

A part of a Parquet file is vouched for as Spark's own reads are: the footer by its checksum in the commit, the values by the checksums of
their pages. ORC has none within, so such a file is fetched and verified whole, and only decoded in part.
"""

import io
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyroaring import BitMap

from opal_lake.data.data_file import decode_file, verify_footer
from opal_lake.data.segment import DataFile
from opal_lake.errors import NotFoundError
from opal_lake.spec.table_spec import TableSpec
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import missing_error, read_verified

WHOLE_BYTES = 1 << 20  # of a small file one request for all is cheaper than two for a part
_TAIL_BYTES = 64 << 10  # what Arrow's reader looks at first


def read_columns(storage: Storage, file: DataFile, spec: TableSpec, physical_columns: Sequence[str]) -> pa.Table:
    """The named physical columns that the file has; FormatError names a file that is not what was written."""
    others = {field.physical for field in spec.schema.fields} - set(physical_columns)
    if spec.file_format != "parquet" or file.size <= WHOLE_BYTES or not others:
        return decode_file(read_verified(storage, file), spec, physical_columns, file.path)
    with pa.PythonFile(StoredRanges(storage, file), mode="r") as ranges:
        return decode_file(ranges, spec, physical_columns, file.path)


def read_near(storage: Storage, file: DataFile, spec: TableSpec, physical_columns: Sequence[str], rows: Mapping[int, BitMap]) -> pa.Table:
    """As `read_columns`, without the row groups of a Parquet file that hold none of these rows, given by segment and offset."""
    if spec.file_format != "parquet" or file.size <= WHOLE_BYTES:
        return read_columns(storage, file, spec, physical_columns)
    mine = {segment: rows[segment] for segment in file.segments if segment in rows}
    with pa.PythonFile(StoredRanges(storage, file), mode="r") as ranges:
        return decode_file(ranges, spec, physical_columns, file.path, mine)


def read_footer(storage: Storage, file: DataFile, *, least: int = 0) -> bytes:
    """The last bytes of a file, at least its footer, which is verified."""
    where = f"{storage.uri}/{file.path}"
    try:
        tail = storage.get(file.path, -max(file.footer_bytes, least))
    except NotFoundError as error:
        raise missing_error(storage, file.path) from error
    verify_footer(tail[-file.footer_bytes :], file.footer_bytes, file.footer_crc32, where)
    return tail


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
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        length = left if size < 0 else min(size, left)
        in_tail = self._at - (self._file.size - len(self._tail))
        data = self._tail[in_tail : in_tail + length] if in_tail >= 0 else self._range(self._at, length)
        self._at += len(data)
        return data

    def _range(self, start: int, length: int) -> bytes:
        if not length:
            return b""
        try:
            return self._storage.get(self._file.path, start, length)
        except NotFoundError as error:
            raise missing_error(self._storage, self._file.path) from error
