"""Business snapshots: the next one waits for the drift time, an earlier one is refused."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.definition.business_snapshots import BusinessSnapshots
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.duration import parse_duration
from opal_lake.errors import (
    CommitUnknownError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OpalError,
    StorageError,
)
from opal_lake.inspect.describe import describe, history_rows
from opal_lake.log.commit import encode_commit
from opal_lake.log.version_window import is_readable
from opal_lake.storage import Storage
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from tests.kit.business_model import BusinessModel, RefusedError
from tests.kit.check import check_table
from tests.kit.clocks import SilentStore, SkewedClock, TrueClock
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.kit.ids import CountingIds
from tests.opal_lake.savepoints.build import (
    FRIDAY,
    SATURDAY,
    SCHEMA,
    STREAM,
    SUNDAY,
    Row,
    arrow,
)
from tests.opal_lake.shop import copied

HOUR_US = 3_600_000_000


def create(drift: str = "0s", storage: Storage | None = None, **properties: int | str) -> Table:
    layout = TableLayout(
        keys=["user"],
        delta="at",
        properties={"drift": drift, "checkpoint_commits": 3, **properties},
    )
    return create_on(
        storage or MemoryStorage(), plan_spec(SCHEMA, layout), ManualClock(), CountingIds()
    )


def cities(table: Table, **view: object) -> dict[str, str]:
    return {row["user"]: row["city"] for row in table.read(**view).to_pylist()}  # type: ignore[arg-type]  # the views are the tests' own


def pass_time(table: Table, hours: float) -> None:
    clock = table.log.clock
    assert isinstance(clock, ManualClock)
    clock.at_us += int(hours * HOUR_US)


@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_day_shows_the_last_row_of_each_key_even_if_it_came_late(metadata: str) -> None:
    """User A moves twice: a day has the last city, even if it comes late."""
    table = create(drift="2h")
    stream = [
        [("A", 1, "Beijing", FRIDAY), ("B", 1, "Hangzhou", FRIDAY)],
        [("A", 2, "Hangzhou", FRIDAY)],
        [
            ("B", 5, "Beijing", SATURDAY),
            ("A", 3, "Wuhan", FRIDAY),
        ],  # Saturday has begun in one partition of the stream only
        [("C", 4, "Wuhan", FRIDAY), ("A", 6, "Beijing", SATURDAY)],
    ]
    for number, batch in enumerate(stream):
        table.ingest(
            arrow(batch),
            metadata=metadata,
            business_snapshot_column="day",
            application=("stream", number),
        )
        table.metagen()
        pass_time(table, 0.4)
    friday = {"A": "Wuhan", "B": "Hangzhou", "C": "Wuhan"}
    assert cities(table) == cities(table, business_snapshot=FRIDAY) == friday
    with pytest.raises(
        NotFoundError, match=rf"{SATURDAY} are held back until {FRIDAY} is finished"
    ):
        table.read(business_snapshot=SATURDAY)
    pass_time(table, 2)
    table.metagen()
    saturday = {"A": "Beijing", "B": "Beijing", "C": "Wuhan"}
    assert cities(table) == cities(table, business_snapshot=SATURDAY) == saturday
    assert cities(table, business_snapshot=FRIDAY) == friday
    with pytest.raises(
        InvalidInputError,
        match=f"{FRIDAY} is not after {FRIDAY}, which is finished; ingest its rows as {SATURDAY}",
    ):
        table.ingest(arrow([("A", 4, "Nowhere", FRIDAY)]), business_snapshot=FRIDAY)
    assert cities(table) == saturday
    assert check_table(table) == []
    assert commits_hold_one_each(table)


def test_without_a_drift_time_the_next_metagen_finishes_the_day_before() -> None:
    table = create()
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), business_snapshot=FRIDAY)
    assert cities(table, business_snapshot=FRIDAY) == {}  # it is open, and nothing is visible yet
    table.ingest(arrow([("A", 2, "Wuhan", FRIDAY)]), business_snapshot=FRIDAY)
    table.ingest(arrow([("A", 3, "Hangzhou", SATURDAY)]), business_snapshot=SATURDAY)
    result = table.metagen(token="m")
    assert table.metagen(token="m") == replace(result, repeated=True)
    assert cities(table, business_snapshot=FRIDAY) == {"A": "Wuhan"}
    assert cities(table) == {"A": "Hangzhou"}
    listed = [(row["operation"], row["business_snapshot"]) for row in history_rows(table)]
    assert listed[:5] == [
        ("metagen", SATURDAY),
        ("finish_business_snapshot", FRIDAY),
        ("metagen", FRIDAY),
        ("ingest", SATURDAY),
        ("ingest", FRIDAY),
    ]
    assert describe(table)["business_snapshots"] == {
        "finished": [FRIDAY],
        "open": SATURDAY,
        "held": [],
    }


def test_an_inline_ingest_of_the_next_day_finishes_the_one_before() -> None:
    table = create()
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), metadata="inline", business_snapshot=FRIDAY)
    table.ingest(
        arrow([("A", 2, "Wuhan", SATURDAY)]), metadata="inline", business_snapshot=SATURDAY
    )
    assert cities(table, business_snapshot=FRIDAY) == {"A": "Beijing"}
    assert cities(table, business_snapshot=SATURDAY) == cities(table) == {"A": "Wuhan"}


def test_an_inline_ingest_waits_for_pending_rows_of_the_day_before() -> None:
    table = create()
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), business_snapshot=FRIDAY)
    result = table.ingest(
        arrow([("A", 2, "Wuhan", SATURDAY)]),
        metadata="inline",
        token="s",
        business_snapshot=SATURDAY,
    )
    assert any(
        f"{SATURDAY} are held back until {FRIDAY} is finished" in note for note in result.notes
    )
    assert table.ingest(
        arrow([]), metadata="inline", token="s", business_snapshot=SATURDAY
    ).repeated
    assert cities(table) == {}
    table.metagen()
    assert cities(table, business_snapshot=FRIDAY) == {"A": "Beijing"}
    assert cities(table) == {"A": "Wuhan"}


def test_an_inline_batch_of_the_next_day_processes_held_back_rows_of_that_day() -> None:
    table = create(drift="1h")
    table.ingest(
        arrow([("A", 1, "Beijing", FRIDAY), ("A", 2, "Wuhan", SATURDAY)]),
        metadata="inline",
        business_snapshot_column="day",
    )
    pass_time(table, 2)
    table.ingest(
        arrow([("B", 3, "Xian", SATURDAY)]), metadata="inline", business_snapshot_column="day"
    )
    assert cities(table) == {"A": "Wuhan", "B": "Xian"}
    assert describe(table)["counts"]["segments_pending"] == 0


def test_an_inline_ingest_whose_rows_are_bad_finishes_nothing() -> None:
    table = create()
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), metadata="inline", business_snapshot=FRIDAY)
    bad = arrow([("A", 2, "Wuhan", SATURDAY)]).set_column(0, "user", pa.array([None], pa.string()))
    with pytest.raises(InvalidInputError, match="key column 'user' is null"):
        table.ingest(bad, metadata="inline", business_snapshot=SATURDAY)
    table.ingest(arrow([("A", 3, "Hangzhou", FRIDAY)]), metadata="inline", business_snapshot=FRIDAY)
    assert cities(table, business_snapshot=FRIDAY) == {"A": "Hangzhou"}


def test_business_snapshot_can_be_finished_before_its_drift_time_ends() -> None:
    table = create(drift="30d")
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), business_snapshot=FRIDAY)
    table.ingest(arrow([("A", 2, "Wuhan", SATURDAY)]), business_snapshot=SATURDAY)
    with pytest.raises(
        InvalidInputError,
        match=f"1 segment is pending, and would not be in business snapshot {FRIDAY}",
    ):
        table.finish_business_snapshot(FRIDAY)
    table.metagen()
    with pytest.raises(
        InvalidInputError, match=f"'{SATURDAY}' is not the open business snapshot, .* is {FRIDAY}"
    ):
        table.finish_business_snapshot(SATURDAY)
    assert table.finish_business_snapshot(FRIDAY).version is not None
    assert table.finish_business_snapshot(FRIDAY).version is None  # the same again changes nothing
    assert cities(table) == {
        "A": "Beijing"
    }  # Saturday's rows wait for a metagen, like those of any open one
    table.metagen()
    assert cities(table) == {"A": "Wuhan"}


def test_changes_go_from_one_business_snapshot_to_the_next() -> None:
    table = create()
    for day, rows in {
        FRIDAY: [("A", 1, "Beijing"), ("B", 1, "Wuhan")],
        SATURDAY: [("A", 2, "Wuhan")],
        SUNDAY: [("B", 3, "Xian")],
    }.items():
        table.ingest(arrow([(*row, day) for row in rows]), metadata="inline", business_snapshot=day)
    net = (
        table.changes(FRIDAY, SATURDAY, mode="netChanges")
        .select(["_change_type", "user", "city"])
        .to_pylist()
    )
    assert [tuple(row.values()) for row in net] == [
        ("update_preimage", "A", "Beijing"),
        ("update_postimage", "A", "Wuhan"),
    ]
    to_open = (
        table.changes(SATURDAY, SUNDAY, mode="netChanges")
        .select(["_change_type", "user", "city"])
        .to_pylist()
    )
    assert [tuple(row.values()) for row in to_open] == [
        ("update_preimage", "B", "Wuhan"),
        ("update_postimage", "B", "Xian"),
    ]
    assert table.changes(SUNDAY).num_rows == 0  # what came after it


def test_a_finished_business_snapshot_outlives_retention_and_a_released_one_does_not() -> None:
    table = create()
    for day, row in {
        FRIDAY: ("A", 1, "Beijing"),
        SATURDAY: ("A", 2, "Wuhan"),
        SUNDAY: ("A", 3, "Xian"),
    }.items():
        table.ingest(arrow([(*row, day)]), metadata="inline", business_snapshot=day)
    table.retain(window="0s", grace="0s")
    assert cities(table, business_snapshot=FRIDAY) == {"A": "Beijing"}
    with pytest.raises(NotFoundError, match=f"and business snapshots {FRIDAY}, {SATURDAY}"):
        table.read(version=0)
    table.release(FRIDAY)
    with pytest.raises(
        NotFoundError,
        match=(
            f"unknown business snapshot '{FRIDAY}'; "
            f"the readable ones are {SATURDAY}, {SUNDAY} .open."
        ),
    ):
        table.read(business_snapshot=FRIDAY)
    with pytest.raises(
        InvalidInputError, match=f"{FRIDAY} is not after {SATURDAY}, which is finished"
    ):
        table.ingest(arrow([("A", 4, "Nowhere", FRIDAY)]), business_snapshot=FRIDAY)
    assert cities(table, business_snapshot=SATURDAY) == {"A": "Wuhan"}
    assert check_table(table) == []


@pytest.mark.parametrize("drift", ["0s", "2h"])
@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_a_restore_takes_a_stray_business_snapshot_back(drift: str, metadata: str) -> None:
    """A row of a far day finishes the open one at once, or after a drift time."""
    table = create(drift=drift)
    for day, row in {FRIDAY: ("A", 1, "Beijing"), SATURDAY: ("A", 2, "Wuhan")}.items():
        table.ingest(arrow([(*row, day)]), metadata=metadata, business_snapshot=day)
        pass_time(table, 3)
        table.metagen()
    before = table.snapshot_at().version
    business = describe(table)["business_snapshots"]
    assert business == {"finished": [FRIDAY], "open": SATURDAY, "held": []}
    table.ingest(
        arrow([("B", 3, "Nowhere", "2999-01-01")]),
        metadata=metadata,
        business_snapshot="2999-01-01",
    )
    if metadata == "batch" and drift == "0s":
        table.metagen()
    next_day = arrow([("A", 4, "Xian", SUNDAY)])
    if drift == "0s":
        refused(
            table,
            f"{SUNDAY} is (before|not after)",
            lambda: table.ingest(next_day, business_snapshot=SUNDAY),
        )
    planned = table.restore(version=before, business_snapshots=True, dry_run=True)
    assert (
        f"business snapshots are those of version {before} again: {SATURDAY} is open"
        in planned.notes
    )
    result = table.restore(version=before, business_snapshots=True)
    released = [note for note in result.notes if "no longer finished" in note]
    expected = []
    if drift == "0s":
        expected = [
            f"business snapshots no longer finished: {SATURDAY}; their savepoints are released"
        ]
    assert released == expected
    assert planned.notes == result.notes
    assert describe(table)["business_snapshots"] == business
    assert cities(table) == {"A": "Wuhan"}
    table.ingest(next_day, metadata=metadata, business_snapshot=SUNDAY)
    pass_time(table, 3)
    table.metagen()
    assert describe(table)["business_snapshots"] == {
        "finished": [FRIDAY, SATURDAY],
        "open": SUNDAY,
        "held": [],
    }
    assert cities(table, business_snapshot=SATURDAY) == {"A": "Wuhan"}
    assert cities(table) == {"A": "Xian"}
    assert check_table(table) == []


def test_restore_takes_back_a_stray_business_snapshot_without_rows() -> None:
    table = create()
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), metadata="inline", business_snapshot=FRIDAY)
    table.ingest(arrow([]), metadata="inline", business_snapshot="2999-01-01")
    assert describe(table)["business_snapshots"]["open"] == "2999-01-01"
    assert table.restore(version=1).version is None, "it shows the same"
    assert describe(table)["business_snapshots"]["open"] == "2999-01-01"
    done = table.restore(version=1, business_snapshots=True)
    assert done.version is not None
    assert not table.log.read_commit(done.version).changes_view
    assert describe(table)["business_snapshots"] == {"finished": [], "open": FRIDAY, "held": []}
    assert table.restore(version=1, business_snapshots=True).version is None, (
        "there is nothing left to take back"
    )
    assert check_table(table) == []


def test_a_second_restore_brings_back_business_snapshots_that_the_first_undid() -> None:
    table = create()
    for day, city in {FRIDAY: "Beijing", SATURDAY: "Wuhan", SUNDAY: "Xian"}.items():
        table.ingest(arrow([("A", 1, city, day)]), metadata="inline", business_snapshot=day)
    last, business = table.snapshot_at().version, table.snapshot_at().root.business
    table.restore(version=1, business_snapshots=True)
    assert describe(table)["business_snapshots"] == {"finished": [], "open": FRIDAY, "held": []}
    assert not table.snapshot_at().root.savepoints
    table.restore(version=last, business_snapshots=True)
    assert table.snapshot_at().root.business == business
    table.retain(window="0s", grace="0s")
    shown = {day: cities(table, business_snapshot=day)["A"] for day in (FRIDAY, SATURDAY, SUNDAY)}
    assert shown == {FRIDAY: "Beijing", SATURDAY: "Wuhan", SUNDAY: "Xian"}
    assert check_table(table) == []


def test_a_finished_business_snapshot_whose_version_is_gone_does_not_come_back() -> None:
    table = create()
    for day, city in {FRIDAY: "Beijing", SATURDAY: "Wuhan"}.items():
        table.ingest(arrow([("A", 1, city, day)]), metadata="inline", business_snapshot=day)
    version = table.snapshot_at().version
    table.savepoint("kept", version)
    table.ingest(arrow([("A", 1, "Xian", SUNDAY)]), metadata="inline", business_snapshot=SUNDAY)
    table.release(FRIDAY)
    table.retain(window="0s", grace="0s")
    table.restore(savepoint="kept", business_snapshots=True)
    assert describe(table)["business_snapshots"] == {"finished": [], "open": SATURDAY, "held": []}
    refused(
        table,
        f"{FRIDAY} is not after {FRIDAY}, which is finished",
        lambda: table.ingest(arrow([]), business_snapshot=FRIDAY),
    )
    assert check_table(table) == []


def test_check_finds_business_snapshots_that_the_restored_version_did_not_have() -> None:
    table = create()
    for day in (FRIDAY, SATURDAY):
        table.ingest(arrow([("A", 1, "Beijing", day)]), metadata="inline", business_snapshot=day)
    version = table.restore(version=1, business_snapshots=True).version
    assert version is not None
    commit, path = table.log.read_commit(version), layout.commit_path(version)
    assert commit.actions.restored is not None
    forged = replace(commit.actions.restored, business=BusinessSnapshots(open=SUNDAY))
    table.storage.delete([path])
    table.storage.put_if_absent(
        path, encode_commit(replace(commit, actions=replace(commit.actions, restored=forged)))
    )
    assert any(
        finding.invariant == "I26" and "its business snapshots are not" in finding.message
        for finding in check_table(table)
    )


def test_the_commit_of_a_restore_holds_the_business_snapshots_that_it_takes_back() -> None:
    table = create()
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), metadata="inline", business_snapshot=FRIDAY)
    table.ingest(
        arrow([("A", 1, "Beijing", SATURDAY)]), metadata="inline", business_snapshot=SATURDAY
    )
    done = table.restore(version=1, business_snapshots=True)
    assert done.version is not None
    data = table.storage.get(layout.commit_path(done.version))
    assert b'"business_snapshots":{"open":"2022-07-15"}' in data


def test_every_metagen_leaves_held_rows_also_one_of_another_process() -> None:
    storage = MemoryStorage()
    table = create(drift="2h", storage=storage)
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), business_snapshot=FRIDAY)
    table.ingest(arrow([("A", 2, "Wuhan", SATURDAY)]), business_snapshot=SATURDAY)
    other = table_on(storage, table.log.clock, CountingIds(prefix="other"))
    result = other.metagen()
    assert cities(table) == {"A": "Beijing"}
    assert any(f"rows of {SATURDAY} are held back" in note for note in result.notes)
    assert [row["segments_pending"] for row in [describe(table)["counts"]]] == [1]
    assert describe(table)["business_snapshots"]["held"] == [SATURDAY]
    idle = other.metagen()
    assert idle.counts["segments"] == 0
    assert any(f"rows of {SATURDAY} are held back" in note for note in idle.notes)
    table.set_properties({"drift": "1s"})  # it is a property: from now on it counts for all
    other.metagen()
    assert cities(table) == {"A": "Wuhan"}


def test_a_day_without_rows_counts_and_finishes_the_one_before() -> None:
    table = create()
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), metadata="inline", business_snapshot=FRIDAY)
    table.ingest(arrow([]), business_snapshot=SATURDAY)
    table.metagen()
    assert (
        cities(table, business_snapshot=FRIDAY)
        == cities(table, business_snapshot=SATURDAY)
        == {"A": "Beijing"}
    )


def test_late_rows_are_refused_or_put_aside_with_the_other_bad_rows() -> None:
    table = create()
    table.ingest(
        arrow([("A", 1, "Beijing", FRIDAY)]), metadata="inline", business_snapshot_column="day"
    )
    table.ingest(
        arrow([("A", 2, "Wuhan", SATURDAY)]), metadata="inline", business_snapshot_column="day"
    )
    late = [("B", 1, "Xian", FRIDAY), ("C", 3, "Xian", SATURDAY), ("D", 3, "Xian", SUNDAY)]
    versions = table.snapshot_at().version
    with pytest.raises(
        InvalidInputError,
        match=f"(?s)1 row cannot go into the table.*1 row: business snapshot {FRIDAY} is not after",
    ):
        table.ingest(arrow(late), metadata="inline", business_snapshot_column="day")
    assert table.snapshot_at().version == versions
    options = {"on_bad_rows": "quarantine", "reject_threshold": 1, "token": "late"}
    table.ingest(arrow(late), metadata="inline", business_snapshot_column="day", **options)
    assert cities(table, business_snapshot=FRIDAY) == {"A": "Beijing"}
    assert cities(table, business_snapshot=SATURDAY) == {"A": "Wuhan", "C": "Xian"}
    assert cities(table) == {"A": "Wuhan", "C": "Xian", "D": "Xian"}


def stopped_after(day: str, begun: Storage, rows: Sequence[Row], **options: object) -> Table:
    """Leave the table as an ingest by the column does that stops after a day."""
    version = table_on(begun, ManualClock(), CountingIds()).snapshot_at().version
    for fail_at in range(1, 199):
        storage = copied(begun, MemoryStorage())
        failing = table_on(
            FailingStore(storage, fail_at, "after"),
            ManualClock(),
            CountingIds(prefix=f"until-{day}"),
        )
        with suppress(Crash):
            failing.ingest(arrow(rows), business_snapshot_column="day", **options)  # type: ignore[arg-type]  # as tests name them
        table = table_on(storage, ManualClock(), CountingIds(prefix=f"after-{day}"))
        days = [
            commit.business_snapshot
            for commit in table.commits()
            if commit.version > version and commit.operation == "ingest"
        ]
        if days[:1] == [day]:
            return table
    raise AssertionError("no try stopped there")


@pytest.mark.parametrize("on_bad_rows", ["fail", "quarantine"])
@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_rows_that_became_late_between_two_tries_are_rejected_once(
    metadata: str, on_bad_rows: str
) -> None:
    """Late rows of an earlier try were put aside then."""
    late = (
        [("L", 1, "Xian", "2022-07-14"), ("M", 1, "Xian", "July")]
        if on_bad_rows == "quarantine"
        else []
    )
    batch = [
        ("A", 1, "Beijing", FRIDAY),
        ("B", 2, "Wuhan", SUNDAY),
        ("D", 5, "Rome", "2022-07-20"),
        ("E", 6, "Rome", "2022-07-21"),
        *late,
    ]
    options = {"metadata": metadata, "on_bad_rows": on_bad_rows, "token": "t"}
    begun = create()
    begun.ingest(arrow([("Z", 1, "Beijing", FRIDAY)]), metadata="inline", business_snapshot=FRIDAY)
    table = stopped_after(FRIDAY, begun.storage, batch, **options)
    table.metagen()
    table.ingest(arrow([("C", 3, "Xian", "2022-07-18")]), business_snapshot="2022-07-18")
    table.metagen()
    if on_bad_rows == "fail":
        before = table.snapshot_at().version
        with pytest.raises(
            InvalidInputError,
            match=f"(?s)1 row cannot go into the table.*{SUNDAY} is before 2022-07-18",
        ):
            table.ingest(arrow(batch), business_snapshot_column="day", **options)
        assert table.snapshot_at().version == before
        return
    table = stopped_after("2022-07-20", table.storage, batch, **options)
    table.ingest(arrow(batch), business_snapshot_column="day", **options)
    pass_time(table, 1)
    for _ in range(3):  # each finishes a day
        table.metagen()
    rejected = [
        commit.result["counts"].get("rejected", 0)
        for commit in table.commits()
        if commit.operation == "ingest"
    ]
    assert sorted(rejected) == [0, 0, 0, 1, 2]
    assert cities(table) == {"Z": "Beijing", "A": "Beijing", "C": "Xian", "D": "Rome", "E": "Rome"}


def test_a_name_that_could_be_a_time_is_a_business_snapshot_if_the_table_has_them() -> None:
    table, hours = create(), [f"2023-11-15T0{hour}:00Z" for hour in range(4)]
    for number, hour in enumerate(hours[:3]):
        table.ingest(arrow([(hour, number, "Xian", "")]), metadata="inline", business_snapshot=hour)
    assert [row["user"] for row in table.changes(hours[0], hours[1]).to_pylist()] == [hours[1]]
    with pytest.raises(NotFoundError, match=f"unknown business snapshot '{hours[3]}'"):
        table.changes(hours[0], hours[3])
    table.release(hours[0])
    with pytest.raises(NotFoundError, match=f"unknown business snapshot '{hours[0]}'"):
        table.changes(hours[0], hours[1])


def test_savepoint_named_like_a_business_snapshot_stays_a_bound() -> None:
    table = create()
    table.ingest(arrow([("A", 1, "Xian", "")]), metadata="inline")
    table.savepoint("2022-07-01")
    assert table.changes("2022-07-01").num_rows == 0  # as a time it would be before every commit
    table.ingest(arrow([("B", 1, "Xian", "")]), metadata="inline", business_snapshot=FRIDAY)
    with pytest.raises(NotFoundError, match=f"the business snapshot {FRIDAY} is not finished"):
        table.restore(savepoint=FRIDAY)
    assert [row["user"] for row in table.changes("2022-07-01").to_pylist()] == ["B"]


def test_held_rows_do_not_wait_for_a_time_that_a_repair_took_back() -> None:
    true = TrueClock()
    storage = SilentStore(inner=MemoryStorage(clock=true))
    layout = TableLayout(keys=["user"], delta="at", properties={"drift": "2h"})
    ahead = create_on(storage, plan_spec(SCHEMA, layout), SkewedClock(true=true), CountingIds())
    ahead.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), metadata="inline", business_snapshot=FRIDAY)
    ahead.log.clock.ahead_us = 9_000 * HOUR_US  # type: ignore[attr-defined]  # a SkewedClock
    ahead.ingest(arrow([("A", 2, "Wuhan", SATURDAY)]), business_snapshot=SATURDAY)
    table = table_on(storage.inner, SkewedClock(true=true), CountingIds(prefix="right"))
    table.repair_clock()
    table.metagen()
    assert cities(table) == {"A": "Beijing"}
    true.pass_us(3 * HOUR_US)
    table.metagen()
    assert cities(table) == {"A": "Wuhan"}
    assert check_table(table) == []


def test_changes_name_the_fault_of_a_business_snapshot() -> None:
    table = create(drift="1h")
    table.ingest(
        arrow([("A", 1, "Beijing", FRIDAY), ("A", 2, "Wuhan", SATURDAY)]),
        metadata="inline",
        business_snapshot_column="day",
    )
    with pytest.raises(
        NotFoundError,
        match=f"the rows of business snapshot {SATURDAY} are held back until {FRIDAY} is finished",
    ):
        table.changes(SATURDAY)
    with pytest.raises(
        NotFoundError,
        match=f"unknown business snapshot '{SUNDAY}'; the readable ones are {FRIDAY} .open.",
    ):
        table.changes(1, SUNDAY)


@pytest.mark.parametrize("day", ["2022-02-30", "2022-13-01", "2022-99-99"])
def test_a_day_that_the_calendar_does_not_have_is_refused(day: str) -> None:
    table = create()
    with pytest.raises(
        InvalidInputError,
        match=f"business snapshot {day} looks like a date, but the calendar has no such day",
    ):
        table.ingest(arrow([]), business_snapshot=day)


BAD_NAMES = ["", "2022/07/15", "-2022", "20220715", "a" * 101, "2022-07-15\n", "latest"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_an_invalid_business_snapshot_name_is_refused(name: object) -> None:
    table = create()
    with pytest.raises(
        InvalidInputError,
        match="is not a valid name of a business snapshot; use a date such as 2022-07-15",
    ):
        table.ingest(arrow([]), business_snapshot=name)  # type: ignore[arg-type]  # what it is about


@pytest.mark.parametrize("metadata", ["batch", "inline"])
@pytest.mark.parametrize("name", ["2022-7-16", "2022-07-16T00", "week-29", "9"])
def test_names_of_another_form_are_refused_since_texts_order_them(name: str, metadata: str) -> None:
    table = create()
    table.ingest(arrow([("A", 1, "Beijing", FRIDAY)]), metadata=metadata, business_snapshot=FRIDAY)
    with pytest.raises(
        InvalidInputError, match=r"does not have the form of 2022-07-15|is not a valid name of"
    ):
        table.ingest(arrow([("A", 1, "Beijing", name)]), metadata=metadata, business_snapshot=name)
    with pytest.raises(InvalidInputError, match="cannot go into the table"):
        table.ingest(
            arrow([("A", 1, "Beijing", name)]), metadata=metadata, business_snapshot_column="day"
        )
    assert table.snapshot_at().version == 1


def refused(
    table: Table, match: str, call: Callable[[], object], error: type[OpalError] = InvalidInputError
) -> None:
    before = table.snapshot_at().version
    with pytest.raises(error, match=match):
        call()
    assert table.snapshot_at().version == before


def test_the_error_for_bad_input_names_valid_input_and_nothing_is_written() -> None:
    table = create(drift="1h")
    rows = arrow([("A", 1, "Beijing", SATURDAY)])
    table.ingest(rows, business_snapshot=SATURDAY)
    refused(
        table,
        f"{FRIDAY} is before {SATURDAY}, which is open, and the next one may not be earlier; "
        f"ingest its rows as {SATURDAY}",
        lambda: table.ingest(rows, business_snapshot=FRIDAY),
    )
    refused(
        table,
        "give one of them",
        lambda: table.ingest(rows, business_snapshot=SATURDAY, business_snapshot_column="day"),
    )
    refused(
        table, "'where'", lambda: table.ingest(rows, business_snapshot_column="where"), OpalError
    )
    refused(
        table,
        "column 'at' is BIGINT, but a business snapshot is a date",
        lambda: table.ingest(rows, business_snapshot_column="at"),
    )
    refused(
        table, "give only one of them", lambda: table.read(version=1, business_snapshot=SATURDAY)
    )
    refused(
        table,
        f"'{SUNDAY}'; the readable ones are {SATURDAY} .open.",
        lambda: table.read(business_snapshot=SUNDAY),
        NotFoundError,
    )
    for name in (FRIDAY, SATURDAY, SUNDAY, "2999-01-01"):
        refused(
            table,
            f"cannot be called '{name}': .* add a word, such as 'before-{name}'",
            lambda name=name: table.savepoint(name),
        )
    table.savepoint(f"before-{SUNDAY}")
    older = create()
    older.savepoint(SUNDAY)
    older.ingest(rows, business_snapshot=SATURDAY)
    refused(
        older,
        f"the business snapshot {SUNDAY} needs for its own savepoint; release the savepoint",
        lambda: older.ingest(rows, business_snapshot=SUNDAY),
    )
    refused(
        table,
        "the table has none yet",
        lambda: create().read(business_snapshot=SUNDAY),
        NotFoundError,
    )
    with_null = rows.set_column(3, "day", pa.array([None], pa.string()))
    refused(
        table,
        "business snapshot column 'day' is null",
        lambda: table.ingest(with_null, business_snapshot_column="day"),
    )
    many = arrow([("A", number, "x", f"d{number:04}") for number in range(1001)])
    refused(
        table, "more than 1,000 values", lambda: table.ingest(many, business_snapshot_column="day")
    )


def test_a_column_of_dates_gives_the_business_snapshot() -> None:
    schema = pa.schema([("user", pa.string()), ("at", pa.int64()), ("day", pa.date32())])
    layout = TableLayout(keys=["user"], delta="at")
    table = create_on(MemoryStorage(), plan_spec(schema, layout), ManualClock(), CountingIds())
    days = [date(2022, 7, 15), date(2022, 7, 16)]
    table.ingest(
        pa.table([["A", "A"], [1, 2], days], schema=schema),
        metadata="inline",
        business_snapshot_column="day",
    )
    assert table.read(business_snapshot=FRIDAY)["at"].to_pylist() == [1]
    assert table.read()["at"].to_pylist() == [2]


class MeddledStore(ForwardingStore):
    """Another writer acts right before the n-th object is put, from 1."""

    def __init__(self, inner: Storage, at: int, act: Callable[[], object]) -> None:
        self.inner, self.at, self.act, self.puts = inner, at, act, 0

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        self.puts += 1
        if self.puts == self.at:
            self.act()
        return self.inner.put_if_absent(path, data)


@pytest.mark.parametrize("on_new_columns", ["fail", "ignore", "add"])
@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_columns_may_be_added_while_days_are_committed_one_by_one(
    metadata: str, on_new_columns: str
) -> None:
    rows = [("A", 1, "Xian", FRIDAY), ("B", 2, "Wuhan", SATURDAY), ("C", 3, "Xian", SUNDAY)]
    batch = arrow(rows)
    if on_new_columns != "fail":
        batch = batch.append_column("mine", pa.array([1, 2, 3]))
    at, puts = 0, 0
    while at <= puts:
        at += 1
        sound = create(storage=MemoryStorage())
        store = MeddledStore(
            sound.storage, at, lambda table=sound: table.add_columns({"zip": pa.int64()})
        )
        table = table_on(store, ManualClock(), CountingIds(prefix="w"))
        table.ingest(
            batch,
            metadata=metadata,
            business_snapshot_column="day",
            on_new_columns=on_new_columns,
        )
        table.metagen()
        puts = store.puts
        assert cities(sound) == {"A": "Xian", "B": "Wuhan", "C": "Xian"}
        assert on_new_columns != "add" or sorted(sound.read()["mine"].to_pylist()) == [1, 2, 3]
        assert check_table(sound) == []
    assert at > 10


def run_stream(clock: ManualClock, metadata: str, storage: Storage, writer: str) -> None:
    """Run all batches by number, then what is due, as a restarted stream does."""
    table = table_on(storage, clock, CountingIds(prefix=writer))
    for number, batch in enumerate(STREAM):
        table.ingest(
            arrow(batch),
            metadata=metadata,
            business_snapshot_column="day",
            application=("stream", number),
        )
    table.metagen()


def prepared() -> tuple[MemoryStorage, ManualClock]:
    storage, clock = MemoryStorage(), ManualClock(step_us=1000)
    create_on(storage, create(drift="2h").snapshot_at().spec, clock, CountingIds())
    return storage, clock


def run_until_done(job: Callable[[Storage, str], None], first: Storage, storage: Storage) -> None:
    """Run it as often as a scheduler starts it."""
    for start, target in enumerate([first, storage, storage]):
        try:
            return job(target, f"writer-{start}")
        except (Crash, StorageError, CommitUnknownError, ConflictError):
            continue
    raise AssertionError("the job did not come through on a sound store")


MODES: list[Mode] = ["before", "after", "failed", "done_but_failed"]


@pytest.mark.parametrize("metadata", ["batch", "inline"])
@pytest.mark.parametrize("mode", MODES)
def test_a_crash_while_rows_are_held_back_loses_none_and_doubles_none(
    mode: Mode, metadata: str
) -> None:
    storage, clock = prepared()
    dry = FailingStore(storage)
    run_stream(clock, metadata, dry, "dry")
    for fail_at in range(1 + MODES.index(mode), len(dry.trace) + 1, 23):
        storage, clock = prepared()
        run_until_done(
            partial(run_stream, clock, metadata), FailingStore(storage, fail_at, mode), storage
        )
        table = table_on(storage, clock, CountingIds(prefix="after"))
        friday = {"A": "Wuhan", "B": "Wuhan"}
        assert cities(table) == cities(table, business_snapshot=FRIDAY) == friday, fail_at
        assert sum(segment.rows for segment in table.snapshot_at().segments.values()) == 6, fail_at
        clock.at_us += 3 * HOUR_US
        table.metagen()
        assert cities(table) == {"A": "Hangzhou", "B": "Hangzhou"}, fail_at
        assert cities(table, business_snapshot=FRIDAY) == friday, fail_at
        assert check_table(table) == [], fail_at
        assert commits_hold_one_each(table), fail_at


KILLED = """
import os, signal, sys
from opal_lake.table import Table
from tests.opal_lake.savepoints.build import STREAM, arrow

