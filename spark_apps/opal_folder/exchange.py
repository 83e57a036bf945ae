"""Two folders of one file system trade places: in one step where the system has such a call."""

import ctypes
import errno
import os
import sys
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE, _RENAME_SWAP = -100, 2, 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


def exchange(one: Path, other: Path) -> bool:
    """False where the system or the file system cannot; nothing has changed then."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    if sys.platform.startswith("linux") and hasattr(library, "renameat2"):
        failed = library.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE)
    elif sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(first, second, _RENAME_SWAP)
    else:
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def sync_folder(folder: Path) -> None:
    """Names in it outlast a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(file: Path | str) -> None:
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())


def sync_tree(folder: Path) -> None:
    """All files below a folder, and their names."""
    for current, _, names in os.walk(folder):
        for name in names:
            sync_file(os.path.join(current, name))
        sync_folder(Path(current))
