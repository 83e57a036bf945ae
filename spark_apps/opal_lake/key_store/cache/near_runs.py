"""The worker's cache of runs.

A near run is a local copy in one of two forms. A far run is probed in the store, or copied here.
"""

import os
import resource
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np

from opal_lake.data.recent import Recent
from opal_lake.data.segment import RunFile
from opal_lake.errors import FormatError, InvalidInputError, NotFoundError
from opal_lake.key_store.cache.folder import CacheFolder
from opal_lake.key_store.cache.mapped_runs import MappedRun, MappedRuns
from opal_lake.key_store.cache.protocol import GREATEST_WORD, NearForm, NearRun
from opal_lake.key_store.entries import Entries, concat_entries, no_entries
from opal_lake.key_store.probe import Neighbours, neighbours
from opal_lake.key_store.run import MEND, Reader, RunIndex, blocks_to_probe, open_index, read_blocks
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import missing_error

BACKENDS = ("mapped", "rocksdb")
_MAX_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
# Each open run has an open file, and some systems allow only 256 files.
OPEN_RUNS = min(512, _MAX_OPEN_FILES // 4)
STORES = 16
TINY_ENTRIES = 1024
# A batch that needs at most this share of a far run's blocks does not copy the run.
FEW_BLOCKS = 0.25
_NO_DELTA = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Settings of a worker's cache: its form, its folder and its size.

    The runs of a user are in a subfolder of `folder`, which is by default the system's folder for
    temporary files. The path is the same on every worker, but machines share nothing.
    """

    backend: str = "mapped"
    folder: str | None = None
    max_bytes: int = 16 << 30

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InvalidInputError(
                f"spark.opal.cache.backend={self.backend!r} is unknown; "
                f"use one of {', '.join(BACKENDS)}"
            )
        if self.max_bytes < 0:
            raise InvalidInputError(
                f"spark.opal.cache.bytes={self.max_bytes} is negative; use 0 to cache nothing"
            )

    @property
    def path(self) -> Path:
        """The cache's own subfolder of `folder`: other files there are never deleted."""
        return Path(self.folder or tempfile.gettempdir()) / f"opal-runs-{os.getuid()}"


def near_form(backend: str) -> NearForm:
    if backend == "mapped":
        return MappedRuns()
    # rocksdict is an extra.
    from opal_lake.key_store.cache.rocksdb import RocksRuns

    return RocksRuns()


@dataclass(slots=True, kw_only=True)
class NearRuns:
    """A `RunCache`. Small batches probe far runs block by block, others copy them."""

    storage: Storage
    settings: CacheSettings = field(default_factory=CacheSettings)
    opened: Recent[RunFile, NearRun] = field(default_factory=lambda: Recent(max_size=OPEN_RUNS))
    indexes: Recent[RunFile, RunIndex] = field(default_factory=lambda: Recent(max_size=OPEN_RUNS))

    def neighbours(self, runs: Sequence[RunFile], new: Entries) -> list[Entries]:
        """Return the stored neighbours of new entries, in parts by run.

        Runs of late deltas are probed first. If the known predecessor of an entry is later than
        all deltas of a run, the run has no nearer one. So the old runs, which are large, are not
        probed for keys that late runs hold.
        """
        neighbours_by_run: list[Entries] = []
        predecessor_deltas = np.full(len(new), _NO_DELTA)
        for run in sorted(runs, key=attrgetter("greatest_delta"), reverse=True):
            is_settled = predecessor_deltas > run.greatest_delta
            if is_settled.any():
                new = new.take(~is_settled)
                predecessor_deltas = predecessor_deltas[~is_settled]
            in_range = _between(new, run.hash_low, run.hash_high)
            if in_range.start >= in_range.stop:
                continue
            from_run = self._neighbours(run, new.take(in_range))
            self._check_deltas(run, from_run)
            # A view: an assignment to it changes `predecessor_deltas` for the next run
            deltas = predecessor_deltas[in_range]
            deltas[from_run.followers] = np.maximum(
                deltas[from_run.followers], from_run.predecessor_deltas
            )
            neighbours_by_run.append(from_run.entries)
        return neighbours_by_run

    def _check_deltas(self, run: RunFile, from_run: Neighbours) -> None:
        deltas = from_run.predecessor_deltas
        if (deltas > run.greatest_delta).any():
            raise FormatError(
                f"{self.storage.uri}/{run.path} holds a delta of {deltas.max()}, "
                f"the table says at most {run.greatest_delta}; {MEND}"
            )

    def _neighbours(self, run: RunFile, probes: Entries) -> Neighbours:
        from_near = self._near_neighbours(self._near(run), run, probes)
        if from_near is not None:
            return from_near
        read = self._reader(run)
        index = self._index(run, read)
        blocks = blocks_to_probe(index, read, probes)
        if len(blocks) > FEW_BLOCKS * len(index.directory):
            from_near = self._near_neighbours(self._copy_here(run, index, read), run, probes)
        if from_near is not None:
            return from_near
        stored = concat_entries([no_entries(index.ties), *read_blocks(index, read, blocks)])
        return neighbours(stored, probes)

    def _near_neighbours(
        self, near: NearRun | None, run: RunFile, probes: Entries
    ) -> Neighbours | None:
        if near is None:
            return None
        with suppress(OSError):  # the copy was damaged on this machine since it was opened
            return near.neighbours(probes)
        self._forget(run)
        return None

    def slices(
        self, run: RunFile, rows: int, low: int = 0, high: int = GREATEST_WORD
    ) -> Iterator[Entries]:
        yielded = 0
        near = self._near(run)
        if near is not None:
            try:
                for part in near.slices(rows, low, high):
                    yield part
                    yielded += len(part)
                return
            except OSError:  # the copy was damaged on this machine: read the rest from the store
                self._forget(run)
        read = self._reader(run)
        index = self._index(run, read)
        to_skip = yielded
        for block in read_blocks(index, read, index.blocks_between(low, high)):
            in_range = block.take(_between(block, low, high))
            skipped = min(to_skip, len(in_range))
            to_skip -= skipped
            for start in range(skipped, len(in_range), rows):
                yield in_range.take(slice(start, start + rows))

    def keep(self, run: RunFile, entries: Entries) -> None:
        """Store a run that this worker wrote.

        A tiny run stays in memory: a file would cost more time than it saves other processes.
        """
        if len(entries) <= TINY_ENTRIES:
            self.opened.put(run, MappedRun(entries=entries))
            return
        self._put(run, [entries], len(entries), len(entries.ties) // 2)

    @property
    def _folder(self) -> CacheFolder:
        return CacheFolder(path=self.settings.path, max_bytes=self.settings.max_bytes)

    def _name(self, run: RunFile, form: NearForm) -> str:
        table = zlib.crc32(self.storage.uri.encode())
        stem = Path(run.path).stem
        return f"{table:08x}-{run.crc32:08x}-{run.size}-{stem}.{form.suffix}"

    def _near(self, run: RunFile) -> NearRun | None:
        opened = self.opened.known(run)
        if opened is not None:
            return opened
        form = near_form(self.settings.backend)
        path = self._folder.find(self._name(run, form))
        if path is None:
            return None
        return self._open(run, form, path)

    def _copy_here(self, run: RunFile, index: RunIndex, read: Reader) -> NearRun | None:
        """Copy a whole run to this worker; return None if it does not fit."""
        every_block = range(len(index.directory))
        return self._put(run, read_blocks(index, read, every_block), index.count, index.ties)

    def _put(self, run: RunFile, parts: Iterable[Entries], count: int, ties: int) -> NearRun | None:
        form = near_form(self.settings.backend)
        write = partial(form.write, parts, count, ties)
        path = self._folder.put(self._name(run, form), form.size_of(count, ties), write)
        if path is None:
            return None
        return self._open(run, form, path)

    def _forget(self, run: RunFile) -> None:
        self.opened.forget(run)
        self._folder.drop(self._name(run, near_form(self.settings.backend)))

    def _open(self, run: RunFile, form: NearForm, path: Path) -> NearRun | None:
        try:
            near = form.open(path)
        except OSError:  # evicted since, or cut off by a crash of the machine: it is derived
            self._folder.drop(path.name)
            return None
        self.opened.put(run, near)
        return near

    def _index(self, run: RunFile, read: Reader) -> RunIndex:
        path = f"{self.storage.uri}/{run.path}"
        return self.indexes.get(run, lambda: _index_of(run, read, path))

    def _reader(self, run: RunFile) -> Reader:
        """Return a reader of the run that remembers its first bytes.

        The first request returns all of a short run, so that reading its blocks takes no more.
        """
        head = b""

        def read(start: int, length: int) -> bytes:
            nonlocal head
            if start + length <= len(head):
                return head[start : start + length]
            try:
                data = self.storage.get(run.path, start, length)
            except NotFoundError as error:
                raise missing_error(self.storage, run.path, MEND) from error
            if start == 0:
                head = data
            return data

        return read

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Unpickle as the process's own cache of the store: tasks share what they opened."""
        return cache_of_process, (self.storage, self.settings)


def _index_of(run: RunFile, read: Reader, path: str) -> RunIndex:
    """Open the index of a run.

    Raises FormatError unless it is the run that the table names: another intact run may have been
    put at the path.
    """
    index = open_index(read, path)
    if index.count != run.entries:
        raise FormatError(
            f"{path} holds {index.count} entries, the table says {run.entries}; {MEND}"
        )
    if index.size != run.size:
        raise FormatError(
            f"{path} is a run of {index.size} bytes, the table says {run.size}; {MEND}"
        )
    if index.count:
        first_hash = int(index.fences[0])
        if first_hash != run.hash_low:
            raise FormatError(
                f"{path} begins with the hash {first_hash}, the table says {run.hash_low}; {MEND}"
            )
    return index


def _between(entries: Entries, low: int, high: int) -> slice:
    """Return the range of sorted entries with first hash words from `low` to `high`."""
    # As words: numpy compares plain integers as floats.
    first = entries.high.searchsorted(np.uint64(low), "left")
    past = entries.high.searchsorted(np.uint64(high), "right")
    return slice(int(first), int(past))


_caches: Recent[tuple[Storage, CacheSettings], NearRuns] = Recent(max_size=STORES)


def cache_of_process(storage: Storage, settings: CacheSettings) -> NearRuns:
    """Return this process's cache of a store.

    The store's options are part of the key: renewed credentials make another store.
    """
    return _caches.get((storage, settings), lambda: NearRuns(storage=storage, settings=settings))