table = Table.open(sys.argv[1])
for number, batch in enumerate(STREAM):
    table.ingest(
        arrow(batch),
        metadata="inline",
        business_snapshot_column="day",
        application=("stream", number),
    )
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_held_rows_outlive_the_process_that_held_them_back(tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path), SCHEMA, keys=["user"], delta="at", properties={"drift": "2h"}
    )
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == -signal.SIGKILL
    assert describe(table)["business_snapshots"] == {
        "finished": [],
        "open": FRIDAY,
        "held": [SATURDAY],
    }
    for number, batch in enumerate(STREAM):
        table.ingest(
            arrow(batch),
            metadata="inline",
            business_snapshot_column="day",
            application=("stream", number),
        )
    assert cities(table) == {"A": "Wuhan", "B": "Wuhan"}
    table.finish_business_snapshot(FRIDAY)
    table.metagen()
    assert cities(table) == {"A": "Hangzhou", "B": "Hangzhou"}
    assert check_table(table) == []


def begin_saturday(clock: ManualClock, storage: Storage, writer: str) -> None:
    table_on(storage, clock, CountingIds(prefix=writer)).metagen(token="due")


def friday_is_over() -> tuple[MemoryStorage, ManualClock]:
    """Rows of Saturday wait, one of Friday is pending, and the drift time has passed."""
    storage, clock = prepared()
    run_stream(clock, "batch", storage, "stream")
    table_on(storage, clock, CountingIds(prefix="late")).ingest(
        arrow([("C", 2, "Xian", FRIDAY)]), business_snapshot=FRIDAY
    )
    clock.at_us += 3 * HOUR_US
    return storage, clock


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_while_the_next_day_begins_loses_no_day(mode: Mode) -> None:
    storage, clock = friday_is_over()
    dry = FailingStore(storage)
    begin_saturday(clock, dry, "dry")
    for fail_at in range(1 + MODES.index(mode), len(dry.trace) + 1, 11):
        storage, clock = friday_is_over()
        run_until_done(
            partial(begin_saturday, clock), FailingStore(storage, fail_at, mode), storage
        )
        table = table_on(storage, clock, CountingIds(prefix="after"))
        assert cities(table, business_snapshot=FRIDAY) == {
            "A": "Wuhan",
            "B": "Wuhan",
            "C": "Xian",
        }, fail_at
        assert cities(table) == {"A": "Hangzhou", "B": "Hangzhou", "C": "Xian"}, fail_at
        assert check_table(table) == [], fail_at


