"""The worker's cache of runs: near ones in one of two forms, far ones probed in place or brought near."""

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
OPEN_RUNS = min(
    512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
)  # each has a file open, of 256 on some systems
STORES = 16
TINY_ENTRIES = 1024
FEW_BLOCKS = 0.25  # of a run: a batch that needs less than this of a far run leaves it far


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Where and how runs are kept on a worker: in a folder of the user's own within `folder`, by default that for temporary files.

    It is the same path on every worker, and nothing is shared between machines.
    """

    backend: str = "mapped"
    folder: str | None = None
    max_bytes: int = 16 << 30

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InvalidInputError(
                f"spark.opal.cache.backend={self.backend!r} is unknown; use one of {', '.join(BACKENDS)}"
            )
        if self.max_bytes < 0:
            raise InvalidInputError(
                f"spark.opal.cache.bytes={self.max_bytes} is negative; 0 keeps nothing"
            )

    @property
    def path(self) -> Path:
        """Never `folder` itself: what else lies there is not the cache's to evict."""
        return Path(self.folder or tempfile.gettempdir()) / f"opal-runs-{os.getuid()}"


def near_form(backend: str) -> NearForm:
    if backend == "mapped":
        return MappedRuns()
    from opal_lake.key_store.cache.rocksdb import RocksRuns  # an extra of its own: rocksdict

    return RocksRuns()


