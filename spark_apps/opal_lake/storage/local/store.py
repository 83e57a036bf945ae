"""A store in a folder. Objects are files; those in the hidden folder are not objects."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from operator import itemgetter
from pathlib import Path

from opal_lake.errors import (
    InvalidInputError,
    NoSpaceError,
    NotFoundError,
    NotWrittenError,
    ReadOnlyError,
    StorageError,
)
from opal_lake.storage.left_overs import LeftOver
from opal_lake.storage.local.left_overs import local_left_overs, remove_local_left_overs
from opal_lake.storage.local.publish import HIDDEN, BeforeNameError, publish, stamped_us
from opal_lake.storage.paths import byte_range, check_length, check_path, check_prefix, is_path
from opal_lake.storage.protocol import StoredObject
from opal_lake.storage.uris import local_root, split_scheme

_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_IS_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStorage:
    """The files below `root`.

    `hard_links=False` is for file systems that claim hard links and get them wrong.
    """

    uri: str
    root: Path
    hard_links: bool = True

    @classmethod
    def open(cls, uri: str, options: Mapping[str, str] | None = None) -> "LocalStorage":
        scheme, _ = split_scheme(uri)
        root = local_root(uri)
        # A symlink in the root is the user's own choice; one below it is refused.
        return cls(
            uri=f"file://{root}" if scheme else root,
            root=Path(os.path.realpath(root)),
            hard_links=_hard_links(options or {}),
        )

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        check_length(length)
        file_path = self._file(path)
        try:
            with _store_errors(path), open(file_path, "rb", opener=_open_without_waiting) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise _not_plain(path, self.uri)
                begin, end = byte_range(status.st_size, start, length)
                file.seek(begin)
                return file.read(end - begin)
        except _ABSENT as error:
            raise NotFoundError(
                f"'{path}' is not in {self.uri}: it was never written, or deleted since"
            ) from error

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        target = self._file(path)
        try:
            return publish(self.root, target, data, self.hard_links)
        except BeforeNameError as error:
            raise _not_written(path, self.uri, error.cause) from error.cause
        except OSError as error:
            raise _failed(path, error) from error

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        folder = check_prefix(prefix)
        if HIDDEN in folder.split("/"):
            return iter(())
        self._refuse_symlinks(folder.rstrip("/"))
        return self._walk(folder, prefix, start_after)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            file_path = self._file(path)
            try:
                file_path.unlink()
            except _ABSENT:
                continue
            except OSError as error:
                raise _not_deleted(path, self.uri, error) from error

    def left_overs(self) -> Iterator[LeftOver]:
        with _store_errors(HIDDEN):
            yield from local_left_overs(self.root)

    def remove_left_overs(self, paths: Iterable[str]) -> None:
        with _store_errors(HIDDEN):
            remove_local_left_overs(self.root, paths)

    def remove_empty_folders(self) -> None:
        for folder, _, _ in os.walk(self.root, topdown=False):
            # Another program may use the folder, or have put a file into it a moment ago
            with suppress(OSError):
                os.rmdir(folder)

    def parent(self) -> "LocalStorage | None":
        above = self.root.parent
        if above == self.root:
            return None
        return replace(self, uri=str(above), root=above)

    def now_us(self) -> int | None:
        return stamped_us(self.root)

    def _file(self, path: str) -> Path:
        check_path(path)
        if HIDDEN in path.split("/"):
            raise InvalidInputError(
                f"path '{path}' is in the store's own hidden folder: choose another path"
            )
        self._refuse_symlinks(path)
        return self.root / path

    def _refuse_symlinks(self, path: str) -> None:
        """Raise InvalidInputError if a part of a path below the root is a symbolic link."""
        # Not those of the root: every read of a file waits for this check.
        folders = accumulate(path.split("/"), "{}/{}".format, initial=str(self.root))
        if any(map(os.path.islink, islice(folders, 1, None))):
            raise InvalidInputError(
                f"path '{path}' leads through a symbolic link in {self.uri}: "
                "replace the link by what it points to"
            )

    def check_plain_files(self, paths: Sequence[str]) -> None:
        """Raise InvalidInputError unless all existing paths are plain files.

        It is for readers that would follow a link, or read the files of a folder.
        """
        for folder in {path.rpartition("/")[0] for path in map(check_path, paths)}:
            self._refuse_symlinks(folder)
        for path in paths:
            try:
                with _store_errors(path):
                    mode = os.lstat(os.path.join(self.root, path)).st_mode
            except _ABSENT:
                continue  # the reader raises the error
            if not stat.S_ISREG(mode):
                raise _not_plain(path, self.uri)

    def _walk(self, folder: str, prefix: str, start_after: str) -> Iterator[StoredObject]:
        for path, entry in self._entries(folder, start_after):
            if path.endswith("/"):
                if _may_hold(path, prefix, start_after):
                    yield from self._walk(path, prefix, start_after)
            elif path > start_after and path.startswith(prefix) and is_path(path):
                stored = _stored(path, entry)
                if stored is not None:
                    yield stored

    def _entries(self, folder: str, start_after: str) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
        """Yield the files, and the folders with a trailing '/', in path order.

        So a walk meets paths in code-point order: 'a-b' before 'a/b'.
        """
        try:
            with _store_errors(folder), os.scandir(self.root / folder) as entries:
                # '0' follows '/': a file or a folder whose name with it is not after `start_after`
                # has no path that is. This one comparison skips the old part of a long log.
                late = [entry for entry in entries if f"{folder}{entry.name}0" > start_after]
                own = [entry for entry in late if entry.name != HIDDEN and not entry.is_symlink()]
                named = [(_listed_name(folder, entry), entry) for entry in own]
        except _ABSENT:
            return
        yield from sorted(named, key=itemgetter(0))


def _open_without_waiting(path: str, flags: int) -> int:
    # The open of a named pipe would wait for a writer for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def _not_plain(path: str, uri: str) -> InvalidInputError:
    return InvalidInputError(
        f"'{path}' in {uri} is not a plain file, but a link, a folder or a device: "
        "put the file itself there"
    )


def _listed_name(folder: str, entry: "os.DirEntry[str]") -> str:
    path = folder + entry.name
    return f"{path}/" if entry.is_dir(follow_symlinks=False) else path


def _may_hold(folder: str, prefix: str, start_after: str) -> bool:
    in_prefix = folder.startswith(prefix) or prefix.startswith(folder)
    return in_prefix and (folder > start_after or start_after.startswith(folder))


def _stored(path: str, entry: "os.DirEntry[str]") -> StoredObject | None:
    try:
        with _store_errors(path):
            status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None  # deleted since the folder was read
    return StoredObject(path=path, size=status.st_size, modified_us=status.st_mtime_ns // 1000)


def _hard_links(options: Mapping[str, str]) -> bool:
    unknown = sorted(set(options) - {"hard_links"})
    value = options.get("hard_links", "true")
    if unknown:
        # Without their values, which may be secrets.
        names = ", ".join(unknown)
        raise InvalidInputError(
            f"a local store got the options {names}: it takes only hard_links, 'true' or 'false'"
        )
    if value not in ("true", "false"):
        raise InvalidInputError(f"hard_links={value!r}: use 'true' or 'false'")
    return value == "true"


@contextmanager
def _store_errors(path: str) -> Iterator[None]:
    """Raise errors of the file system as StorageError, except those of missing files."""
    try:
        yield
    except _ABSENT:
        raise
    except OSError as error:
        raise _failed(path, error) from error


def _not_written(path: str, uri: str, error: OSError) -> NotWrittenError:
    refusal = f"'{path}' was not written to {uri}: {error}"
    if error.errno in _IS_FULL:
        return NoSpaceError(
            f"{refusal}: free space there (`opal retain` deletes what no version needs), "
            "then try again"
        )
    if error.errno in _IS_READ_ONLY:
        return ReadOnlyError(
            f"{refusal}: give this user the right to write there, or mount it writable"
        )
    return NotWrittenError(f"{refusal}: remove the cause, then try again")


def _not_deleted(path: str, uri: str, error: OSError) -> StorageError:
    if error.errno not in _IS_READ_ONLY:
        return _failed(path, error)
    return ReadOnlyError(
        f"'{path}' was not deleted from {uri}: {error}: give this user the right to write there, "
        "or mount it writable"
    )


def _failed(path: str, error: OSError) -> StorageError:
    return StorageError(
        f"the file system failed at '{path}': {error}: remove the cause, then try again"
    )