def load_two_days(clock: ManualClock, storage: Storage, writer: str) -> None:
    """Two good days, and a row of none."""
    rows = arrow(
        [("A", 1, "Beijing", FRIDAY), ("B", 2, "Wuhan", SATURDAY), ("C", 3, "Xian", "some day")]
    )
    options = {
        "metadata": "inline",
        "business_snapshot_column": "day",
        "on_bad_rows": "quarantine",
        "reject_threshold": 1,
    }
    table_on(storage, clock, CountingIds(prefix=writer)).ingest(rows, token="load", **options)  # type: ignore[arg-type]  # of several types


@pytest.mark.parametrize("mode", MODES)
def test_an_inline_ingest_of_two_days_that_failed_goes_on_where_it_stopped(mode: Mode) -> None:
    """All its rows become visible, and the bad one counts once."""
    storage, clock = prepared()
    dry = FailingStore(storage)
    load_two_days(clock, dry, "dry")
    for fail_at in range(1 + MODES.index(mode), len(dry.trace) + 1, 3):
        storage, clock = prepared()
        run_until_done(partial(load_two_days, clock), FailingStore(storage, fail_at, mode), storage)
        load_two_days(
            clock, storage, "again"
        )  # as a task that lost its connection after the commit
        table = table_on(storage, clock, CountingIds(prefix="after"))
        assert describe(table)["business_snapshots"] == {
            "finished": [],
            "open": FRIDAY,
            "held": [SATURDAY],
        }, fail_at
        rejected = [
            commit.result.get("counts", {}).get("rejected", 0) for commit in table.commits()
        ]
        assert sum(rejected) == 1, (fail_at, rejected)
        clock.at_us += 3 * HOUR_US
        load_two_days(clock, storage, "late")
        assert cities(table) == {"A": "Beijing", "B": "Wuhan"}, fail_at


