"""Looking at data files before Spark trusts them: a damaged file must end in an error that names it, never in a wrong answer.

Parquet pages carry checksums that Spark verifies as it reads, so there the footer is all that is left to verify; ORC has none, so an ORC
file is verified whole. Files never change: each is verified once a process. `read_verify` says how much: full (default), footer (of ORC
files too), none.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from opal_lake.data_file import verify_footer
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.segment import DataFile
from opal_lake.snapshot import Snapshot
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import VouchedFile, read_verified
from opal_lake.table import Table
from opal_spark.outputs import collect_outputs

_READERS = 16
_ON_WORKERS_BYTES = 256 << 20
_REMEMBERED = 1_000_000

_verified: set[tuple[str, str, int]] = set()  # of a copy of the table nothing is known


def verify_files(spark: SparkSession, table: Table, snapshot: Snapshot, files: Sequence[DataFile]) -> None:
    """Raises FormatError for the first file that is not what was written."""
    mode = snapshot.spec.word("read_verify")
    new = [file for file in files if (table.uri, file.path, file.crc32) not in _verified]
    if mode == "none" or not new:
        return
    if mode == "full" and snapshot.spec.file_format == "orc":
        _verify_whole(spark, table.storage, new)
    else:
        with ThreadPoolExecutor(_READERS) as pool:
            list(pool.map(partial(_verify_footer, table.storage), new))
    if len(_verified) > _REMEMBERED:
        _verified.clear()
    _verified.update((table.uri, file.path, file.crc32) for file in new)


def _verify_footer(storage: Storage, file: DataFile) -> None:
    where = f"{storage.uri}/{file.path}"
    try:
        tail = storage.get(file.path, -file.footer_bytes)
    except NotFoundError as error:
        raise FormatError(f"{where} is missing, though the table refers to it; restore the file from a backup") from error
    verify_footer(tail, file.footer_bytes, file.footer_crc32, where)


def _verify_whole(spark: SparkSession, storage: Storage, files: Sequence[DataFile]) -> None:
    """Much is read by the workers, little by this process."""
    if sum(file.size for file in files) < _ON_WORKERS_BYTES:
        with ThreadPoolExecutor(_READERS) as pool:
            list(pool.map(partial(read_verified, storage), files))
        return
    listed = pa.table({"path": [f.path for f in files], "size": [f.size for f in files], "crc32": [f.crc32 for f in files]})
    spread = spark.createDataFrame(listed).repartition(min(len(files), 256))
    for problem in (problem for problems in collect_outputs(spread, partial(_problems, storage=storage), None) for problem in problems):
        raise FormatError(problem)


def _problems(batches: Iterable[pa.RecordBatch], *, storage: Storage) -> list[str]:
    found = []
    for row in (row for batch in batches for row in batch.to_pylist()):
        try:
            read_verified(storage, VouchedFile(**row))
        except FormatError as error:
            found.append(str(error))
    return found
