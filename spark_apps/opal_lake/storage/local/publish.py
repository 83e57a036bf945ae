"""Publish a complete file under a name atomically, and only if that name is free.

With hard links that is one call: link() fails if the name exists. Without them there is only
rename(), which overwrites, so checking that the name is free and renaming must be exclusive.
Writers of one name therefore take turns:

- A turn is a folder, `turn-<name>`. Its holder keeps the file to publish in it, under a name that
  is unique to the attempt. A writer acquires the turn by renaming a folder with that file to the
  turn's name, which fails while a file is in the turn: there is never an empty lock, and of two
  concurrent writers one fails.
- The holder checks that the target is free, and renames its file to it. That also releases the
  turn, as the folder is then empty.
- A writer that finds a turn held for too long, or by a dead process, deletes the holder's file. A
  holder that was only paused resumes, finds its file gone, and cannot rename it: it has created
  nothing, can overwrite nothing, and tries again. A late deletion deletes only that one file,
  never that of the next holder.

So a turn can be taken over from any holder, alive or dead, on this machine or another, without
trusting clocks or system locks: many file systems without hard links do not share flock() between
machines, some reject renameat2(RENAME_NOREPLACE), and a lock that expires by age alone lets a
stalled writer overwrite. The file system must only make rename() and unlink() atomic. All writers
of a table must agree whether there are hard links: link() does not wait for its turn.
"""

import errno
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from opal_lake.errors import InvalidInputError, StorageError
from opal_lake.storage.local.writer_name import age_text, is_gone, owner_text, writer_name

HIDDEN = ".opal-tmp"
_NO_HARD_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
)
# After these errors link() and rename() have done nothing, on a network's file system too.
_NOT_DONE = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EFBIG,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
    }
)
# fsync() of a folder fails with these on file systems that have none.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})
_IS_HELD = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_TURN = "turn-"
# A turn takes two calls of the file system: a writer that is so late is paused, or gone.
_HELD_TOO_LONG_S = 5.0
_PATIENCE_S = 120.0
_PAUSE_S = 0.005
_TRIES = 20


class _TurnLostError(Exception):
    """Another writer assumed that this one was dead, and deleted its file."""


class BeforeNameError(Exception):
    """A failure of the file system, the `cause`, before the file had its name."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _before_name() -> Iterator[None]:
    """Raise the errors of calls that do not name the file as BeforeNameError."""
    try:
        yield
    except OSError as error:
        raise BeforeNameError(error) from error


@contextmanager
def _naming() -> Iterator[None]:
    """Raise an error of the naming call as BeforeNameError if the file has no name."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_DONE:
            raise BeforeNameError(error) from error
        raise


def publish(root: Path, target: Path, data: bytes | memoryview, hard_links: bool) -> bool:
    """Write a hidden temporary file, then name it; return False if the name exists.

    After BeforeNameError the file has no name; after any other OSError it may have one.
    """
    with _before_name():
        _make_hidden(root)
        make_folders(target.parent)
    for _ in range(_TRIES):
        with suppress(_TurnLostError):
            return _try_publish(root, target, data, hard_links)
    raise StorageError(
        f"other writers took this one for dead {_TRIES} times before it wrote '{target}', "
        "because the file system is slow: try again"
    )


def stamped_us(root: Path) -> int | None:
    """Return the time that the file system gives to a new file; None if unknown.

    On a network's file system that is the server's time.
    """
    hidden = root / HIDDEN
    candidates = [root, *root.parents]
    if not hidden.is_symlink():
        candidates.insert(0, hidden)
    folder = next(candidate for candidate in candidates if candidate.is_dir())
    try:
        # A file without a name, so that nothing can be left behind.
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except (OSError, AttributeError):
        return _stamped_by_name(root)
    try:
        return os.fstat(descriptor).st_mtime_ns // 1000
    finally:
        os.close(descriptor)


def _stamped_by_name(root: Path) -> int | None:
    path = root / HIDDEN / writer_name()
    try:
        _make_hidden(root)
        with open(path, "xb", buffering=0) as file:
            return os.fstat(file.fileno()).st_mtime_ns // 1000
    except (OSError, InvalidInputError):
        return None
    finally:
        with suppress(OSError):
            path.unlink()


def _make_hidden(root: Path) -> None:
    """Make the hidden folder; a link in its place would lead writes out of the table."""
    hidden = root / HIDDEN
    try:
        mode = hidden.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        make_folders(hidden)
        mode = hidden.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise _not_a_folder(hidden)


def _not_a_folder(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"'{path}' is not a folder, but a link or a file: nothing is written there; "
        "delete it, then try again"
    )


