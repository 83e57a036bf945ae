"""Verifies data files before Spark reads them: a damaged file must cause an error that names it, never a wrong answer.

Parquet pages carry checksums that Spark verifies as it reads, so there the footer is all that is left to verify; ORC has none, so an ORC
file is verified whole. Files never change: each is verified once a process. `read_verify` says how much: full (default), footer (of ORC
files too), none.
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
_MOST_TASKS = 256
_ON_WORKERS_BYTES = 256 << 20
_REMEMBERED = 1_000_000

_verified: set[tuple[str, str, int]] = set()  # of a copy of the table nothing is known


def verify_files(spark: SparkSession, snapshot: Snapshot, files: Sequence[DataFile]) -> None:
    """Raises FormatError for the first file that is not what was written."""
    mode, uri = snapshot.spec.word("read_verify"), snapshot.storage.uri
    new = [file for file in files if (uri, file.path, file.crc32) not in _verified]
    if mode == "none" or not new:
        return
    if mode == "full" and snapshot.spec.file_format == "orc":
        _verify_whole(spark, snapshot.storage, new)
    else:
        with ThreadPoolExecutor(_READERS) as pool:
            list(pool.map(partial(read_footer, snapshot.storage), new))
    if len(_verified) > _REMEMBERED:
        _verified.clear()
    _verified.update((uri, file.path, file.crc32) for file in new)


def _verify_whole(spark: SparkSession, storage: Storage, files: Sequence[DataFile]) -> None:
    """Many files are verified by the workers, few by this process."""
    if sum(file.size for file in files) < _ON_WORKERS_BYTES:
        with ThreadPoolExecutor(_READERS) as pool:
            list(pool.map(partial(read_verified, storage), files))
        return
    tasks = min(len(files), _MOST_TASKS)
    # Without their bounds, which are most of what there is of a file
    named = [NamedFile(path=file.path, size=file.size, crc32=file.crc32) for file in files]
    shares = [named[first::tasks] for first in range(tasks)]
    for problem in (
        problem
        for problems in run_works(spark, partial(_problems, storage), shares)
        for problem in problems
    ):
        raise FormatError(problem)


def _problems(storage: Storage, files: Sequence[NamedFile], _attempt: str) -> list[str]:
    errors = []
    for file in files:
        try:
            read_verified(storage, file)
        except FormatError as error:
            errors.append(str(error))
    return errors