@pytest.mark.parametrize("drift", ["0s", "1h"])
def test_random_histories_agree_with_the_model(drift: str) -> None:
    @seed(SEED)
    @settings(
        max_examples=HISTORIES,
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate, Phase.shrink],
    )
    @given(steps=STEPS)
    def run(steps: list[Step]) -> None:
        play(steps, drift)

    run()


@pytest.mark.slow
@pytest.mark.parametrize("drift", ["0s", "1h"])
def test_many_more_random_histories_agree_with_the_model(
    drift: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "HISTORIES", 150)
    test_random_histories_agree_with_the_model(drift)


DAYS = [f"2022-07-{day}" for day in range(15, 20)]
HISTORIES = 8
SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
Step = tuple[str, int, list[tuple[int, int, int]]]
WRITES, REST = (
    ("batch", "inline", "by column", "inline by column", "plain"),
    ("finish", "reopen", "compact", "retain", "restore"),
)
VERBS = (*WRITES, "metagen", "metagen", "wait", "wait", *REST)
DICE = st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 4))
STEPS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 4), st.lists(DICE, max_size=4)),
    min_size=3,
    max_size=16,
)


def play(steps: list[Step], drift: str) -> None:
    """Take steps on a table and on a model, with a clock of small steps."""
    storage, clock = MemoryStorage(), ManualClock(step_us=1000)
    table = create_on(storage, create(drift=drift).snapshot_at().spec, clock, CountingIds())
    model = BusinessModel(drift_us=parse_duration(drift, name="drift"))
    moments = {0: (model, {})}
    days = 0
    for number, (verb, die, dice) in enumerate(steps):
        days = min(len(DAYS) - 1, days + (die == 4))  # days go by, and what comes is of about now
        name = DAYS[max(0, days + die % 3 - 1)] if days < len(DAYS) - 1 else DAYS[-1 - die % 2]
        rows = [
            ("kxz"[key], delta, f"{number}.{position}", DAYS[(days + day) % len(DAYS)])
            for position, (key, delta, day) in enumerate(dice)
        ]
        version = table.snapshot_at().version
        if verb == "restore":
            model = restore_both(table, model, moments, die)
            compare(table, model)
            continue
        try:
            expected = deepcopy(model)
            do_to_model(expected, verb, name, rows, clock.at_us)
        except RefusedError:
            with pytest.raises(InvalidInputError):
                do_to_table(table, verb, name, rows)
            assert table.snapshot_at().version == version
        else:
            model = expected
            do_to_table(table, verb, name, rows)
        if verb == "reopen":
            table = table_on(storage, clock, CountingIds(prefix=f"writer-{number}"))
        compare(table, model)
        moments[table.snapshot_at().version] = (model, dict(table.snapshot_at().root.savepoints))
    assert check_table(table) == []
    assert commits_hold_one_each(table)


