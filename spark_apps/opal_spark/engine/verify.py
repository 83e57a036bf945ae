"""Verification of data files before Spark reads them.

A damaged file must cause an error that names it, never a wrong answer. Parquet pages carry
checksums that Spark verifies as it reads, so that only the footer is left to verify; ORC has none,
so that an ORC file is verified whole. Files never change: each is verified once a process.
`read_verify` says how much: full (default), footer (of ORC files too), none.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.sql import SparkSession

from opal_lake.data.column_read import read_footer
from opal_lake.data.segment import DataFile
from opal_lake.errors import FormatError
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import NamedFile, read_verified
from opal_spark.engine.tasks import run_works

_READERS = 16
_MAX_TASKS = 256
# Below, this process reads the files faster than Spark starts tasks
ON_WORKERS_BYTES = 256 << 20
_MAX_REMEMBERED = 1_000_000

# By the table's URI too: a copy of the table may be damaged
_verified: set[tuple[str, str, int]] = set()


def verify_files(
    spark: SparkSession,
    snapshot: Snapshot,
    files: Sequence[DataFile],
    *,
    on_workers_bytes: int = ON_WORKERS_BYTES,
) -> None:
    """Raise FormatError for the first file that is not as it was written.

    ORC files of `on_workers_bytes` and more are read by the workers, fewer by this process.
    """
    mode = snapshot.spec.word("read_verify")
    uri = snapshot.storage.uri
    new = [file for file in files if (uri, file.path, file.crc32) not in _verified]
    if mode == "none" or not new:
        return
    is_orc = snapshot.spec.file_format == "orc"
    if mode != "full" or not is_orc:
        with ThreadPoolExecutor(_READERS) as pool:
            list(pool.map(partial(read_footer, snapshot.storage), new))
    elif sum(file.size for file in new) < on_workers_bytes:
        with ThreadPoolExecutor(_READERS) as pool:
            list(pool.map(partial(read_verified, snapshot.storage), new))
    else:
        _verify_on_workers(spark, snapshot.storage, new)
    if len(_verified) > _MAX_REMEMBERED:
        _verified.clear()
    _verified.update((uri, file.path, file.crc32) for file in new)


def _verify_on_workers(spark: SparkSession, storage: Storage, files: Sequence[DataFile]) -> None:
    tasks = min(len(files), _MAX_TASKS)
    # Without their bounds, which are most of a DataFile's bytes
    named = [NamedFile(path=file.path, size=file.size, crc32=file.crc32) for file in files]
    shares = [named[first::tasks] for first in range(tasks)]
    for problems in run_works(spark, partial(_problems, storage), shares):
        if problems:
            raise FormatError(problems[0])


def _problems(storage: Storage, files: Sequence[NamedFile], _attempt: str) -> list[str]:
    errors = []
    for file in files:
        try:
            read_verified(storage, file)
        except FormatError as error:
            errors.append(str(error))
    return errors
