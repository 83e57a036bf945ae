"""Rows wait under the partition key of their ingest.

A MetaGen processes those of its key, and pending rows can be withdrawn.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.engine.in_process import InProcess
from opal_lake.errors import ConflictError, InvalidInputError, NotFoundError
from opal_lake.log.pending import EVERYTHING, Selection
from opal_lake.read.read import visible_ingests
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from opal_lake.write.discard import discard_pending
from opal_lake.write.metagen_job import DiscardedError, metagen
from tests.kit.check import check_table
from tests.opal_lake.shop import SCHEMA, Row, content, create, rows

DAY_1, DAY_2 = "2026-11-24", "2026-11-25"
HOUR_US = 3_600_000_000
FIRST: list[Row] = [("ax", 1, 10), ("bow", 1, 20)]
SECOND: list[Row] = [("ax", 2, 11), ("cap", 2, 30)]
THIRD: list[Row] = [("bow", 3, None), ("dye", 3, 40)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(step_us=1)


@pytest.fixture
def table(clock: ManualClock) -> Table:
    storage = MemoryStorage(clock=clock)
    return create_on(storage, create(MemoryStorage()).snapshot_at().spec, clock)


def two_days(table: Table) -> None:
    """Ingest one day after the other, and rows without a key; all are pending."""
    table.ingest(*rows(FIRST), partition_key=DAY_1, token="day 1")
    table.ingest(*rows(SECOND), partition_key=DAY_2, token="day 2")
    table.ingest(*rows(THIRD), token="no day")


def test_a_metagen_publishes_rows_without_a_partition_key(table: Table) -> None:
    two_days(table)
    result = table.metagen()
    assert result.counts["segments"] == 1
    assert content(table) == [("dye", 3, 40)]
    assert result.counts["pending_segments"] == 2
    assert result.counts["pending_rows"] == 4


def test_a_metagen_publishes_only_its_partition_key(table: Table) -> None:
    two_days(table)
    table.metagen(partition_key=DAY_2)
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30)]
    assert visible_ingests(table.snapshot_at()).keys() == {DAY_2}


def test_a_metagen_publishes_the_ingests_of_its_tokens(table: Table) -> None:
    two_days(table)
    table.metagen(tokens=["day 1", "no day"])
    assert content(table) == [("ax", 1, 10), ("dye", 3, 40)]


def test_a_metagen_of_all_publishes_every_partition_key(table: Table) -> None:
    two_days(table)
    result = table.metagen(all=True)
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30), ("dye", 3, 40)]
    assert "pending_rows" not in result.counts
    assert result.notes == ()


@pytest.mark.parametrize("order", [*permutations([DAY_1, DAY_2, None])])
def test_the_order_in_which_keys_are_published_changes_nothing(
    table: Table, order: tuple[str | None, ...]
) -> None:
    two_days(table)
    for key in order:
        table.metagen(partition_key=key)
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30), ("dye", 3, 40)]
    assert content(table, event_time=1) == [("ax", 1, 10), ("bow", 1, 20)]
    assert check_table(table) == []


def test_a_metagen_reports_the_partition_keys_that_stay_pending_and_since_when(
    table: Table, clock: ManualClock
) -> None:
    two_days(table)
    clock.at_us += 2 * HOUR_US
    result = table.metagen(partition_key=DAY_2)
    assert [note.partition(";")[0] for note in result.notes] == [
        f"partition key {DAY_1} stays pending: 1 segment, 2 rows, ingested 2 hours ago",
        "rows without a partition key stay pending: 1 segment, 2 rows, ingested 2 hours ago",
    ]
    assert [pending["partition_key"] for pending in result.examples] == [DAY_1, None]
    assert [pending["rows"] for pending in result.examples] == [2, 2]


def test_many_pending_partition_keys_are_reported_as_a_count(table: Table) -> None:
    for day in range(10, 20):
        table.ingest(*rows(FIRST), partition_key=f"2026-11-{day}")
    notes = table.metagen().notes
    assert len(notes) == 6
    assert notes[-1].startswith("5 more partition keys stay pending: 5 segments, 10 rows")


def test_a_metagen_of_a_key_without_pending_rows_commits_nothing(table: Table) -> None:
    two_days(table)
    result = table.metagen(partition_key="2026-11-30", token="t")
    assert result.version == table.snapshot_at().version
    assert result.notes[0] == "no row of partition key '2026-11-30' is pending"
    assert table.metagen(partition_key="2026-11-30", token="t").repeated


def test_a_token_that_nobody_ingested_with_is_an_error(table: Table) -> None:
    two_days(table)
    with pytest.raises(NotFoundError, match="no ingest with token 'day 3'"):
        table.metagen(tokens=["day 1", "day 3"])
    assert content(table) == []


def test_a_token_whose_rows_are_visible_is_not_an_error(table: Table) -> None:
    two_days(table)
    table.metagen(partition_key=DAY_1)
    assert table.metagen(tokens=["day 1"]).counts["rows"] == 0
    assert table.metagen(tokens=["day 1", "no day"]).counts["rows"] == 2


def test_a_token_of_another_operation_is_an_error(table: Table) -> None:
    two_days(table)
    table.metagen(partition_key=DAY_1, token="m")
    with pytest.raises(InvalidInputError, match="belongs to the metagen"):
        table.metagen(tokens=["m"])


def test_a_token_that_the_table_has_forgotten_is_known_by_its_commit(table: Table) -> None:
    table.set_properties({"token_keep": 1})
    two_days(table)
    table.metagen(all=True)
    assert table.metagen(tokens=["day 1"]).counts["rows"] == 0


def test_only_one_of_key_tokens_and_all_is_accepted(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="got partition_key, all"):
        table.metagen(partition_key=DAY_1, all=True)
    with pytest.raises(InvalidInputError, match="tokens is empty"):
        table.metagen(tokens=[])


# Discards


def test_discarded_rows_never_become_visible(table: Table) -> None:
    two_days(table)
    version = table.snapshot_at().version
    result = table.discard(partition_key=DAY_1)
    assert result.counts == {"segments": 1, "rows": 2, "files": 1}
    assert not table.log.read_commit(result.version or 0).changes_view
    table.metagen(all=True)
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30), ("dye", 3, 40)]
    assert DAY_1 not in table.snapshot_at().partitions
    state = table.snapshot_at()
    assert (state.root.rows, state.root.pending) == (4, 0)
    assert len(table.snapshot_at(version).files) == 3
    assert len(state.files) == 2
    assert check_table(table) == []


def test_one_ingest_is_discarded_by_its_token(table: Table) -> None:
    table.ingest(*rows(FIRST), partition_key=DAY_1, token="try 1")
    table.ingest(*rows(SECOND), partition_key=DAY_1, token="try 2")
    table.discard(token="try 1")
    table.metagen(partition_key=DAY_1)
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30)]
    assert check_table(table) == []


def test_a_discard_with_its_own_token_is_done_once(table: Table) -> None:
    two_days(table)
    first = table.discard(partition_key=DAY_1, job_token="d")
    again = table.discard(partition_key=DAY_1, job_token="d")
    assert again == replace(first, repeated=True)


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"partition_key": DAY_1}, "are visible already"),
        ({"token": "day 1"}, "are visible already"),
        ({"partition_key": "2026-11-30"}, "no ingest of partition key '2026-11-30'"),
        ({"token": "day 3"}, "no ingest with token 'day 3'"),
        (
            {"token": "day 2"},
            "discarded the rows that were ingested with token 'day 2'; nothing is left to discard",
        ),
        ({}, "one of partition_key and token"),
        ({"partition_key": DAY_1, "token": "day 1"}, "one of partition_key and token"),
    ],
)
def test_discard_of_visible_or_unknown_rows_is_an_error(
    table: Table, given: dict[str, str], problem: str
) -> None:
    two_days(table)
    table.metagen(partition_key=DAY_1)
    table.discard(token="day 2")
    before = table.snapshot_at().version
    with pytest.raises((InvalidInputError, NotFoundError), match=problem):
        table.discard(**given)
    assert table.snapshot_at().version == before


def test_tokens_of_discarded_rows_cannot_be_published(table: Table) -> None:
    two_days(table)
    table.discard(partition_key=DAY_1)
    with pytest.raises(InvalidInputError, match="discarded the rows"):
        table.metagen(tokens=["day 1"])


def test_a_restore_brings_discarded_rows_back_as_pending(table: Table) -> None:
    two_days(table)
    before = table.snapshot_at()
    table.discard(partition_key=DAY_1)
    table.restore(version=before.version)
    after = table.snapshot_at()
    assert after.pending_segments == before.pending_segments
    assert after.partitions == before.partitions
    table.metagen(partition_key=DAY_1)
    assert content(table) == [("ax", 1, 10), ("bow", 1, 20)]
    assert check_table(table) == []


def test_a_restore_to_after_the_discard_takes_the_rows_back_again(table: Table) -> None:
    two_days(table)
    before = table.snapshot_at().version
    discarded = table.discard(partition_key=DAY_1).version
    table.restore(version=before)
    table.metagen(all=True)
    table.restore(version=discarded)
    table.metagen(all=True)
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30), ("dye", 3, 40)]
    assert check_table(table) == []


# Earlier tries


def test_an_ingest_replaces_the_pending_rows_of_its_earlier_tries(table: Table) -> None:
    table.ingest(*rows(FIRST), partition_key=DAY_1, token="try 1")
    result = table.ingest(
        *rows(SECOND), partition_key=DAY_1, token="try 2", replaces=["try 1", "never"]
    )
    assert result.counts["replaced"] == 2
    assert "discarded 2 pending rows of earlier tries" in result.notes[0]
    assert result.notes[1] == (
        "no ingest has committed with token 'never', which these rows replace; "
        "an ingest with it that still runs can no longer commit"
    )
    table.metagen(partition_key=DAY_1)
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30)]
    assert check_table(table) == []


def test_an_ingest_without_rows_discards_the_rows_of_its_earlier_try(table: Table) -> None:
    table.ingest(*rows(FIRST), partition_key=DAY_1, token="try 1")
    result = table.ingest(*rows([]), partition_key=DAY_1, replaces=["try 1"])
    assert result.version == 2
    assert result.counts["replaced"] == 2
    assert table.snapshot_at().root.pending == 0
    assert check_table(table) == []


def test_visible_rows_of_an_earlier_try_stay(table: Table) -> None:
    table.ingest(*rows(FIRST), token="try 1")
    table.metagen()
    result = table.ingest(*rows(SECOND), token="try 2", replaces=["try 1"])
    assert result.counts["replaced"] == 0
    table.metagen()
    assert content(table) == [("ax", 2, 11), ("bow", 1, 20), ("cap", 2, 30)]


def test_an_inline_ingest_replaces_pending_rows(table: Table) -> None:
    table.ingest(*rows(FIRST), token="try 1")
    result = table.ingest(*rows(SECOND), token="try 2", replaces=["try 1"], metadata="inline")
    assert result.counts["replaced"] == 2
    assert not [note for note in result.notes if "wait for a metagen" in note]
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30)]
    assert check_table(table) == []


def test_a_repeat_of_an_ingest_that_replaced_is_not_applied_again(table: Table) -> None:
    table.ingest(*rows(FIRST), token="try 1")
    first = table.ingest(*rows(SECOND), token="try 2", replaces=["try 1"])
    again = table.ingest(*rows(SECOND), token="try 2", replaces=["try 1"])
    assert again == replace(first, repeated=True)


DISCARDED = "version 2 discarded the rows that were ingested with token '{}'.*with another token"


@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_a_repeat_of_an_ingest_whose_rows_were_discarded_is_an_error(
    table: Table, metadata: str
) -> None:
    table.ingest(*rows(FIRST), partition_key=DAY_1, token="try 1")
    table.discard(token="try 1")
    with pytest.raises(InvalidInputError, match=DISCARDED.format("try 1")):
        table.ingest(*rows(SECOND), partition_key=DAY_1, token="try 1", metadata=metadata)
    table.ingest(*rows(SECOND), partition_key=DAY_1, token="try 2")
    table.metagen(partition_key=DAY_1)
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30)]
    assert check_table(table) == []


def test_a_repeat_of_an_ingest_whose_rows_another_try_replaced_is_an_error(table: Table) -> None:
    table.ingest(*rows(FIRST), token="try 1")
    table.ingest(*rows(SECOND), token="try 2", replaces=["try 1"])
    with pytest.raises(InvalidInputError, match=DISCARDED.format("try 1")):
        table.ingest(*rows(FIRST), token="try 1")


def test_a_repeat_of_an_ingest_whose_rows_are_discarded_while_it_runs_is_an_error(
    table: Table,
) -> None:
    def others() -> None:
        table.ingest(*rows(FIRST), token="try 1")
        table.discard(token="try 1")

    with pytest.raises(InvalidInputError, match=DISCARDED.format("try 1")):
        raced(table, by=others).ingest(*rows(FIRST), token="try 1")


def test_a_repeat_by_days_after_a_discard_of_one_of_them_is_an_error(table: Table) -> None:
    table.add_columns({"day": "string"})
    ingest_days(table, {FRIDAY: "ax", SATURDAY: "bow"}, token="try 1")
    table.discard(token="try 1")
    with pytest.raises(InvalidInputError, match="discarded the rows that were ingested with token"):
        ingest_days(table, {FRIDAY: "ax", SATURDAY: "bow"}, token="try 1")


def test_a_repeat_by_days_names_the_restore_that_undid_one_of_them(table: Table) -> None:
    before = table.add_columns({"day": "string"}).version
    ingest_days(table, {FRIDAY: "ax"}, token=f"try 1/{FRIDAY}")
    table.restore(version=before)
    ingest_days(table, {FRIDAY: "ax", SATURDAY: "bow"}, token="try 1")
    notes = next(table.commits()).result["notes"]
    assert any(f"a restore of version {before}, undid" in note for note in notes)


def test_a_repeat_is_accepted_after_a_restore_brought_discarded_rows_back(table: Table) -> None:
    first = table.ingest(*rows(FIRST), token="try 1")
    table.discard(token="try 1")
    table.restore(version=first.version)
    assert table.ingest(*rows(FIRST), token="try 1") == replace(first, repeated=True)


def test_a_repeat_of_an_ingest_without_rows_is_accepted(table: Table) -> None:
    first = table.ingest(*rows([]), token="try 1")
    table.ingest(*rows(SECOND), token="try 2")
    table.discard(token="try 2")
    assert table.ingest(*rows([]), token="try 1") == replace(first, repeated=True)


def test_an_ingest_does_not_replace_itself(table: Table) -> None:
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="the token of this ingest itself"):
            table.ingest(*rows(FIRST), token="try 1", replaces=["try 1"])
        table.ingest(*rows(FIRST), token="try 1")


def test_replaces_is_a_list(table: Table) -> None:
    with pytest.raises(InvalidInputError, match=r"replaces=\['try 1'\]"):
        table.ingest(*rows(FIRST), replaces="try 1")


# Races


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced(InProcess):
    """Whenever tasks have run, and nothing is committed, others do something."""

    others: Callable[[], object]

    def run(self, *given: Any) -> Any:
        return self._before_others(InProcess.run(self, *given))

    def by_partition(self, *given: Any) -> Any:
        return self._before_others(InProcess.by_partition(self, *given))

    def stored_by_key_hash(self, *given: Any, **named: Any) -> Any:
        return self._before_others(InProcess.stored_by_key_hash(self, *given, **named))

    def _before_others(self, outputs: Any) -> Any:
        self.others()
        return outputs


def raced(table: Table, *, by: Callable[[], object]) -> Table:
    """Return the table for a job that is overtaken when its tasks have run first."""
    left = [by]
    return replace(table, executor=Raced(others=lambda: left and left.pop()()))


def test_a_metagen_whose_segments_were_discarded_plans_again(table: Table) -> None:
    two_days(table)
    overtaken = raced(table, by=lambda: table.discard(partition_key=DAY_1))
    result = metagen(overtaken, None, EVERYTHING)
    assert result.counts["segments"] == 2
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30), ("dye", 3, 40)]
    assert content(table, event_time=1) == []
    assert check_table(table) == []


def test_a_metagen_whose_segments_were_all_discarded_commits_nothing(table: Table) -> None:
    two_days(table)
    overtaken = raced(table, by=lambda: table.discard(partition_key=DAY_1))
    result = metagen(overtaken, None, Selection(partition_key=DAY_1))
    assert result.counts["rows"] == 0
    assert result.notes[0] == f"no row of partition key {DAY_1!r} is pending"
    assert check_table(table) == []


def test_a_metagen_does_not_publish_the_try_that_replaced_its_rows(table: Table) -> None:
    """The rows came after the MetaGen began: nobody may have checked them."""
    table.ingest(*rows(FIRST), partition_key=DAY_1, token="try 1")
    table.ingest(*rows(THIRD), partition_key=DAY_1, token="other")
    overtaken = raced(
        table,
        by=lambda: table.ingest(
            *rows(SECOND), partition_key=DAY_1, token="try 2", replaces=["try 1"]
        ),
    )
    metagen(overtaken, None, Selection(partition_key=DAY_1))
    assert content(table) == [("dye", 3, 40)]
    assert {pending.token for pending in table.snapshot_at().pending_segments.values()} == {"try 2"}
    table.metagen(partition_key=DAY_1)
    assert content(table) == [("ax", 2, 11), ("cap", 2, 30), ("dye", 3, 40)]
    assert check_table(table) == []


def test_a_discard_of_other_segments_does_not_disturb_a_metagen(table: Table) -> None:
    two_days(table)
    overtaken = raced(table, by=lambda: table.discard(partition_key=DAY_2))
    assert metagen(overtaken, None, Selection(partition_key=DAY_1)).counts["rows"] == 2
    assert check_table(table) == []


def test_a_metagen_that_is_discarded_again_and_again_gives_up(table: Table) -> None:
    tokens = [f"t{number}" for number in range(20)]
    for token in tokens:
        table.ingest(*rows(FIRST), token=token)
    overtaken = replace(table, executor=Raced(others=lambda: table.discard(token=tokens.pop())))
    with pytest.raises(DiscardedError):
        metagen(overtaken, None, EVERYTHING)
    assert content(table) == []
    assert len(table.snapshot_at().pending) == 4
    assert check_table(table) == []


def test_a_discard_that_loses_to_a_metagen_fails(table: Table) -> None:
    two_days(table)
    seen = table.snapshot_at()
    table.metagen(partition_key=DAY_1)
    with pytest.raises(ConflictError, match="visible meanwhile; nothing was discarded"):
        discard_pending(table.log, seen, Selection(partition_key=DAY_1))
    assert content(table) == [("ax", 1, 10), ("bow", 1, 20)]
    assert check_table(table) == []


def test_the_second_of_two_concurrent_discards_commits_nothing(table: Table) -> None:
    two_days(table)
    seen = table.snapshot_at()
    table.discard(partition_key=DAY_1)
    result = discard_pending(table.log, seen, Selection(partition_key=DAY_1))
    assert result.version is None
    assert result.counts == {"segments": 0, "rows": 0, "files": 0}


def test_rows_that_are_ingested_while_a_discard_runs_stay_pending(table: Table) -> None:
    two_days(table)
    seen = table.snapshot_at()
    table.ingest(*rows(THIRD), partition_key=DAY_1, token="try 2")
    discard_pending(table.log, seen, Selection(partition_key=DAY_1))
    table.metagen(partition_key=DAY_1)
    assert content(table) == [("dye", 3, 40)]


def test_rows_that_a_metagen_made_visible_meanwhile_are_not_replaced(table: Table) -> None:
    two_days(table)
    overtaken = raced(table, by=lambda: table.metagen(partition_key=DAY_1))
    result = overtaken.ingest(*rows(SECOND), partition_key=DAY_1, token="try 2", replaces=["day 1"])
    assert result.counts["replaced"] == 0
    assert content(table) == [("ax", 1, 10), ("bow", 1, 20)]
    assert check_table(table) == []


def test_a_compaction_commits_in_spite_of_a_discard(table: Table) -> None:
    table.ingest(*rows(FIRST), metadata="inline")
    table.ingest(*rows(SECOND), metadata="inline")
    table.ingest(*rows(THIRD), partition_key=DAY_1)
    raced(table, by=lambda: table.discard(partition_key=DAY_1)).compact()
    assert len(table.snapshot_at().files) == 1
    assert check_table(table) == []


def test_retention_deletes_files_of_discarded_rows_when_no_version_needs_them(
    table: Table, clock: ManualClock
) -> None:
    two_days(table)
    [path] = [path for path, f in table.snapshot_at().files.items() if f.segments[0] >> 32 == 1]
    table.discard(partition_key=DAY_1)
    table.retain(window="30d", grace="1h")
    assert path in {stored.path for stored in table.storage.list("data/")}
    clock.at_us += 40 * 24 * HOUR_US
    table.metagen(all=True)
    clock.at_us += 40 * 24 * HOUR_US
    table.retain(window="1d", grace="1h")
    assert path not in {stored.path for stored in table.storage.list("data/")}
    assert check_table(table) == []


def test_a_savepoint_keeps_the_files_of_discarded_rows(table: Table, clock: ManualClock) -> None:
    two_days(table)
    table.savepoint("before")
    table.discard(partition_key=DAY_1)
    table.metagen(all=True)
    clock.at_us += 40 * 24 * HOUR_US
    table.retain(window="1d", grace="1h")
    table.restore(savepoint="before")
    table.metagen(partition_key=DAY_1)
    assert content(table) == [("ax", 1, 10), ("bow", 1, 20)]
    assert check_table(table) == []


# Business snapshots: what is held back stays held back


FRIDAY, SATURDAY = "2022-07-15", "2022-07-16"


@pytest.fixture
def days(table: Table) -> Table:
    """Friday is open, Saturday is held back for two hours; each has a partition key."""
    table.set_properties({"drift": "2h"})
    for day, batch in ((FRIDAY, FIRST), (SATURDAY, SECOND)):
        table.ingest(*rows(batch), partition_key=day, business_snapshot=day, token=day)
    return table


def test_held_back_rows_of_a_key_stay_held_back(days: Table) -> None:
    result = days.metagen(partition_key=SATURDAY)
    assert result.counts["rows"] == 0
    assert result.notes[0] == f"the pending rows of partition key {SATURDAY!r} are held back"
    days.metagen(partition_key=FRIDAY)
    assert content(days) == [("ax", 1, 10), ("bow", 1, 20)]


def test_a_day_is_finished_only_when_its_own_key_was_published(
    days: Table, clock: ManualClock
) -> None:
    clock.at_us += 3 * HOUR_US
    days.metagen(partition_key=SATURDAY)
    assert days.snapshot_at().root.business.open == FRIDAY
    days.metagen(partition_key=FRIDAY)
    days.metagen(partition_key=SATURDAY)
    assert days.snapshot_at().root.business.finished == (FRIDAY,)
    assert content(days, business_snapshot=FRIDAY) == [("ax", 1, 10), ("bow", 1, 20)]
    assert content(days) == [("ax", 2, 11), ("bow", 1, 20), ("cap", 2, 30)]
    assert check_table(days) == []


def test_a_day_whose_rows_were_discarded_holds_nothing_back(
    days: Table, clock: ManualClock
) -> None:
    clock.at_us += 3 * HOUR_US
    days.discard(partition_key=FRIDAY)
    days.metagen(partition_key=SATURDAY, token="m")
    assert content(days, business_snapshot=FRIDAY) == []
    assert content(days) == [("ax", 2, 11), ("cap", 2, 30)]
    assert days.metagen(partition_key=SATURDAY, token="m").counts["rows"] == 2
    assert check_table(days) == []


def test_a_metagen_of_all_publishes_day_by_day(days: Table, clock: ManualClock) -> None:
    clock.at_us += 3 * HOUR_US
    days.metagen(all=True)
    assert content(days, business_snapshot=FRIDAY) == [("ax", 1, 10), ("bow", 1, 20)]
    assert content(days) == [("ax", 2, 11), ("bow", 1, 20), ("cap", 2, 30)]
    assert check_table(days) == []


def test_a_try_by_business_snapshots_replaces_each_of_its_commits(table: Table) -> None:
    table.set_properties({"drift": "2h"})
    table.add_columns({"day": "string"})
    for attempt, replaces in (("try 1", []), ("try 2", ["try 1"])):
        columns = {"sku": ["ax", "bow"], "at": [1, 1], "price": [1, 2]}
        batch = pa.table(columns, schema=SCHEMA).append_column("day", [[FRIDAY, SATURDAY]])
        table.ingest(
            batch,
            [False, False],
            token=attempt,
            replaces=replaces,
            business_snapshot_column="day",
        )
    pending = table.snapshot_at().pending_segments.values()
    assert {segment.token for segment in pending} == {f"try 2/{FRIDAY}", "try 2"}
    assert table.discard(token="try 2").counts["rows"] == 2
    assert check_table(table) == []


def test_a_discarded_day_that_was_a_mistake_does_not_close_the_days_before_it(
    days: Table, clock: ManualClock
) -> None:
    mistake = "2062-07-16"
    days.ingest(*rows(THIRD), business_snapshot=mistake, token="mistake")
    days.discard(token="mistake")
    assert days.snapshot_at().root.business.held_back.keys() == {SATURDAY}
    clock.at_us += 3 * HOUR_US
    days.metagen(all=True)
    assert days.snapshot_at().root.business.open == SATURDAY
    days.ingest(*rows(THIRD), business_snapshot="2022-07-17")
    assert check_table(days) == []


def ingest_days(table: Table, sku_by_day: dict[str, str], **options: Any) -> None:
    """Ingest a row a day, each day in a commit of its own."""
    skus = [*sku_by_day.values()]
    columns = {"sku": skus, "at": [1] * len(skus), "price": [1] * len(skus)}
    batch = pa.table(columns, schema=SCHEMA).append_column("day", [[*sku_by_day]])
    table.ingest(batch, [False] * len(skus), business_snapshot_column="day", **options)


def test_the_first_commit_of_a_try_by_days_replaces_all_of_an_earlier_try(table: Table) -> None:
    table.set_properties({"drift": "2h"})
    table.add_columns({"day": "string"})
    ingest_days(table, {FRIDAY: "bad"}, token="try 1")
    ingest_days(table, {FRIDAY: "good", SATURDAY: "ax"}, token="try 2", replaces=["try 1"])
    first = next(c for c in table.commits() if c.token == f"try 2/{FRIDAY}").version
    pending = table.snapshot_at(first).pending_segments.values()
    assert {segment.token for segment in pending} == {f"try 2/{FRIDAY}"}


def test_an_inline_ingest_by_days_publishes_what_is_due_of_every_key(
    table: Table, clock: ManualClock
) -> None:
    table.set_properties({"drift": "2h"})
    table.add_columns({"day": "string"})
    ingest_days(table, {FRIDAY: "ax", SATURDAY: "bow"}, partition_key="K1", metadata="inline")
    clock.at_us += 3 * HOUR_US
    ingest_days(table, {SATURDAY: "cap"}, partition_key="K2", metadata="inline")
    assert {row[0] for row in content(table)} == {"ax", "bow", "cap"}
    assert table.snapshot_at().root.pending == 0


def test_a_replaced_try_that_commits_late_fails_and_adds_no_rows(table: Table) -> None:
    table.ingest(*rows(FIRST), partition_key=DAY_1, token="try 2", replaces=["try 1"])
    with pytest.raises(InvalidInputError, match="version 1 replaced the ingest with token 'try 1'"):
        table.ingest(*rows(SECOND), partition_key=DAY_1, token="try 1")
    with pytest.raises(InvalidInputError, match="version 1 replaced the ingest with token 'try 1'"):
        table.metagen(tokens=["try 1"])
    table.metagen(partition_key=DAY_1)
    assert content(table) == [("ax", 1, 10), ("bow", 1, 20)]
    assert check_table(table) == []


def test_a_metagen_that_plans_again_publishes_only_its_selection(
    days: Table, clock: ManualClock
) -> None:
    days.ingest(*rows(THIRD), business_snapshot=FRIDAY, token="stray")
    clock.at_us += 3 * HOUR_US
    raced(days, by=lambda: days.discard(token="stray")).metagen(all=True)
    assert {row[0] for row in content(days)} == {"ax", "bow", "cap"}
    assert check_table(days) == []


def test_a_partition_key_is_unknown_after_a_restore_to_before_its_ingest(table: Table) -> None:
    table.ingest(*rows(FIRST), metadata="inline")
    before = table.snapshot_at().version
    table.ingest(*rows(SECOND), partition_key=DAY_1, token="day 1")
    table.ingest(*rows(THIRD), metadata="inline")
    table.restore(version=before)
    assert visible_ingests(table.snapshot_at()) == {}
    with pytest.raises(NotFoundError, match="has no ingest of partition key"):
        table.discard(partition_key=DAY_1)
    assert check_table(table) == []
