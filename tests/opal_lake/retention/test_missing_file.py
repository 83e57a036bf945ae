"""Errors of a reader that retention overtook.

They name the readable versions; damage is reported as damage.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest

from opal_lake import layout
from opal_lake.errors import ExpiredError, FormatError, OpalError
from opal_lake.exit_codes import DAMAGE, RETRY, exit_code
from opal_lake.key_store.cache.near_runs import CacheSettings, NearRuns
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.read import plan_read, read_rows
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import StoredObject
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.kit.executors import Interrupted
from tests.kit.runs import MemoryRuns
from tests.opal_lake.clustering import zorder
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import LISTS_IN_FILES, Row, create, rows

SMALL_TO_LARGE = {"target_bytes": 1 << 20}


def batch(number: int) -> list[Row]:
    return [(f"k{number % 3}", number, number), (f"n{number}", number, 1)]


def grow(table: Table, first: int, count: int) -> None:
    for number in range(first, first + count):
        table.ingest(*rows(batch(number)), metadata="inline", partition_key=f"p{number % 2}")


def overtake(table: Table) -> None:
    """All files are rewritten, and the versions that named them have expired."""
    first = table.snapshot_at().version * 10
    grow(table, first, 5)
    compact(table, **SMALL_TO_LARGE)
    grow(table, first + 10, 5)
    table.retain(window="0s", grace="0s")


def another(table: Table) -> Table:
    """Another process."""
    return Table(log=table.log, cache=MemoryRuns(storage=table.storage))


def _paths(table: Table, prefix: str) -> list[str]:
    return [stored.path for stored in table.storage.list(prefix)]


@pytest.fixture
def table() -> Table:
    table = create(MemoryStorage(), checkpoint_commits=2, key_store_fan_in=2, tuning=LISTS_IN_FILES)
    grow(table, 0, 5)
    return table


def read_all(snapshot: Snapshot) -> object:
    return read_rows(plan_read(snapshot, None), None)


def read_lists(snapshot: Snapshot) -> object:
    return snapshot.segments, snapshot.tokens, snapshot.partitions


def probe(snapshot: Snapshot) -> object:
    """Run a worker without cached runs."""
    with TemporaryDirectory() as folder:
        cache = NearRuns(storage=snapshot.storage, settings=CacheSettings(folder=folder))
        return [[*cache.slices(run, 10)] for run in snapshot.runs.values()]


USES = [read_all, read_lists, probe]
Use = Callable[[Snapshot], object]


@pytest.mark.parametrize("use", USES)
def test_a_snapshot_that_was_kept_too_long_has_expired(table: Table, use: Use) -> None:
    old = table.snapshot_at()
    assert (old.files, old.runs) != ({}, {})
    overtake(table)
    oldest = table.snapshot_at().root.oldest_version
    with pytest.raises(
        ExpiredError,
        match=rf"has expired: .*; the readable versions are now {oldest} to \d+\. Run the job",
    ) as raised:
        use(old)
    assert exit_code(raised.value) == RETRY


@pytest.mark.parametrize("use", USES)
def test_a_missing_file_of_the_newest_version_is_damage(table: Table, use: Use) -> None:
    overtake(table)
    now = table.snapshot_at()
    table.storage.delete(
        {read_all: now.files, read_lists: _paths(table, layout.SECTIONS), probe: now.runs}[use]
    )
    with pytest.raises(
        FormatError,
        match=r"is missing, though the table refers to it; (restore|`opal rebuild-key-store`)",
    ) as raised:
        use(table.snapshot_at())
    assert exit_code(raised.value) == DAMAGE


def test_a_missing_file_is_damage_if_no_version_has_expired(table: Table) -> None:
    old = table.snapshot_at()
    table.storage.delete([*old.files][:1])
    with pytest.raises(FormatError, match="restore the file from a backup"):
        read_all(old)


def slow_compact(table: Table, meanwhile: Callable[[], None]) -> None:
    compact(replace(table, executor=Interrupted(before=meanwhile)), **SMALL_TO_LARGE)


def slow_zorder(table: Table, meanwhile: Callable[[], None]) -> None:
    sku = table.snapshot_at().spec.schema.field("sku")
    busy = replace(table, executor=Interrupted(before=meanwhile))
    zorder(busy, (sku,), target_bytes=1 << 20)


def slow_metagen(table: Table, meanwhile: Callable[[], None]) -> None:
    """Probe the runs of the version at which the job began, as its tasks do."""
    table.ingest(*rows(batch(7)))
    cache = _Slow(storage=table.storage)
    cache.meanwhile = meanwhile
    replace(table, cache=cache).metagen(all=True)


class _Slow(MemoryRuns):
    """The first probe waits for what comes meanwhile."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def neighbours(self, *arguments: object) -> object:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return super().neighbours(*arguments)  # type: ignore[arg-type]  # passed on as they are


@pytest.mark.parametrize("job", [slow_compact, slow_zorder, slow_metagen])
def test_a_job_that_was_overtaken_is_run_again(
    table: Table, job: Callable[[Table, Callable[[], None]], None]
) -> None:
    with pytest.raises(OpalError) as raised:
        job(table, lambda: overtake(another(table)))
    assert exit_code(raised.value) == RETRY, raised.value
    job(table, lambda: None)
    assert check_table(table) == []


class CutStorage(MemoryStorage):
    """Retention comes between a listing and what is read by it.

    The listing is of the log, or of the checkpoints.
    """

    meanwhile: Callable[[], None] | None = None

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        stored = [*super().list(prefix, start_after)]
        if self.meanwhile is not None and prefix in ("", *self.at):
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return iter(stored)

    at: tuple[str, ...] = ()


@pytest.mark.parametrize("at", ["_opal/log/", "_opal/checkpoints/", ""])
def test_heads_commits_and_checks_are_right_while_the_log_is_cut(at: str) -> None:
    storage = CutStorage()
    table = create(storage, checkpoint_commits=2, key_store_fan_in=2)
    grow(table, 0, 5)
    uses: list[Callable[[], object]] = [
        table.snapshot_at,
        table.read,
        lambda: [*table.history()],
        lambda: check_table(table) == [],
        table.retain,
    ]
    for use in uses:
        storage.at, storage.meanwhile = (at,), lambda: overtake(another(table))
        with suppress(ExpiredError):  # a reader without any grace
            assert use() is not False, use
        storage.meanwhile = None
        assert check_table(table) == []
