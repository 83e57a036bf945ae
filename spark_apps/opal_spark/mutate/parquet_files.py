"""The footers of Parquet files: unsigned integers, which Spark can read but not write."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from opal_folder.master_folder import MasterFile
from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage
from opal_spark.mutate.groups import AT_ONCE
from opal_spark.mutate.master import MasterFiles, by_root

_TAIL_BYTES = 1 << 16
_END_BYTES = 8  # the footer's length in 4 bytes, and the magic number


def refuse_unsigned(master: MasterFiles) -> None:
    """Raise InvalidInputError for unsigned integers, which Spark cannot write."""
    roots = dict.fromkeys(file.root for file in master.files)
    # `by_root` yields the storages in the same order
    storages_in_order = [storage for storage, _ in by_root(master)]
    storages = dict(zip(roots, storages_in_order, strict=True))

    def columns_of(file: MasterFile) -> list[str]:
        return unsigned_columns(storages[file.root], file.path, file.size)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for file, columns in zip(master.files, pool.map(columns_of, master.files), strict=True):
            if columns:
                raise InvalidInputError(
                    f"{file.root}/{file.path} has unsigned integers, which Spark would write as "
                    f"signed ones: {', '.join(columns)}. Nothing was changed. First write the "
                    "master's files with a signed type, such as INT64"
                )


def unsigned_columns(storage: Storage, path: str, size: int) -> list[str]:
    """Return the names and types of unsigned integer columns, in nested fields too."""
    length = min(size, _TAIL_BYTES)
    tail = storage.get(path, size - length, length)
    footer_bytes = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    if length < footer_bytes <= size:
        tail = storage.get(path, size - footer_bytes, footer_bytes)
    try:
        schema = pq.read_metadata(pa.BufferReader(tail)).schema
    except (pa.ArrowException, OSError):
        # The file is not a Parquet file: Spark reports it with a better error
        return []
    unsigned = []
    for number in range(len(schema)):
        column = schema.column(number)
        if column.converted_type.startswith("UINT_"):
            unsigned.append(f"{column.path} {column.converted_type}")
    return unsigned
