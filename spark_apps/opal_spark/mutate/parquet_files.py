"""Parquet files by their footers: integers without a sign, which Spark reads and cannot write."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from opal_folder.place import MasterFile
from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage
from opal_spark.mutate.groups import AT_ONCE
from opal_spark.mutate.master import MasterFiles, by_root

_TAIL_BYTES, _END_BYTES = 1 << 16, 8


def refuse_unsigned(master: MasterFiles) -> None:
    """Of files that are written anew as Parquet."""
    roots = dict.fromkeys(file.root for file in master.files)
    storages = dict(zip(roots, (storage for storage, _ in by_root(master)), strict=True))

    def looked_at(file: MasterFile) -> list[str]:
        return unsigned_columns(storages[file.root], file.path, file.size)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for file, columns in zip(master.files, pool.map(looked_at, master.files), strict=True):
            if columns:
                raise InvalidInputError(
                    f"{file.root}/{file.path} has integers without a sign, which Spark would write with one: {', '.join(columns)}. "
                    "Nothing was changed: write the master's files with a signed type first, as INT64"
                )


def unsigned_columns(storage: Storage, path: str, size: int) -> list[str]:
    """Their names, in nested fields too, with their types. Of what is no Parquet Spark says more."""
    length = min(size, _TAIL_BYTES)
    tail = storage.get(path, size - length, length)
    footer = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    if length < footer <= size:
        tail = storage.get(path, size - footer, footer)
    try:
        schema = pq.read_metadata(pa.BufferReader(tail)).schema
    except (pa.ArrowException, OSError):
        return []
    columns = [schema.column(number) for number in range(len(schema))]
    return [
        f"{column.path} {column.converted_type}"
        for column in columns
        if column.converted_type.startswith("UINT_")
    ]
