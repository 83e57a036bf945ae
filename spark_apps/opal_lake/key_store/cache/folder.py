"""A folder of derived files on a worker's disk, bounded in size, shared by all processes of one user.

Each entry, a file or a folder, is made beside its place and renamed into it: whole or not at all, and two that race put the same there.
What was used longest ago goes first. Whoever has an entry open keeps it: on POSIX its bytes go when it is closed.
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

from opal_lake.errors import StorageError

WAYS_OUT = "name another (spark.opal.cache.folder), or keep nothing (spark.opal.cache.bytes=0)"
DISK_SHARE = 0.9  # of the disk, as far as it is free or taken by this folder, is the most that the folder may take
MOST_ENTRIES = 10_000  # more, as many small upserts leave, take long to look through
LOOK_AGAIN_S = 30.0
LOOK_AGAIN_SHARE = (
    64  # or when this process has put a 64th of what there may be, in bytes or entries
)
SPARE = 16  # a 16th of the bound, and a 10th of the entries, is evicted in advance
_PART = ".part-"
_ABANDONED_S = 3600.0


@dataclass(slots=True, kw_only=True)
class _Looked:
    """What a folder held when this process last looked through it, with what the process put there since."""

    at: float
    used_bytes: int
    entries: int
    puts: int = 0
    put_bytes: int = 0


_looked: dict[Path, _Looked] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFolder:
    """`max_bytes` bounds what stays; an entry that alone is larger is not kept at all. 0 keeps nothing and touches nothing.

    To look through many entries takes time: a process remembers what it saw, so that each may pass the bound by what others put meanwhile.

    The folder is the cache's own: everything in it may be evicted.
    """

    path: Path
    max_bytes: int

    def find(self, name: str) -> Path | None:
        """The entry, marked as used."""
        if not self.max_bytes or not self._is_there():
            return None
        entry = self.path / name
        try:
            os.utime(entry)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return entry

    def put(self, name: str, size: int, write: Callable[[Path], None]) -> Path | None:
        """Make an entry of about `size` bytes; None when there is no room for it, here or on the disk."""
        if size > self.max_bytes:
            return None
        self._make()
        try:
            with tempfile.TemporaryDirectory(
                dir=self.path, prefix=_PART, ignore_cleanup_errors=True
            ) as part:
                if not self._make_room(size):
                    return None
                write(Path(part) / "entry")
                is_new = not os.path.lexists(self.path / name)
                os.rename(Path(part) / "entry", self.path / name)
        except OSError:  # a full disk; or a folder of that name is there, put by another
            return self.find(name)
        if is_new:
            self._count(size)
        return self.path / name

    def drop(self, name: str) -> None:
        """Removed atomically: no process sees it half empty, and another may be put there."""
        gone = self.path / f"{_PART}{os.getpid()}-{name}"
        with suppress(OSError):  # another was faster
            os.rename(self.path / name, gone)
            _remove(gone)

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the cache folder {self.path} cannot be made: {error}; {WAYS_OUT}"
            ) from error
        self._is_there()

    def _is_there(self) -> bool:
        """The folder must belong to this user, be writable by no other, and be no symbolic link."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return False
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid != os.getuid()
            or status.st_mode & 0o022
        ):
            raise StorageError(
                f"the cache folder {self.path} is no folder, belongs to another user, or others may write to it; remove it, or {WAYS_OUT}"
            )
        return True

    def _make_room(self, size: int) -> bool:
        """Within the limit, and within the disk space that is free or used by this cache."""
        known = _looked.get(self.path)
        if known is None or self._is_old(known):
            known = self._look(self._entries())
        if known.used_bytes + size > self._room(known) or known.entries >= MOST_ENTRIES:
            known = self._evict(size)
        return known.used_bytes + size <= self._room(known)

    def _is_old(self, known: _Looked) -> bool:
        many = (
            known.puts > MOST_ENTRIES // LOOK_AGAIN_SHARE
            or known.put_bytes > self.max_bytes // LOOK_AGAIN_SHARE
        )
        return many or time.monotonic() - known.at > LOOK_AGAIN_S

    def _count(self, size: int) -> None:
        if known := _looked.get(self.path):
            known.used_bytes, known.entries = known.used_bytes + size, known.entries + 1
            known.puts, known.put_bytes = known.puts + 1, known.put_bytes + size

    def _room(self, known: _Looked) -> int:
        return min(
            self.max_bytes, int(DISK_SHARE * (shutil.disk_usage(self.path).free + known.used_bytes))
        )

    def _look(self, entries: list[tuple[float, int, str]]) -> _Looked:
        looked = _looked[self.path] = _Looked(
            at=time.monotonic(),
            used_bytes=sum(used_bytes for _, used_bytes, _ in entries),
            entries=len(entries),
        )
        return looked

    def _evict(self, size: int) -> _Looked:
        """What was used longest ago: until there is room, and as far as that goes with small ones, some more for the next puts."""
        entries = sorted(self._entries())
        known = self._look(entries)
        room = self._room(known)
        if size > room or (known.used_bytes + size <= room and known.entries < MOST_ENTRIES):
            return known
        most = (
            MOST_ENTRIES - 1 if known.entries < MOST_ENTRIES else MOST_ENTRIES - MOST_ENTRIES // 10
        )
        for _, entry_bytes, name in entries:
            free = room - known.used_bytes - size
            if known.entries <= most and (
                free >= room // SPARE or (free >= 0 and entry_bytes > room // SPARE)
            ):
                break
            self.drop(name)
            known.used_bytes, known.entries = known.used_bytes - entry_bytes, known.entries - 1
        return known

    def _entries(self) -> list[tuple[float, int, str]]:
        """The last use, size and name of each. Incomplete files of other processes are removed after an hour."""
        entries = []
        now = self.path.stat().st_mtime  # as this file system's clock has it: a part was just begun
        with os.scandir(self.path) as items:
            for item in items:
                with suppress(FileNotFoundError):
                    used = item.stat(follow_symlinks=False).st_mtime
                    if not item.name.startswith(_PART):
                        entries.append((used, _size(item), item.name))
                    elif now - used > _ABANDONED_S:
                        _remove(Path(item.path))
        return entries


def _size(item: os.DirEntry[str]) -> int:
    if not item.is_dir(follow_symlinks=False):
        return item.stat(follow_symlinks=False).st_size
    with os.scandir(item.path) as inner:
        return sum(part.stat(follow_symlinks=False).st_size for part in inner)


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)
