"""Verification of data files before Spark reads them.

A damaged file must cause an error that names the file, never a wrong answer. Spark verifies the
checksums of Parquet pages when it reads them, so here only the footer is verified. ORC files have
no checksums, so here the whole file is verified. Files never change, so each process verifies a
file once. The table's property `read_verify` says how much is verified: `full` is the default,
`footer` verifies only the footer of ORC files, too, and `none` verifies nothing.
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
# This process reads fewer bytes of files faster than Spark starts tasks
ON_WORKERS_BYTES = 256 << 20
_MAX_REMEMBERED = 1_000_000

# The verified files: table URI, path and CRC32. A copy of the table elsewhere may be damaged.
_verified: set[tuple[str, str, int]] = set()


def verify_files(
    spark: SparkSession,
    snapshot: Snapshot,
    files: Sequence[DataFile],
    *,
    on_workers_bytes: int = ON_WORKERS_BYTES,
) -> None:
    """Raise FormatError for the first file that is not as it was written.

    Workers read the ORC files if these have at least `on_workers_bytes` together; otherwise this
    process does.
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
    # A NamedFile leaves out the bounds, which are most of a DataFile's bytes
    named = [NamedFile(path=file.path, size=file.size, crc32=file.crc32) for file in files]
    files_of_tasks = [named[first::tasks] for first in range(tasks)]
    for problems in run_works(spark, partial(_problems, storage), files_of_tasks):
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