@dataclass(slots=True, kw_only=True)
class NearRuns:
    """A `RunCache`. Small batches probe far runs block by block; others bring them near."""

    storage: Storage
    settings: CacheSettings = field(default_factory=CacheSettings)
    opened: Recent[RunFile, NearRun] = field(default_factory=lambda: Recent(max_size=OPEN_RUNS))
    indexes: Recent[RunFile, RunIndex] = field(default_factory=lambda: Recent(max_size=OPEN_RUNS))

    def neighbours(self, runs: Sequence[RunFile], new: Entries) -> list[Entries]:
        """Runs of late deltas first: where an entry before a new one is later than all of a run, nothing there is nearer.

        So a key that late runs hold is not looked for in the old ones, which are large.
        """
        by_run = []
        nearest_before = np.full(len(new), np.iinfo(np.int64).min)  # its delta
        for run in sorted(runs, key=attrgetter("greatest_delta"), reverse=True):
            if (is_settled := nearest_before > run.greatest_delta).any():
                new, nearest_before = new.take(~is_settled), nearest_before[~is_settled]
            within = _between(new, run.hash_low, run.hash_high)
            if within.start < within.stop:
                found = self._neighbours(run, new.take(within))
                if (found.predecessor_deltas > run.greatest_delta).any():
                    message = f"holds a delta of {found.predecessor_deltas.max()}, the table says at most {run.greatest_delta}"
                    raise FormatError(f"{self.storage.uri}/{run.path} {message}; {MEND}")
                before = nearest_before[within]
                before[found.followers] = np.maximum(
                    before[found.followers], found.predecessor_deltas
                )
                by_run.append(found.entries)
        return by_run

    def _neighbours(self, run: RunFile, probes: Entries) -> Neighbours:
        found = self._near_neighbours(self._near(run), run, probes)
        if found is not None:
            return found
        read = self._reader(run)
        index = self._index(run, read)
        blocks = blocks_to_probe(index, read, probes)
        if len(blocks) > FEW_BLOCKS * len(index.directory):
            found = self._near_neighbours(self._bring(run, index, read), run, probes)
        if found is None:
            found = neighbours(
                concat_entries([no_entries(index.ties), *read_blocks(index, read, blocks)]), probes
            )
        return found

    def _near_neighbours(
        self, near: NearRun | None, run: RunFile, probes: Entries
    ) -> Neighbours | None:
        if near is not None:
            with suppress(OSError):  # damaged on this machine since it was opened
                return near.neighbours(probes)
            self._forget(run)
        return None

    def slices(
        self, run: RunFile, rows: int, low: int = 0, high: int = GREATEST_WORD
    ) -> Iterator[Entries]:
        done, near = 0, self._near(run)
        if near is not None:
            try:
                for part in near.slices(rows, low, high):
                    yield part
                    done += len(part)
                return
            except OSError:  # damaged on this machine: the rest comes from afar
                self._forget(run)
        read = self._reader(run)
        index = self._index(run, read)
        for block in read_blocks(index, read, index.blocks_between(low, high)):
            between = block.take(_between(block, low, high))
            for start in range(min(done, len(between)), len(between), rows):
                yield between.take(slice(start, start + rows))
            done -= min(done, len(between))

    def keep(self, run: RunFile, entries: Entries) -> None:
        """A tiny one is held: a file would take longer to write than it saves those who share the folder."""
        if len(entries) <= TINY_ENTRIES:
            self.opened.put(run, MappedRun(entries=entries))
            return
        self._put(run, [entries], len(entries), len(entries.ties) // 2)

    @property
    def _folder(self) -> CacheFolder:
        return CacheFolder(path=self.settings.path, max_bytes=self.settings.max_bytes)

    def _name(self, run: RunFile, form: NearForm) -> str:
        table = zlib.crc32(self.storage.uri.encode())
        return f"{table:08x}-{run.crc32:08x}-{run.size}-{Path(run.path).stem}.{form.suffix}"

    def _near(self, run: RunFile) -> NearRun | None:
        opened = self.opened.known(run)
        if opened is not None:
            return opened
        form = near_form(self.settings.backend)
        path = self._folder.find(self._name(run, form))
        return None if path is None else self._opened(run, form, path)

    def _bring(self, run: RunFile, index: RunIndex, read: Reader) -> NearRun | None:
        """A copy of the whole run; None when there is no room for it."""
        return self._put(
            run, read_blocks(index, read, range(len(index.directory))), index.count, index.ties
        )

    def _put(self, run: RunFile, parts: Iterable[Entries], count: int, ties: int) -> NearRun | None:
        form = near_form(self.settings.backend)
        write = partial(form.write, parts, count, ties)
        path = self._folder.put(self._name(run, form), form.size_of(count, ties), write)
        return None if path is None else self._opened(run, form, path)

    def _forget(self, run: RunFile) -> None:
        self.opened.forget(run)
        self._folder.drop(self._name(run, near_form(self.settings.backend)))

    def _opened(self, run: RunFile, form: NearForm, path: Path) -> NearRun | None:
        try:
            near = form.open(path)
        except OSError:  # gone since, or cut off by a crash of the machine: it is derived
            self._folder.drop(path.name)
            return None
        self.opened.put(run, near)
        return near

    def _index(self, run: RunFile, read: Reader) -> RunIndex:
        path = f"{self.storage.uri}/{run.path}"
        return self.indexes.get(run, lambda: _index_of(run, read, path))

    def _reader(self, run: RunFile) -> Reader:
        """It remembers the beginning, which is all of a short run: to open it and to read its blocks is one request."""
        head = b""

        def read(start: int, length: int) -> bytes:
            nonlocal head
            if start + length <= len(head):
                return head[start : start + length]
            try:
                data = self.storage.get(run.path, start, length)
            except NotFoundError as error:
                raise missing_error(self.storage, run.path, MEND) from error
            head = data if start == 0 else head
            return data

        return read

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """A task that is handed this gets its process's own cache of the store: what one task opened serves the next."""
        return cache_of_process, (self.storage, self.settings)


def _index_of(run: RunFile, read: Reader, path: str) -> RunIndex:
    """The index of the very run that the table names, not of a sound one that was laid in its place."""
    index = open_index(read, path)
    if index.count != run.entries:
        raise FormatError(
            f"{path} holds {index.count} entries, the table says {run.entries}; {MEND}"
        )
    if index.size != run.size or (index.count and int(index.fences[0]) != run.hash_low):
        raise FormatError(
            f"{path} is a run of {index.size} bytes, and not the one that the table names; {MEND}"
        )
    return index


def _between(entries: Entries, low: int, high: int) -> slice:
    """Of entries sorted by the first hash word, those from `low` to `high`. As words: numpy compares plain integers as floats."""
    first, last = (
        entries.high.searchsorted(np.uint64(low), "left"),
        entries.high.searchsorted(np.uint64(high), "right"),
    )
    return slice(int(first), int(last))


_caches: Recent[tuple[Storage, CacheSettings], NearRuns] = Recent(max_size=STORES)


def cache_of_process(storage: Storage, settings: CacheSettings) -> NearRuns:
    """Keyed by the store with its options: credentials that were renewed are another store."""
    return _caches.get((storage, settings), lambda: NearRuns(storage=storage, settings=settings))
