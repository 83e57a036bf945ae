"""Runs without a disk, for tests over the memory store."""

from dataclasses import dataclass, field

from opal_lake.key_store.run import OpenRun, open_run
from opal_lake.segment import RunFile
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified


@dataclass(slots=True, kw_only=True)
class MemoryRuns:
    """Every run is read whole and kept."""

    storage: Storage
    opened: dict[str, OpenRun] = field(default_factory=dict)

    def open(self, run: RunFile) -> OpenRun:
        if run.path not in self.opened:
            self.opened[run.path] = open_run(read_verified(self.storage, run), f"{self.storage.uri}/{run.path}")
        return self.opened[run.path]
