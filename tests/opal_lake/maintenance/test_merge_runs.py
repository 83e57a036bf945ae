"""Runs of the key store that a compaction merges, also those that hurried jobs left."""

import pytest

from opal_lake.key_store import merge
from opal_lake.maintenance.due import compaction_due, policy_of
from opal_lake.maintenance.merge_runs import plan_runs
from opal_lake.operations.ingest import Ingest
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from opal_lake.write.ingest_job import ingest
from tests.kit.check import check_table
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import Row, content, create, latest, rows


def filled(batches: list[int], *, hurried: bool) -> Table:
    """Make an upsert for each number of keys; small runs are of one tier."""
    table = create(MemoryStorage("memory://runs"), key_store_fan_in=4, fold_files=0)
    for moment, keys in enumerate(batches):
        data, _ = rows([(f"k{number}", moment, moment) for number in range(keys)])
        asked = Ingest(data, metadata="inline")
        ingest(table, lambda *_, data=data: data, asked, hurried=hurried)
    return table


def rows_at(moment: int) -> list[Row]:
    return [(f"k{number}", moment, moment) for number in range(5)]


def test_a_compaction_merges_runs_that_hurried_ingests_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge, "HURRIED_ENTRIES", 10)
    batches = [5] * 5
    assert len(filled(batches, hurried=False).snapshot_at().runs) < 4
    table = filled(batches, hurried=True)
    assert len(table.snapshot_at().runs) == 5
    result = compact(table)
    assert (
        result.counts["runs_read"],
        result.counts["runs_written"],
        len(table.snapshot_at().runs),
    ) == (5, 1, 1)
    assert content(table) == latest([rows_at(moment) for moment in range(5)])
    assert check_table(table) == []


def test_without_a_compaction_hurried_ingests_merge_the_oldest_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge, "HURRIED_ENTRIES", 10)
    fewer, more = (filled([5] * batches, hurried=True) for batches in (12, 13))
    assert [len(table.snapshot_at().runs) for table in (fewer, more)] == [12, 10]
    assert content(more) == latest([rows_at(moment) for moment in range(13)])
    assert check_table(more) == []


def test_maintenance_is_due_once_hurried_ingests_left_a_merge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge, "HURRIED_ENTRIES", 10)
    for batches, why in (
        (3, ""),
        (4, "4 key-store runs, and streams leave their large merges to a compaction"),
    ):
        snapshot = filled([5] * batches, hurried=True).snapshot_at()
        due = compaction_due(snapshot, policy_of(snapshot.spec), 0)
        assert (due.why if due else "") == why


def test_a_large_run_is_not_written_again_for_a_few_small_ones() -> None:
    table = filled([100_000, *[5] * 3], hurried=False)
    large, *small = sorted(table.snapshot_at().runs.values(), key=lambda run: -run.entries)
    assert set(plan_runs(table.snapshot_at())) == set(small)
    result = compact(table)
    assert (
        result.counts["runs_read"],
        large.path in table.snapshot_at().runs,
        len(table.snapshot_at().runs),
    ) == (3, True, 2)
    assert check_table(table) == []
