"""Bytes that are made in passing and may be too many for memory: in a file without a name, which goes with the process at the latest.

It is on the first disk that Spark gives a task, or else where temporary files are (TMPDIR): not in memory, unless that is a file system
in memory.
"""

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pyarrow as pa

from opal_lake.errors import StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def _folder() -> str:
    """Spark tells its workers of its disks."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return given if os.path.isdir(given) else tempfile.gettempdir()


@contextmanager
def room_errors() -> Iterator[None]:
    """Says which disk it is that is full."""
    try:
        yield
    except OSError as error:
        # the ORC writer keeps the text alone
        if error.errno not in _FULL and not any(
            f"[Errno {number}]" in str(error) for number in _FULL
        ):
            raise
        why = str(error).splitlines()[0]
        raise StorageError(
            f"no room in {_folder()} for a temporary file ({why}); make room, or name another folder by spark.local.dir or TMPDIR"
        ) from error


def nameless_file() -> IO[bytes]:
    """A file without a name: it is gone when the process ends, however it ends."""
    return tempfile.TemporaryFile(prefix="opal-", dir=_folder())


def spool() -> "Spool":
    """A sink in the place of pyarrow's BufferOutputStream."""
    file = nameless_file()
    sink = Spool(file, mode="w")
    sink.file = file
    return sink


class Spool(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """The value is mapped from the file: the system may take its pages back at any time."""

    file: IO[bytes]

    def getvalue(self) -> pa.Buffer:
        """What was written, once it is all there."""
        self.file.flush()
        return pa.py_buffer(
            mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ) if self.tell() else b""
        )
