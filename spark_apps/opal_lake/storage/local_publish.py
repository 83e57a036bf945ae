"""How a whole file appears at its name at once, and only if that name is free."""

import errno
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from opal_lake.errors import InvalidInputError, StorageError

HIDDEN = ".opal-tmp"
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})
_LOCK_TRIES = 400
_LOCK_PAUSE_S = 0.005


def publish(root: Path, target: Path, data: bytes | memoryview, hard_links: bool) -> bool:
    """Write a hidden temporary file, then give it its name. False when the name is taken."""
    make_folders(root / HIDDEN)
    make_folders(target.parent)
    temporary = root / HIDDEN / uuid.uuid4().hex
    try:
        _write_durably(temporary, data)
        created = _name(root, temporary, target, hard_links)
    finally:
        with suppress(OSError):  # a left-over is invisible; the outcome of the put must not hang on it
            temporary.unlink()
    if created:
        sync_folder(target.parent)
    return created


def make_folders(folder: Path) -> None:
    """Create the folder and its missing parents, each of them durable."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise InvalidInputError(f"'{folder}' is a file, so no object can lie below it: choose another path") from None
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make new names in the folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some file systems cannot, and say so
            raise
    finally:
        os.close(descriptor)


def _write_durably(path: Path, data: bytes | memoryview) -> None:
    with open(path, "xb", buffering=0) as file:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[file.write(rest) :]  # one write takes at most 2 GiB
        os.fsync(file.fileno())


def _name(root: Path, temporary: Path, target: Path, hard_links: bool) -> bool:
    if hard_links:
        try:
            os.link(temporary, target)
            return True
        except FileExistsError:
            return _taken(target)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
    return _rename_under_lock(root, temporary, target)


def _taken(target: Path) -> bool:
    if target.is_dir():
        raise InvalidInputError(f"'{target}' is a folder, so no object can have that path: choose another path")
    return False


def _rename_under_lock(root: Path, temporary: Path, target: Path) -> bool:
    # rename() overwrites, so looking and renaming need an exclusive lock. Opening the target itself with "xb" would show readers a part
    lock = root / HIDDEN / f"lock-{uuid.uuid5(uuid.NAMESPACE_URL, str(target.relative_to(root))).hex}"
    if not _locked(lock, target):
        return _taken(target)
    try:
        if os.path.lexists(target):
            return _taken(target)
        os.rename(temporary, target)
        return True
    finally:
        lock.unlink()


def _locked(lock: Path, target: Path) -> bool:
    """True when the lock is mine, False when the target has appeared meanwhile."""
    for _ in range(_LOCK_TRIES):
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return True
        except FileExistsError:
            if os.path.lexists(target):
                return False
            time.sleep(_LOCK_PAUSE_S)
    raise StorageError(f"another writer holds '{lock}' and has not written '{target}': try again; if that writer is dead, remove the lock")
