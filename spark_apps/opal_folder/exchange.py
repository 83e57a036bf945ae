"""The swap of two folders of a file system, in one step if the system has such a call."""

import ctypes
import errno
import os
import sys
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE, _RENAME_SWAP = -100, 2, 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


def exchange(first: Path, second: Path) -> bool:
    """Swap two folders; return False if the system or the file system cannot.

    Nothing has changed then.
    """
    library = ctypes.CDLL(None, use_errno=True)
    first_name, second_name = os.fsencode(first), os.fsencode(second)
    if sys.platform.startswith("linux") and hasattr(library, "renameat2"):
        failed = library.renameat2(_AT_FDCWD, first_name, _AT_FDCWD, second_name, _RENAME_EXCHANGE)
    elif sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(first_name, second_name, _RENAME_SWAP)
    else:
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, so that they outlast a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(file: Path | str) -> None:
    """Write the content of a file to the disk."""
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())


def sync_tree(folder: Path) -> None:
    """Write all files below a folder, and their names, to the disk."""
    for current, _, names in os.walk(folder):
        for name in names:
            sync_file(os.path.join(current, name))
        sync_folder(Path(current))
