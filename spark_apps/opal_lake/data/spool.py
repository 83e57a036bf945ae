"""Temporary bytes that may be too many for memory, in a file without a name.

The file is gone when the process ends, however it ends. It is on the first disk that Spark gives a
task, otherwise in the folder for temporary files (TMPDIR).
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
    # Spark sets this variable for its workers.
    first_disk = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return first_disk if os.path.isdir(first_disk) else tempfile.gettempdir()


@contextmanager
def room_errors() -> Iterator[None]:
    """Raise StorageError that names the folder if its disk is full."""
    try:
        yield
    except OSError as error:
        # The ORC writer passes on the text of an error without its number.
        is_full = error.errno in _FULL or any(f"[Errno {n}]" in str(error) for n in _FULL)
        if not is_full:
            raise
        reason = str(error).splitlines()[0]
        raise StorageError(
            f"no room in {_folder()} for a temporary file ({reason}); "
            "make room, or name another folder by spark.local.dir or TMPDIR"
        ) from error


def nameless_file() -> IO[bytes]:
    """Open a temporary file without a name."""
    return tempfile.TemporaryFile(prefix="opal-", dir=_folder())


def spool() -> "Spool":
    """Open a sink that replaces pyarrow's BufferOutputStream."""
    file = nameless_file()
    sink = Spool(file, mode="w")
    sink.file = file
    return sink


class Spool(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """A sink whose value is mapped from its file: the system may reclaim its pages."""

    file: IO[bytes]

    def getvalue(self) -> pa.Buffer:
        """Return the written bytes, after the last write."""
        self.file.flush()
        if not self.tell():
            return pa.py_buffer(b"")  # mmap refuses an empty file
        return pa.py_buffer(mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ))