def restore_both(
    table: Table,
    model: BusinessModel,
    moments: dict[int, tuple[BusinessModel, dict[str, int]]],
    die: int,
) -> BusinessModel:
    """Restore a readable version with its business snapshots."""
    root = table.snapshot_at().root
    versions = [version for version in moments if is_readable(root, version)]
    if not versions:
        return model
    version = versions[die % len(versions)]
    earlier, savepoints = moments[version]
    table.restore(version=version, business_snapshots=True)
    finished = {
        name: content
        for name, content in earlier.finished.items()
        if is_readable(root, savepoints[name])
    }
    newest = max(earlier.finished, default=None)
    return replace(
        deepcopy(earlier), arrived=model.arrived, finished=finished, newest_finished=newest
    )


def do_to_model(model: BusinessModel, verb: str, name: str, rows: list[Row], now_us: int) -> None:
    is_inline, put = verb.startswith("inline"), [row[:3] for row in rows]
    match verb:
        case "batch" | "inline":
            model.ingest(put, name, now_us, is_inline=is_inline)
        case "plain":
            model.ingest(put, None, now_us, is_inline=False)
        case "by column" | "inline by column":
            names = sorted({row[3] for row in rows})
            for each in names:
                model.check(each)  # before any of them comes
            for each in names:
                model.ingest(
                    [row[:3] for row in rows if row[3] == each], each, now_us, is_inline=is_inline
                )
            if is_inline and (model.pending or model.is_over(now_us)):
                model.metagen(now_us)
        case "metagen":
            model.metagen(now_us)
        case "finish":
            model.finish(name)


