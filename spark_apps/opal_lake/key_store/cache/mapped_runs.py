"""Runs mapped into memory: in place where the store is a local folder, else from copies below a cache folder."""

import mmap
import os
import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from opal_lake.errors import FormatError, StorageError
from opal_lake.key_store.run import OpenRun, open_run
from opal_lake.segment import RunFile
from opal_lake.storage.local import LocalStorage
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified

OPEN_RUNS = 512
STORES = 16


@dataclass(slots=True, kw_only=True)
class MappedRuns:
    """`folder` takes the copies of runs that are not local; the name of a copy holds the checksum of its content."""

    storage: Storage
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()) / f"opal-runs-{os.getuid()}")
    opened: OrderedDict[RunFile, OpenRun] = field(default_factory=OrderedDict)

    def open(self, run: RunFile) -> OpenRun:
        found = self.opened.pop(run, None) or open_run(_mapped(self._local_file(run), run), f"{self.storage.uri}/{run.path}")
        if found.count != run.entries:
            raise FormatError(f"{found.path} holds {found.count} entries, the table says {run.entries}; restore the file from a backup")
        self.opened[run] = found
        while len(self.opened) > OPEN_RUNS:
            self.opened.popitem(last=False)
        return found

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """A task that is handed this gets its process's own cache of the store: what one task opened and verified serves the next."""
        return cache_of_process, (self.storage, self.folder)

    def _local_file(self, run: RunFile) -> Path:
        if isinstance(self.storage, LocalStorage):
            return self.storage.root / run.path
        copy = self.folder / f"{run.crc32:08x}-{run.size}-{Path(run.path).name}"
        if not copy.exists():
            data = read_verified(self.storage, run)
            _own_folder(self.folder)
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as part:
                part.write(data)
            os.replace(part.name, copy)  # whole or not at all; two tasks that race write the same bytes
        return copy


_caches: OrderedDict[tuple[Storage, Path], MappedRuns] = OrderedDict()


def cache_of_process(storage: Storage, folder: Path) -> MappedRuns:
    """Keyed by the store with its options: credentials that were renewed are another store."""
    found = _caches.pop((storage, folder), None) or MappedRuns(storage=storage, folder=folder)
    _caches[storage, folder] = found
    while len(_caches) > STORES:
        _caches.popitem(last=False)
    return found


def _own_folder(folder: Path) -> None:
    """Nobody else may have laid runs there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise StorageError(f"the cache folder {folder} belongs to another user, or others may write to it; remove it, or set TMPDIR")


def _mapped(path: Path, run: RunFile) -> memoryview:
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (FileNotFoundError, ValueError) as error:  # mmap refuses an empty file with ValueError
        raise FormatError(f"key-store run {path} is missing or empty; restore the file from a backup") from error
    if len(data) != run.size:
        raise FormatError(f"key-store run {path} has {len(data)} bytes, written were {run.size}; restore the file from a backup")
    return data