def make_folders(folder: Path) -> None:
    """Create the folder and its missing parents, each of them durable."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise InvalidInputError(
                f"'{folder}' is a file, so no object can be below it: choose another path"
            ) from None
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make new names in the folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _try_publish(root: Path, target: Path, data: bytes | memoryview, hard_links: bool) -> bool:
    temporary = root / HIDDEN / writer_name()
    try:
        with _before_name():
            _write_durably(temporary, data)
        created = _link(temporary, target) if hard_links else None
        if created is None:
            created = _rename_in_turn(root, temporary, target)
    finally:
        # A left-over is invisible: it must not change the outcome of the put.
        with suppress(OSError):
            temporary.unlink()
    # The file's bytes are durable before its name is.
    if created:
        sync_folder(target.parent)
    return created


def _write_durably(path: Path, data: bytes | memoryview) -> None:
    with open(path, "xb", buffering=0) as file:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[file.write(rest) :]  # one write takes at most 2 GiB
        os.fsync(file.fileno())


def _link(temporary: Path, target: Path) -> bool | None:
    """Name the file by a hard link; return None if the file system has none."""
    try:
        with _naming():
            os.link(temporary, target)
        return True
    except FileExistsError:
        return _path_is_taken(target)
    except FileNotFoundError:
        if os.path.lexists(temporary):
            raise
        raise _TurnLostError from None
    except BeforeNameError as error:
        if error.cause.errno not in _NO_HARD_LINKS:
            raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
    return None


def _path_is_taken(target: Path) -> bool:
    if target.is_dir():
        raise InvalidInputError(
            f"'{target}' is a folder, so no object can have that path: choose another path"
        )
    return False


def _rename_in_turn(root: Path, temporary: Path, target: Path) -> bool:
    target_id = uuid.uuid5(uuid.NAMESPACE_URL, str(target.relative_to(root)))
    turn = root / HIDDEN / f"{_TURN}{target_id.hex}"
    own = temporary.with_name(f"{temporary.name}.next")  # the folder that becomes the turn
    with _before_name():
        own.mkdir()
    file_in_own = own / temporary.name
    file_in_turn = turn / temporary.name
    try:
        os.rename(temporary, file_in_own)
        if not _acquire(own, turn, target):
            return _path_is_taken(target)
        # Checked again in the turn: now no other writer can create the target.
        if os.path.lexists(target):
            return _path_is_taken(target)
        with _naming():
            os.rename(file_in_turn, target)
        return True
    except FileNotFoundError:
        if os.path.lexists(file_in_turn) or os.path.lexists(file_in_own):
            raise  # something else is missing
        raise _TurnLostError from None
    finally:
        for left_over in (file_in_own, file_in_turn):
            with suppress(OSError):
                left_over.unlink()
        for folder in (own, turn):
            with suppress(OSError):  # it stays if the next holder's file is in it already
                folder.rmdir()


def _acquire(own: Path, turn: Path, target: Path) -> bool:
    """Wait for the turn; return False if the target appears meanwhile."""
    begin = since = time.monotonic()
    last_holder = ""
    while not os.path.lexists(target):
        try:
            os.rename(own, turn)
            return True
        except OSError as error:
            if turn.is_symlink():  # its target is not a writer's folder
                raise _not_a_folder(turn) from None
            if error.errno not in _IS_HELD and not turn.is_dir():
                raise
        holder, now = _holder(turn), time.monotonic()
        if holder != last_holder:
            last_holder, since = holder, now
        if now - begin > _PATIENCE_S:
            raise StorageError(_still_held(turn, holder, target))
        _take_over(turn, holder, is_late=now - since > _HELD_TOO_LONG_S)
    return False


def _take_over(turn: Path, holder: str, *, is_late: bool) -> None:
    """Free the turn of a late or dead holder, or wait a little for another one."""
    if not holder:
        # Not every file system renames a folder to the name of an empty one.
        with suppress(OSError):
            turn.rmdir()
    elif is_late or is_gone(holder):
        with suppress(FileNotFoundError):
            (turn / holder).unlink()
    else:
        time.sleep(_PAUSE_S)


def _holder(turn: Path) -> str:
    """Return the name of the file in a turn; '' if nobody holds it."""
    try:
        return min(os.listdir(turn), default="")
    except FileNotFoundError:
        return ""


def _still_held(turn: Path, holder: str, target: Path) -> str:
    owner = f"{owner_text(holder)}, since {age_text(turn / holder)}"
    return (
        f"other writers keep writing '{target}', the last one is {owner}: "
        f"run fewer writers at the same time, then try again; see '{turn}'"
    )
