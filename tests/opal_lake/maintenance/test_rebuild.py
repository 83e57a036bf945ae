"""Rebuilds of the key store.

They lead from damaged or lost runs to a sound table, while others write, and after a crash at any
call.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.engine.in_process import InProcess, slots_of
from opal_lake.errors import (
    CommitUnknownError,
    ConflictError,
    FormatError,
    InvalidInputError,
    StorageError,
)
from opal_lake.key_store.cache.near_runs import CacheSettings
from opal_lake.key_store.entries import (
    concat_entries,
    down_to,
    greatest_of_equal,
    sorted_entries,
)
from opal_lake.maintenance.rebuild import RebuildPlan, commit_rebuild, plan_rebuild, rebuild_slot
from opal_lake.rule.slot import SlotOutput
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table, table_on
from opal_lake.write.metagen_job import commit_metagen
from tests.kit.check import check_table
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.kit.ids import CountingIds
from tests.opal_lake.maintenance.build import entries_of, lose
from tests.opal_lake.shop import Row, content, copied, create, latest, rows
from tests.opal_lake.writer import prepare_metagen

FIRST: list[Row] = [(f"k{key}", key % 5, key) for key in range(40)]
SECOND: list[Row] = [
    (f"k{key}", (key * 7) % 9, 100 + key if key % 6 else None) for key in range(0, 60, 2)
]
THIRD: list[Row] = [
    (f"k{key}", 3 + key % 4, 200 + key if key % 5 else None) for key in range(0, 70, 3)
]
LATER: list[Row] = [(f"k{key}", key % 8, 300 + key if key % 4 else None) for key in range(0, 80, 3)]
SLOTS = 4


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Storage:
    return open_storage(f"memory://rebuild-{request.node.name}")


def reopen(storage: Storage, writer: str = "w") -> Table:
    """Return a writer with an empty cache of runs: it reads those in the store."""
    return table_on(storage, ManualClock(), CountingIds(prefix=writer), CacheSettings(max_bytes=0))


def cut(table: Table, slots: int = SLOTS) -> Table:
    """Rebuild with a task for each of so many ranges of the key hash."""
    return replace(table, executor=InProcess(tasks=slots))


def prepared(storage: Storage, *, pending: bool = True) -> Table:
    """Two layers of runs, and rows that are pending."""
    create(storage, checkpoint_commits=3, segment_rows=7)
    table = reopen(storage, "first")
    for batch in (FIRST, SECOND):
        table.ingest(*rows(batch))
        table.metagen()
    if pending:
        table.ingest(*rows(THIRD))
    return table


def damage(storage: Storage, table: Table) -> None:
    for path in table.snapshot_at().runs:
        data = storage.get(path)
        storage.delete([path])
        storage.put_if_absent(path, data[:-9] + bytes(9))


def lose_one(storage: Storage, table: Table) -> None:
    storage.delete([*table.snapshot_at().runs][:1])


def assert_sound(table: Table, batches: list[list[Row]]) -> None:
    assert check_table(table) == []
    assert content(table) == latest(batches)
    for moment in range(10):
        assert content(table, event_time=moment) == latest(batches, moment)


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("harm", [lose, damage, lose_one])
def test_a_rebuild_repairs_damaged_and_lost_runs(
    harm: Callable[[Storage, Table], None], slots: int, storage: Storage
) -> None:
    table = prepared(storage)
    harm(storage, table)
    table = reopen(storage)
    assert check_table(table)
    with pytest.raises(FormatError):
        table.metagen()
    before = table.snapshot_at()
    result = cut(table, slots).rebuild_key_store()
    after = table.snapshot_at()
    assert (result.operation, result.version, result.counts["rows"]) == (
        "rebuild_key_store",
        after.version,
        len(FIRST) + len(SECOND),
    )
    assert (after.pending, after.root.events) == (before.pending, before.root.events)
    assert before.runs.keys().isdisjoint(after.runs)
    assert len(after.runs) == slots
    assert_sound(table, [FIRST, SECOND])
    table.metagen()
    table.ingest(*rows(LATER), metadata="inline")
    assert_sound(table, [FIRST, SECOND, THIRD, LATER])


def test_a_token_rebuilds_once_and_belongs_to_the_rebuild(storage: Storage) -> None:
    table = prepared(storage)
    first, again = (table.rebuild_key_store(token="t") for _ in range(2))
    assert (again.repeated, again.version) == (True, first.version)
    with pytest.raises(InvalidInputError, match="was used by the rebuild_key_store"):
        table.metagen(token="t")
    assert (
        table.rebuild_key_store().version == (first.version or 0) + 1
    )  # a sound store as well, with other runs


def test_an_empty_table_needs_nothing(storage: Storage) -> None:
    table = create(storage)
    table.ingest(*rows(FIRST))
    assert table.rebuild_key_store().version is None
    assert table.rebuild_key_store(token="t").version is None
    table.metagen()
    assert table.rebuild_key_store(token="t").repeated
    assert_sound(table, [FIRST])


def test_up_to_the_floor_only_the_latest_row_of_a_key_is_kept(storage: Storage) -> None:
    base = prepared(storage).snapshot_at()
    actual = greatest_of_equal(
        sorted_entries(concat_entries([entries_of(file, base) for file in base.files.values()]))
    )
    by_key: dict[int, list[int]] = {}
    for key, delta in zip(actual.high.tolist(), actual.delta.tolist(), strict=True):
        by_key.setdefault(key, []).append(delta)
    expected = []
    for key, deltas in by_key.items():
        # Up to the floor only the newest row can still be read
        newest_at_floor = max((delta for delta in deltas if delta <= 3), default=None)
        expected += [(key, delta) for delta in deltas if delta > 3 or delta == newest_at_floor]
    left = down_to(3, actual)
    assert sorted(zip(left.high.tolist(), left.delta.tolist(), strict=True)) == sorted(expected)
    assert len(left) < len(actual) == len(down_to(None, actual))


def work(table: Table, only: int | None = None) -> tuple[RebuildPlan, list[SlotOutput]]:
    """All of a rebuild but its commit, or the first slots of that."""
    plan = plan_rebuild(table.log, None, lambda _: SLOTS)
    assert isinstance(plan, RebuildPlan)
    entries = concat_entries([entries_of(file, plan.base) for file in plan.files])
    slots, task = slots_of(entries.high, plan.slots), plan.task(table.cache)
    return plan, [
        rebuild_slot(entries.take(slots == slot), task, slot, "0") for slot in plan.left[:only]
    ]


@pytest.mark.parametrize("fan_in", [2, 8])
@pytest.mark.parametrize("winner", ["metagen", "inline", "both"])
def test_commits_during_a_rebuild_stay(winner: str, fan_in: int, storage: Storage) -> None:
    """The winner, with a fan-in of 2, merges runs that the rebuild replaces."""
    create(storage, key_store_fan_in=fan_in)
    table, batches = reopen(storage), [FIRST, SECOND, THIRD]
    for batch in batches[:2]:
        table.ingest(*rows(batch), metadata="inline")
    table.ingest(*rows(THIRD))
    plan, outputs = work(table)
    if winner != "inline":
        table.metagen()
    if winner != "metagen":
        table.ingest(*rows(LATER), metadata="inline")
        batches.append(LATER)
    theirs = table.snapshot_at().runs.keys() - plan.base.runs.keys()
    result = commit_rebuild(table.log, plan, outputs, None)
    after = table.snapshot_at()
    assert result.version == after.version
    assert after.runs.keys() == theirs | {run.path for output in outputs for run in output.runs}
    table.metagen()
    table.ingest(*rows(SECOND), metadata="inline")
    assert_sound(
        table, [*(batches if winner != "inline" else [FIRST, SECOND, THIRD, LATER]), SECOND]
    )


def test_a_metagen_that_began_before_a_rebuild_commits_after_it(storage: Storage) -> None:
    table = prepared(storage)
    plan, rule_outputs = prepare_metagen(table)
    cut(table).rebuild_key_store()
    commit_metagen(table.log, plan, rule_outputs, None)
    assert_sound(table, [FIRST, SECOND, THIRD])
    table.ingest(*rows(LATER), metadata="inline")
    assert_sound(table, [FIRST, SECOND, THIRD, LATER])


def test_two_rebuilds_at_once_leave_a_sound_table(storage: Storage) -> None:
    table, other = prepared(storage), reopen(storage, "other")
    first, second = (
        plan_rebuild(table.log, None, lambda _: SLOTS),
        plan_rebuild(other.log, None, lambda _: SLOTS),
    )
    assert isinstance(first, RebuildPlan)
    assert isinstance(second, RebuildPlan)
    assert first.number != second.number
    cut(table).rebuild_key_store()
    cut(other).rebuild_key_store()
    assert_sound(table, [FIRST, SECOND])


def test_a_rebuild_continues_where_the_last_one_died(storage: Storage) -> None:
    """A number is taken over also if rows were ingested meanwhile that are pending.

    It is not when rows were processed, or when a run is gone again.
    """
    table = prepared(storage, pending=False)
    lose(storage, table)
    table = reopen(storage)
    dead, outputs = work(table, only=3)
    storage.delete([outputs[0].runs[0].path])
    table.ingest(*rows(THIRD))
    plan = plan_rebuild(table.log, None, lambda _: 64)
    assert isinstance(plan, RebuildPlan)
    assert (plan.number, plan.slots, plan.left, sorted(plan.done)) == (
        dead.number,
        SLOTS,
        (0, 3),
        [1, 2],
    )
    result = cut(reopen(storage, "second"), 64).rebuild_key_store()
    assert (result.counts["slots_done_before"], result.counts["runs"]) == (2, SLOTS)
    assert_sound(table, [FIRST, SECOND])
    table.metagen()
    assert_sound(table, [FIRST, SECOND, THIRD])
    again = plan_rebuild(table.log, None, lambda _: 2)
    assert isinstance(again, RebuildPlan)
    assert again.number != dead.number
    assert not again.done


def test_driver_replaced_during_a_rebuild_commits_nothing(storage: Storage) -> None:
    """The driver works under a number that another one took over, and commits second."""
    table = prepared(storage)
    work(table, only=1)
    asleep, outputs = work(reopen(storage, "asleep"), only=None)
    assert asleep.done
    cut(reopen(storage, "awake")).rebuild_key_store()
    with pytest.raises(ConflictError, match=r"committed version .* meanwhile; run `opal"):
        commit_rebuild(table.log, asleep, outputs, None)
    assert_sound(table, [FIRST, SECOND])


def test_the_slot_of_a_damaged_record_is_rebuilt_again(storage: Storage) -> None:
    table = prepared(storage)
    plan, _ = work(table, only=2)
    path = layout.rebuild_path(plan.state, plan.number, SLOTS, 0)
    storage.delete([path])
    storage.put_if_absent(path, b"{}")
    result = cut(reopen(storage, "second")).rebuild_key_store()
    assert result.counts["slots_done_before"] == 1
    assert_sound(table, [FIRST, SECOND])


MODES: list[Mode] = ["before", "after", "failed", "done_but_failed"]


def upsert(storage: Storage, writer: str) -> None:
    cut(reopen(storage, writer)).rebuild_key_store(token="rebuild")


def walk(fresh: Callable[[], Storage], mode: Mode, stride: int) -> None:
    """Fail at each call in turn, then run again as a scheduler would."""
    begun = fresh()
    lose(begun, prepared(begun))
    dry = FailingStore(copied(begun, fresh()))
    upsert(dry, "dry")
    assert len(dry.trace) > 15
    for fail_at in range(1, len(dry.trace) + 1, stride):
        storage = copied(begun, fresh())
        for start, target in enumerate([FailingStore(storage, fail_at, mode), storage, storage]):
            try:
                upsert(target, f"writer{start}")
            except (Crash, StorageError, CommitUnknownError, ConflictError):
                continue
        where = (mode, fail_at, dry.trace[fail_at - 1])
        table = reopen(storage, "reader")
        assert [commit.operation for commit in table.commits()].count("rebuild_key_store") == 1, (
            where
        )
        table.metagen()
        assert check_table(table) == [], where
        assert content(table) == latest([FIRST, SECOND, THIRD]), where
        table.ingest(*rows(LATER), metadata="inline")
        assert check_table(table) == [], where
        assert content(table) == latest([FIRST, SECOND, THIRD, LATER]), where


@pytest.mark.slow_but_one
@pytest.mark.parametrize("mode", MODES)
def test_a_failure_at_any_call_costs_nothing_but_a_rerun(
    mode: Mode, request: pytest.FixtureRequest
) -> None:
    numbers = iter(range(10_000))
    walk(
        lambda: open_storage(f"memory://rebuild-{request.node.name}-{next(numbers)}"),
        mode,
        stride=1 if mode in ("before", "after") else 3,
    )


@pytest.mark.slow_but_one
@pytest.mark.parametrize("mode", MODES)
def test_a_failure_at_some_calls_on_local_files(mode: Mode, tmp_path: Path) -> None:
    numbers = iter(range(10_000))
    walk(lambda: open_storage(str(tmp_path / f"table-{next(numbers)}")), mode, stride=9)