def do_to_table(table: Table, verb: str, name: str, rows: list[Row]) -> None:
    metadata = "inline" if verb.startswith("inline") else "batch"
    named = arrow([(*row[:3], name) for row in rows])
    clock = table.log.clock
    match verb:
        case "batch" | "inline":
            table.ingest(
                named, metadata=metadata, business_snapshot=name, token=f"t{clock.now_us()}"
            )
        case "plain":
            table.ingest(named)
        case "by column" | "inline by column":
            table.ingest(arrow(rows), metadata=metadata, business_snapshot_column="day")
        case "metagen":
            table.metagen()
        case "finish":
            table.finish_business_snapshot(name)
        case "wait":
            pass_time(table, 0.6)
        case "compact":
            table.compact()
        case "retain":
            table.retain(window="0s", grace="0s")


def compare(table: Table, model: BusinessModel) -> None:
    assert cities(table) == model.content()
    described = describe(table)
    assert described["business_snapshots"] == {
        "finished": sorted(model.finished),
        "open": model.open,
        "held": sorted(model.held_rows),
    }
    for name, content in model.finished.items():
        assert cities(table, business_snapshot=name) == content, name
    if model.open is not None:
        assert cities(table, business_snapshot=model.open) == model.content()
    waiting = len(model.pending) + sum(
        len(waiting_days.rows) for waiting_days in model.held_rows.values()
    )
    assert described["counts"]["rows_pending"] == waiting


def commits_hold_one_each(table: Table) -> bool:
    """Return business snapshots by the rows: an ingest has those of the one it names."""
    for commit in table.commits():
        for file in commit.actions.ingested if commit.business_snapshot is not None else ():
            assert file.bounds[4].low == file.bounds[4].high == commit.business_snapshot
    return True
