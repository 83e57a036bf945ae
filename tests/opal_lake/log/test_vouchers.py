"""Writers that slept past an expiry: names are free again, and what they write is not read."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from opal_lake.clock import ManualClock
from opal_lake.engine.arrow_rows import ArrowRows
from opal_lake.engine.executor import ReadAs
from opal_lake.errors import ConflictError
from opal_lake.operations.ingest import Ingest
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from opal_lake.write.ingest_job import (
    IngestRun,
    commit_ingest,
    start_ingest,
    write_inline,
    write_segments,
)
from tests.opal_lake.shop import content, create, rows

DAY_US = 86_400_000_000


@dataclass
class Lake:
    """A table, and jobs that have done all but the commit."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(at_us=10**15))
    storage: MemoryStorage = field(default_factory=MemoryStorage)

    def __post_init__(self) -> None:
        create_on(self.storage, create(MemoryStorage()).snapshot_at().spec, self.clock)
        self.table = self.opened()

    def opened(self) -> Table:
        return table_on(self.storage, self.clock)

    def grow(self, version: int) -> None:
        while (head := self.table.snapshot_at().version) < version:
            self.table.ingest(*rows([(f"k{head}", 1, 1)]), metadata="inline")

    def sleeper(self, sku: str, *, inline: bool) -> Callable[[], object]:
        table = self.opened()
        run = start_ingest(table, Ingest([]))
        assert isinstance(run, IngestRun)
        given, deleted = rows([(sku, 5, 5)])
        batch = ArrowRows.of(given, ReadAs(deleted=deleted)).rows(run.base.spec)
        if not inline:
            segments = write_segments(table, batch, run)
            return lambda: commit_ingest(table.log, run, segments)
        outputs, rule_outputs = write_inline(table, batch, run)
        return lambda: commit_ingest(table.log, run, outputs, rule_outputs)

    def expire(self) -> None:
        head = self.table.snapshot_at().version
        for version in (head + 2, head + 4):
            self.clock.at_us += 40 * DAY_US
            self.grow(version)
        self.table.retain(window="2d", grace="1d")
        assert self.table.snapshot_at().root.oldest_version > head


@pytest.mark.slow_but_one
@pytest.mark.parametrize("second_inline", [True, False])
@pytest.mark.parametrize("bases", [(15, 16), (15, 15), (16, 16), (31, 32), (14, 16)])
def test_two_writers_that_stalled_during_expiry_commit_nothing(
    bases: tuple[int, int], second_inline: bool
) -> None:
    lake = Lake()
    jobs = []
    for sku, base, inline in (("A", bases[0], True), ("B", bases[1], second_inline)):
        lake.grow(base)
        stale = lake.table.snapshot_at()
        jobs.append(lake.sleeper(sku, inline=inline))
    lake.grow(80)
    lake.expire()
    for job in jobs:
        with pytest.raises(ConflictError):
            job()
    head = lake.opened().snapshot_at()
    assert lake.table.log.refresh(stale).version == head.version, (
        "a process that slept finds the log as it is"
    )
    assert not {"A", "B"} & {row[0] for row in content(lake.opened())}
    assert lake.table.ingest(*rows([("C", 9, 9)]), metadata="inline").version == head.version + 1
