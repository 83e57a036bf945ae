"""Bytes that are made in passing and may be too many for memory: in a file without a name, which goes with the process at the latest.

It is where temporary files are (TMPDIR): not in memory, unless that is a file system in memory.
"""

import errno
import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pyarrow as pa

from opal_lake.errors import StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def room_errors() -> Iterator[None]:
    """Says which disk it is that is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        folder = tempfile.gettempdir()
        raise StorageError(
            f"no room in {folder} for a file in the making ({error}); make room, or name another folder by TMPDIR"
        ) from error


def spool() -> "Spool":
    """A sink in the place of pyarrow's BufferOutputStream."""
    file = tempfile.TemporaryFile(prefix="opal-")  # noqa: SIM115  # goes with the sink
    sink = Spool(file, mode="w")
    sink.file = file
    return sink


class Spool(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """The value is mapped from the file: the system may take its pages back at any time."""

    file: IO[bytes]

    def getvalue(self) -> pa.Buffer:
        """What was written, once it is all there."""
        self.file.flush()
        return pa.py_buffer(mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ) if self.tell() else b"")
