"""Temporary files in the hidden folder of a store, and their ages by the file system's own time."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from opal_lake.storage.left_overs import LeftOver
from opal_lake.storage.local.publish import HIDDEN, stamped_us
from opal_lake.storage.local.writer_name import is_at_work


def local_left_overs(root: Path) -> Iterator[LeftOver]:
    """Yield the temporary files and empty folders in a root's hidden folder.

    Yield nothing if the folder is not writable, because then the file system's time is unknown.
    """
    hidden = root / HIDDEN
    if hidden.is_symlink() or not hidden.is_dir():
        return
    now_us = stamped_us(root)
    if now_us is None:
        return
    for path in sorted(_files(hidden)):
        with suppress(FileNotFoundError):  # its writer has finished meanwhile
            status = path.lstat()
            yield LeftOver(
                path=path.relative_to(root).as_posix(),
                size=0 if path.is_dir() else status.st_size,
                age_us=max(0, now_us - status.st_mtime_ns // 1000),
                is_at_work=is_at_work(path.name),
            )


def remove_local_left_overs(root: Path, paths: Iterable[str]) -> None:
    """Remove temporary files, and folders that are empty.

    Names are unique to an attempt, so that no file of another attempt is removed.
    """
    hidden = root / HIDDEN
    for given in paths:
        path = root / given
        if hidden.is_symlink() or hidden not in path.parents or path.parent.is_symlink():
            continue
        # Systems differ in their errors for a folder.
        with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
            path.unlink()
        for folder in (path, path.parent):
            if folder != hidden and not folder.is_symlink():
                with suppress(OSError):  # it is not empty, or not a folder
                    folder.rmdir()


def _files(hidden: Path) -> Iterator[Path]:
    """Yield files and empty folders, to the depth that writers make."""
    for path in hidden.iterdir():
        inner: list[Path] = []
        if path.is_dir() and not path.is_symlink():
            with suppress(FileNotFoundError):
                inner = [*path.iterdir()]
        yield from inner or [path]
