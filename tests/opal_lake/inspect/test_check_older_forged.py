"""Older versions whose files are whole and whose rows, events and entries do not fit together."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from opal_lake import layout
from opal_lake.events.segment_log import Events, concat_events
from opal_lake.inspect.check.check import check
from opal_lake.inspect.check.content.in_process import Tuning
from opal_lake.key_store.entries import Entries
from opal_lake.log.checkpoint import write_checkpoint
from opal_lake.operations.look import Check
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, table_on
from tests.kit.check import check_table
from tests.opal_lake.compacting import compact
from tests.opal_lake.inspect.build import Forger
from tests.opal_lake.shop import create, rows

MERGED = 11  # a version whose log and run no savepoint has
METAGEN = SAVEPOINT = 4  # the version whose log and run are forged, and the one that has them


@pytest.fixture
def forger() -> Forger:
    """Return a table whose savepoint has logs and runs that compactions merged."""
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=1000)
    for at in (1, 2):
        table.ingest(*rows([("a", at, at), ("b", at, at), ("c", at, at)]))
        table.metagen(all=True)
    table.savepoint("old")
    for at in (3, 4, 5):
        table.ingest(*rows([("a", at, at), ("b", at, at), (f"d{at}", at, at)]))
        table.metagen(all=True)
    compact(table, floor=4)
    state, older = table.snapshot_at(), table.snapshot_at(SAVEPOINT)
    assert not older.logs.keys() & state.logs.keys()
    assert not older.runs.keys() & state.runs.keys()
    entries = [entry for entry in storage.list("") if not entry.path.startswith(layout.CHECKPOINTS)]
    return Forger({entry.path: storage.get(entry.path) for entry in entries})


def opened(forger: Forger) -> Table:
    """Return the table with a checkpoint of the savepoint, forged as well."""
    storage = MemoryStorage()
    for path, data in forger.files.items():
        assert storage.put_if_absent(path, data)
    table = table_on(storage)
    write_checkpoint(storage, table.snapshot_at(SAVEPOINT), fold=False)
    return table


def later(events: Events) -> Events:
    until = events.until.copy()
    until[0] += 1
    return replace(events, until=until)


def earlier(events: Events) -> Events:
    until = events.until.copy()
    until[0] -= 1
    return replace(events, until=until)


def of_another_row(events: Events) -> Events:
    """Return events of rows that the key's next row does not end."""
    return replace(events, segment=events.segment + (2 << 32), next_rows=None)


def with_another_delta(entries: Entries) -> Entries:
    delta = entries.delta.copy()
    delta[0] -= 1
    return replace(entries, delta=delta)


def with_another_row(entries: Entries) -> Entries:
    return replace(entries, offset=np.roll(entries.offset, 1))


@pytest.mark.parametrize("expired", [False, True], ids=["readable", "savepoint"])
@pytest.mark.parametrize(
    "kind, change, invariants",
    [
        ("log", later, {"I18"}),
        ("log", earlier, {"I18"}),
        ("log", of_another_row, {"I18"}),
        ("run", with_another_delta, {"I20", "I21"}),
        ("run", with_another_row, {"I20", "I21"}),
    ],
)
def test_a_savepoint_whose_rows_and_events_contradict_is_reported(
    forger: Forger,
    kind: str,
    change: Callable[[Events], Events] | Callable[[Entries], Entries],
    invariants: set[str],
    expired: bool,
) -> None:
    path = getattr(forger, kind)(METAGEN, change)
    table = opened(forger)
    if expired:
        table.retain(window="0s", grace="0s")
        assert table.snapshot_at().root.oldest_version > SAVEPOINT
    assert path in {*table.snapshot_at(SAVEPOINT).logs, *table.snapshot_at(SAVEPOINT).runs}
    assert check_table(table) == []
    findings = check_table(table, all=True)
    named = [finding for finding in findings if f"in version {SAVEPOINT}" in finding.message]
    assert {finding.invariant for finding in named} == invariants
    others = [finding for finding in findings if finding not in named]
    assert all(f"it merges {path}" in finding.message for finding in others)


def test_a_check_compares_every_version(forger: Forger) -> None:
    checked = check(opened(forger), Check(all=True))
    assert (checked.findings, checked.left_out) == ((), ())


def test_a_quick_check_reports_that_older_versions_were_not_compared(forger: Forger) -> None:
    _, older = check(opened(forger), Check(all=True, quick=True)).left_out
    assert "fit together in" in older
    assert older.endswith("a quick check reads metadata only")


@pytest.mark.parametrize("tuning", [Tuning(compared_rows=40), Tuning(compared_versions=3)])
def test_only_some_of_too_many_versions_are_compared(forger: Forger, tuning: Tuning) -> None:
    checked = check(opened(forger), Check(all=True), tuning=tuning)
    assert checked.findings == ()
    [left_out] = checked.left_out
    assert "fit together in" in left_out
    assert left_out.endswith("the versions are too many, or too large together, to compare each")


def test_a_version_with_late_events_is_reported(forger: Forger) -> None:
    """Later versions are right, and so is the log that merges both."""
    late: list[Events] = []

    def without_first(events: Events) -> Events:
        late.append(events.take(np.array([0])))
        return events.take(np.arange(1, len(events)))

    def with_late(events: Events) -> Events:
        both = concat_events([*late, events])
        return both.take(np.lexsort((both.offset, both.segment)))

    forger.log(7, without_first)
    forger.log(9, with_late)
    table = opened(forger)
    assert check_table(table) == []
    findings = check_table(table, all=True)
    assert {finding.invariant for finding in findings} == {"I18"}
    assert all("in version 7" in finding.message for finding in findings)


@pytest.mark.parametrize(
    "kind, change, invariant",
    [
        ("log", later, "I18"),
        ("log", earlier, "I18"),
        ("log", of_another_row, "I18"),
        ("run", with_another_delta, "I21"),
        ("run", with_another_row, "I21"),
    ],
)
def test_events_and_entries_that_a_merge_lost_are_reported(
    forger: Forger,
    kind: str,
    change: Callable[[Events], Events] | Callable[[Entries], Entries],
    invariant: str,
) -> None:
    """The versions are between the oldest and the newest, and not savepoints."""
    path = getattr(forger, kind)(MERGED, change)
    table = opened(forger)
    assert check_table(table) == []
    [finding] = check_table(table, all=True)
    assert finding.invariant == invariant
    assert path in finding.message
    assert "_opal/log/" in finding.path
