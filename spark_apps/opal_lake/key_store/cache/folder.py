"""A folder of derived files on a worker's disk, bounded in size, shared by all processes of a user.

Each entry, a file or a folder, is made next to its final path and renamed to it: it appears whole
or not at all, and two processes that race make the same entry. What was used longest ago is evicted
first. A process that has an entry open keeps it: POSIX frees its bytes when it is closed.
"""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from opal_lake.errors import StorageError

WAYS_OUT = (
    "name another folder (spark.opal.cache.folder), or cache nothing (spark.opal.cache.bytes=0)"
)
# Of the disk space that is free or used by this folder, the part that the folder may use.
DISK_SHARE = 0.9
MAX_ENTRIES = 10_000  # many small upserts make as many; more take long to look through
LOOK_AGAIN_S = 30.0
# Or when this process has put a 64th of the bytes or entries that the folder may have.
LOOK_AGAIN_SHARE = 64
SPARE = 16  # a 16th of the bound, and a 10th of the entries, is evicted in advance
_PART = ".part-"
_ABANDONED_S = 3600.0


@dataclass(slots=True, kw_only=True)
class _Usage:
    """The usage of a folder when this process last looked, and its own puts since."""

    at: float
    used_bytes: int
    entries: int
    puts: int = 0
    put_bytes: int = 0

    def add(self, size: int) -> None:
        self.used_bytes += size
        self.entries += 1
        self.puts += 1
        self.put_bytes += size

    def remove(self, size: int) -> None:
        self.used_bytes -= size
        self.entries -= 1


class _Entry(NamedTuple):
    """An entry of a folder; entries sort by their last use."""

    used_at: float
    size: int
    name: str


_usage_by_folder: dict[Path, _Usage] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFolder:
    """A folder that evicts its oldest entries. Everything in it is the cache's own.

    `max_bytes` bounds its size; an entry that alone is larger is not stored. With 0 the folder is
    neither made nor read. To look through many entries takes time: each process remembers what it
    saw, and may pass the bound by what others put meanwhile.
    """

    path: Path
    max_bytes: int
    max_entries: int = MAX_ENTRIES
    look_again_s: float = LOOK_AGAIN_S
    look_again_share: int = LOOK_AGAIN_SHARE

    def find(self, name: str) -> Path | None:
        """Return the path of an entry and mark it as used; None if it is missing."""
        if not self.max_bytes or not self._exists():
            return None
        entry = self.path / name
        try:
            os.utime(entry)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return entry

    def put(self, name: str, size: int, write: Callable[[Path], None]) -> Path | None:
        """Make an entry of about `size` bytes; return None if it does not fit."""
        if size > self.max_bytes:
            return None
        self._make()
        entry = self.path / name
        try:
            # Also the making of the folder may fail, on a full disk or after a cleaner of /tmp
            with tempfile.TemporaryDirectory(
                dir=self.path, prefix=_PART, ignore_cleanup_errors=True
            ) as part:
                if not self._make_room(size):
                    return None
                incomplete = Path(part) / "entry"
                write(incomplete)
                is_new = not os.path.lexists(entry)
                os.rename(incomplete, entry)
        except OSError:  # the disk is full, or another process has put a folder of that name
            return self.find(name)
        if is_new and (usage := _usage_by_folder.get(self.path)):
            usage.add(size)
        return entry

    def drop(self, name: str) -> None:
        """Remove an entry atomically: no process sees it half empty."""
        removed = self.path / f"{_PART}{os.getpid()}-{name}"
        with suppress(OSError):  # another process was faster
            os.rename(self.path / name, removed)
            _remove(removed)

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot make the cache folder {self.path}: {error}; {WAYS_OUT}"
            ) from error
        self._exists()

    def _exists(self) -> bool:
        """Return whether the folder exists; raise StorageError if others may use it.

        Whoever else may write there could put runs that this user would trust.
        """
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return False
        is_folder = stat.S_ISDIR(status.st_mode)  # False for a symbolic link
        is_own = status.st_uid == os.getuid()
        others_may_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not is_folder or not is_own or others_may_write:
            raise StorageError(
                f"the cache folder {self.path} is not a folder, belongs to another user, "
                f"or others may write to it; remove it, or {WAYS_OUT}"
            )
        return True

    def _make_room(self, size: int) -> bool:
        """Evict entries if needed; return whether `size` bytes fit the bound and the disk."""
        usage = _usage_by_folder.get(self.path)
        if usage is None or self._is_stale(usage):
            usage = self._record_usage(self._entries())
        is_over_bytes = usage.used_bytes + size > self._max_bytes_now(usage)
        if is_over_bytes or usage.entries >= self.max_entries:
            usage = self._evict(size)
        return usage.used_bytes + size <= self._max_bytes_now(usage)

    def _is_stale(self, usage: _Usage) -> bool:
        has_put_many = usage.puts > self.max_entries // self.look_again_share
        has_put_much = usage.put_bytes > self.max_bytes // self.look_again_share
        is_old = time.monotonic() - usage.at > self.look_again_s
        return has_put_many or has_put_much or is_old

    def _max_bytes_now(self, usage: _Usage) -> int:
        """Return the bound, or less on a disk that is nearly full."""
        available = shutil.disk_usage(self.path).free + usage.used_bytes
        return min(self.max_bytes, int(DISK_SHARE * available))

    def _record_usage(self, entries: list[_Entry]) -> _Usage:
        usage = _Usage(
            at=time.monotonic(),
            used_bytes=sum(entry.size for entry in entries),
            entries=len(entries),
        )
        _usage_by_folder[self.path] = usage
        return usage

    def _evict(self, size: int) -> _Usage:
        """Remove the entries used longest ago until `size` bytes fit.

        Small entries are removed beyond that, as spare room for the next puts; large ones are not.
        """
        entries = sorted(self._entries())
        usage = self._record_usage(entries)
        max_bytes = self._max_bytes_now(usage)
        fits = usage.used_bytes + size <= max_bytes and usage.entries < self.max_entries
        if size > max_bytes or fits:
            return usage
        allowed_entries = self.max_entries - 1
        if usage.entries >= self.max_entries:
            allowed_entries = self.max_entries - self.max_entries // 10
        spare_bytes = max_bytes // SPARE
        for entry in entries:
            free_bytes = max_bytes - usage.used_bytes - size
            is_large = entry.size > spare_bytes
            has_room = free_bytes >= spare_bytes or (free_bytes >= 0 and is_large)
            if has_room and usage.entries <= allowed_entries:
                break
            self.drop(entry.name)
            usage.remove(entry.size)
        return usage

    def _entries(self) -> list[_Entry]:
        """List the entries. Incomplete ones of other processes are removed after an hour."""
        entries: list[_Entry] = []
        # The time by this file system's clock: a part was made in the folder a moment ago.
        now = self.path.stat().st_mtime
        with os.scandir(self.path) as items:
            for item in items:
                with suppress(FileNotFoundError):
                    used_at = item.stat(follow_symlinks=False).st_mtime
                    if not item.name.startswith(_PART):
                        entries.append(_Entry(used_at, _size(item), item.name))
                    elif now - used_at > _ABANDONED_S:
                        _remove(Path(item.path))
        return entries


def _size(item: os.DirEntry[str]) -> int:
    if not item.is_dir(follow_symlinks=False):
        return item.stat(follow_symlinks=False).st_size
    with os.scandir(item.path) as files:
        return sum(file.stat(follow_symlinks=False).st_size for file in files)


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)
