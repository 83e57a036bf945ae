"""A check in many slots finds the same as in one; a sample checks all rows of some keys."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import InvalidInputError
from opal_lake.inspect.check.check import check
from opal_lake.inspect.check.content.in_process import Tuning
from opal_lake.inspect.check.finding import Finding
from opal_lake.inspect.check.sample import plan_sample
from opal_lake.operations.look import Check
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.inspect.build import (
    FORGERIES,
    Forger,
    forger,
    moved,
    shown_findings,
    table_with_a_floor,
)
from tests.opal_lake.shop import create, rows

__all__ = ["forger"]

# A slot has room for one or two rows, and nothing stays in memory
MANY_SLOTS = Tuning(slot_bytes=1 << 29, flush_rows=3, buffer_bytes=0)


def by_many_slots(table: OpenTable) -> list[Finding]:
    return [*check(table, Check(), tuning=MANY_SLOTS).findings]


@pytest.mark.parametrize("what", FORGERIES)
def test_check_by_many_slots_finds_the_findings_of_one_slot(what: str, forger: Forger) -> None:
    FORGERIES[what][1](forger)
    table = forger.table()
    by_one = shown_findings(check_table(table))
    assert shown_findings(by_many_slots(table)) == by_one != []


def test_an_entry_in_the_slot_of_another_key_is_found(forger: Forger) -> None:
    path = forger.run(4, moved(0))
    by_one = shown_findings(check_table(forger.table()))
    assert ("I20", path) in {finding[:2] for finding in by_one}
    assert shown_findings(by_many_slots(forger.table())) == by_one


def test_with_a_floor_an_entry_for_another_key_s_row_is_found_in_any_slot() -> None:
    """Up to the floor rows may be gone: an entry without a row alone is not a finding."""
    storage = table_with_a_floor()
    forger = Forger.of(storage)
    assert check_table(forger.table()) == []
    version = max(commit.version for commit in forger.table().commits() if commit.actions.add_runs)
    path = forger.run(version, moved(1))
    by_one = shown_findings(check_table(forger.table()))
    assert ("I20", path) in {finding[:2] for finding in by_one}
    assert shown_findings(by_many_slots(forger.table())) == by_one


def test_a_table_with_a_floor_is_sound_by_many_slots() -> None:
    table = Forger.of(table_with_a_floor()).table()
    assert by_many_slots(table) == []


def table_of(keys: int) -> tuple[MemoryStorage, Table]:
    storage = MemoryStorage()
    table = create(storage)
    for turn in (1, 2):
        table.ingest(
            *rows([(f"k{key}", turn, key) for key in range(0, keys, turn)]), metadata="inline"
        )
    return storage, table


@pytest.mark.parametrize("sample", ["100%", "37.5%", "10%", "0.01%", "25"])
def test_a_sample_of_a_sound_table_finds_nothing_and_lists_what_it_left_out(sample: str) -> None:
    _, table = table_of(200)
    checked = check(table, Check(sample=sample))
    assert checked.findings == ()
    assert bool(checked.left_out) is (sample != "100%")


def test_a_sample_checks_keys_wholly_and_later_versions_check_other_keys() -> None:
    """Every event is gone: a sample finds the updated rows of its keys."""
    storage, _ = table_of(400)
    forger = Forger.of(storage)
    forger.log(2, lambda original: original.take(np.array([0])))
    whole = {
        finding.message.split()[0]
        for finding in check_table(forger.table())
        if finding.invariant == "I18"
    }
    assert whole == {"199"}
    matching = [
        finding
        for finding in check_table(forger.table(), sample="30%")
        if finding.invariant == "I18"
    ]
    assert [*check_table(forger.table(), sample="30%")] == [
        *check_table(forger.table(), sample="30%")
    ]
    assert 30 < int(matching[0].message.split()[0]) < 90
    table = forger.table()
    before = plan_sample("30%", table.snapshot_at())
    table.ingest(*rows([("new", 1, 1)]))
    assert plan_sample("30%", table.snapshot_at()).start != before.start


def test_a_sample_that_passes_the_end_of_the_hash_circle_checks_both_sides() -> None:
    _, table = table_of(300)
    keys = replace(plan_sample("50%", table.snapshot_at()), start=(1 << 32) - (1 << 30))
    high = np.random.default_rng(3).integers(0, 1 << 64, 10_000, dtype=np.uint64)
    inside = keys.slot_of(high, 7) < 7
    spans = [(np.uint64(low), np.uint64(top)) for low, top in keys.spans()]
    assert len(spans) == 2
    assert np.array_equal(
        inside, np.any([(high >= low) & (high <= top) for low, top in spans], axis=0)
    )
    assert np.bincount(keys.slot_of(high[inside], 7), minlength=7).min() > 500


@pytest.mark.parametrize("stop_at", ["file", "slot", "range of rows"])
def test_a_check_that_is_stopped_leaves_nothing_on_disk(
    stop_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, table = table_of(20)  # whose cache of runs is where temporary files are, too
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []

    def stop(noun: str, done: int, total: int) -> None:
        seen.append(os.listdir(tmp_path))
        if noun == stop_at and done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(table, Check(), at_step=stop, tuning=MANY_SLOTS)
    assert seen
    assert not any(seen)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("memory", ["10", "100m"])
def test_an_invalid_amount_of_memory_is_refused(memory: str) -> None:
    _, table = table_of(1)
    with pytest.raises(InvalidInputError, match="memory"):
        check(table, Check(), memory=memory)


@pytest.mark.parametrize("sample", ["0%", "101%", "ten"])
def test_an_invalid_sample_is_refused(sample: str) -> None:
    _, table = table_of(1)
    with pytest.raises(InvalidInputError, match="sample"):
        table.check(sample=sample)
