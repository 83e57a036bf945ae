"""Runs without a disk, for tests over the memory store."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from opal_lake.data.segment import RunFile
from opal_lake.key_store.cache.protocol import GREATEST_WORD
from opal_lake.key_store.entries import Entries
from opal_lake.key_store.probe import neighbours
from opal_lake.key_store.run import decode_run
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified


@dataclass(slots=True, kw_only=True)
class MemoryRuns:
    """Every run is read whole and kept."""

    storage: Storage
    opened: dict[str, Entries] = field(default_factory=dict)

    def neighbours(self, runs: Sequence[RunFile], new: Entries) -> list[Entries]:
        return [neighbours(self._open(run), new).entries for run in runs]

    def slices(
        self, run: RunFile, rows: int, low: int = 0, high: int = GREATEST_WORD
    ) -> Iterator[Entries]:
        entries = self._open(run)
        inside = entries.take((entries.high >= np.uint64(low)) & (entries.high <= np.uint64(high)))
        for start in range(0, len(inside), rows):
            yield inside.take(slice(start, start + rows))

    def keep(self, run: RunFile, entries: Entries) -> None:
        """Read back when it is needed, so that tests see what was stored."""

    def _open(self, run: RunFile) -> Entries:
        if run.path not in self.opened:
            self.opened[run.path] = decode_run(
                read_verified(self.storage, run), f"{self.storage.uri}/{run.path}"
            )
        return self.opened[run.path]
