"""Publish a complete file under a name atomically, and only if that name is free.

With hard links that is one call: link() fails if the name exists. Without them there is only rename(), which overwrites, so checking that
the name is free and renaming must be exclusive. Writers of one name therefore take turns:

- A turn is a folder, `turn-<name>`. Its holder keeps the file to publish in it, under a name that is unique to the attempt. A writer
  acquires the turn by renaming a folder with that file to the turn's name, which fails while a file is in the turn: there is never an
  empty lock, and of two concurrent writers one fails.
- The holder checks that the target is free, and renames its file to it. That also releases the turn, as the folder is then empty.
- A writer that finds a turn held for too long, or by a dead process, deletes the holder's file. A holder that was only paused resumes,
  finds its file gone, and cannot rename it: it has created nothing, can overwrite nothing, and tries again. A late deletion deletes only
  that one file, never that of the next holder.

So a turn can be taken over from any holder, alive or dead, on this machine or another, without trusting clocks or system locks: many file
systems without hard links do not share flock() between machines, some reject renameat2(RENAME_NOREPLACE), and a lock that expires by age
alone lets a stalled writer overwrite. The file system must only make rename() and unlink() atomic. All writers of a table must agree
whether there are hard links: link() does not wait for its turn.
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
_NOT_DONE = (
    frozenset(  # link() and rename() with these have done nothing, on a network's file system too
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
)
_IS_HELD = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_TURN = "turn-"
_HELD_TOO_LONG_S = (
    5.0  # a turn takes two calls of the file system: who is this late is paused, or gone
)
_PATIENCE_S = 120.0
_PAUSE_S = 0.005
_TRIES = 20


class _TurnLostError(Exception):
    """Another writer assumed that this one was dead, and deleted its file."""


class BeforeNameError(Exception):
    """The file system failed, for the `cause`, before the file had its name: it has not been written."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _before_name() -> Iterator[None]:
    """Around what gives no file its name."""
    try:
        yield
    except OSError as error:
        raise BeforeNameError(error) from error


@contextmanager
def _naming() -> Iterator[None]:
    """Around the call that gives a file its name: whether it did, only some errors tell."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_DONE:
            raise BeforeNameError(error) from error
        raise


def publish(root: Path, target: Path, data: bytes | memoryview, hard_links: bool) -> bool:
    """Write a hidden temporary file, then give it its name. False when the name is taken.

    BeforeNameError says that it has no name; after any other OSError it may have.
    """
    with _before_name():
        _make_hidden(root)
        make_folders(target.parent)
    for _ in range(_TRIES):
        with suppress(_TurnLostError):
            return _try_publish(root, target, data, hard_links)
    raise StorageError(
        f"others took this writer for dead {_TRIES} times before it wrote '{target}': the file system is slow; try again"
    )


def stamped_us(root: Path) -> int | None:
    """The time that the file system gives to a new, hidden file; None if none can be created.

    On a network's file system that is the server's time.
    """
    hidden = root / HIDDEN
    places = (root, *root.parents) if hidden.is_symlink() else (hidden, root, *root.parents)
    folder = next(folder_or_parent for folder_or_parent in places if folder_or_parent.is_dir())
    try:
        descriptor = os.open(
            folder, os.O_TMPFILE | os.O_WRONLY, 0o600
        )  # without a name, so that nothing can be left behind
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
    """A link in its place would lead what is written out of the table."""
    hidden = root / HIDDEN
    try:
        mode = hidden.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        make_folders(hidden)
        mode = hidden.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise _no_folder(hidden)


def _no_folder(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"'{path}' is no folder, but a link or a file: nothing is written there; delete it, then try again"
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
                f"'{folder}' is a file, so no object can lie below it: choose another path"
            ) from None
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make new names in the folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
            errno.EBADF,
        ):  # some file systems cannot, and say so
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
        with suppress(
            OSError
        ):  # a left-over is invisible; the outcome of the put must not hang on it
            temporary.unlink()
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
    """None where there are no hard links."""
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
    turn = (
        root
        / HIDDEN
        / f"{_TURN}{uuid.uuid5(uuid.NAMESPACE_URL, str(target.relative_to(root))).hex}"
    )
    own = temporary.with_name(f"{temporary.name}.next")  # the folder that becomes the turn
    with _before_name():
        own.mkdir()
    held = turn / temporary.name
    try:
        os.rename(temporary, own / temporary.name)
        if not _come_in(own, turn, target):
            return _path_is_taken(target)
        if os.path.lexists(target):
            return _path_is_taken(target)
        with _naming():
            os.rename(held, target)
        return True
    except FileNotFoundError:
        if os.path.lexists(held) or os.path.lexists(own / temporary.name):
            raise  # it was something else that is missing
        raise _TurnLostError from None
    finally:
        for left in (own / temporary.name, held):
            with suppress(OSError):
                left.unlink()
        for folder in (own, turn):
            with suppress(OSError):  # where the next one is in it already, it stays
                folder.rmdir()


def _come_in(own: Path, turn: Path, target: Path) -> bool:
    """True when the turn is mine, False when the target has appeared meanwhile."""
    begin = since = time.monotonic()
    seen = ""
    while not os.path.lexists(target):
        try:
            os.rename(own, turn)
            return True
        except OSError as error:
            if turn.is_symlink():  # nothing behind it is a holder's file
                raise _no_folder(turn) from None
            if error.errno not in _IS_HELD and not turn.is_dir():
                raise
        holder, now = _holder(turn), time.monotonic()
        if holder != seen:
            seen, since = holder, now
        if now - begin > _PATIENCE_S:
            raise StorageError(_still_held(turn, holder, target))
        _take_over(turn, holder, is_late=now - since > _HELD_TOO_LONG_S)
    return False


def _take_over(turn: Path, holder: str, *, is_late: bool) -> None:
    """Or wait, while the holder may be at work."""
    if not holder:
        with suppress(OSError):  # not every file system puts a folder in the place of an empty one
            turn.rmdir()
    elif is_late or is_gone(holder):
        with suppress(FileNotFoundError):
            (turn / holder).unlink()
    else:
        time.sleep(_PAUSE_S)


def _holder(turn: Path) -> str:
    """Empty if no writer has it."""
    try:
        return min(os.listdir(turn), default="")
    except FileNotFoundError:
        return ""


def _still_held(turn: Path, holder: str, target: Path) -> str:
    owner = f"{owner_text(holder)}, since {age_text(turn / holder)}"
    return f"others keep writing '{target}', the last one {owner}: run fewer writers at once, then try again; see '{turn}'"
