"""Values that did not change are those of the row's predecessor, or the message is bad.

The predecessor is in the batch, in the table, or among pending rows.
"""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake.engine.in_process import InProcess
from opal_lake.errors import FormatError
from opal_lake.operations.ingest import Ingest
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.open import open_storage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, table_on
from opal_lake.write.ingest_job import ingest
from opal_stream.errors import BadMessageError
from tests.kit.check import check_table
from tests.opal_lake.compacting import compact
from tests.opal_stream.orders import gather
from tests.opal_stream.shaky import Shaky
from tests.opal_stream.toast import LARGE, SCHEMA, Flushes, event, new_table, rejected, row, stored

HISTORIES = int(os.environ.get("OPAL_TOAST_HISTORIES", "300"))
FULL = row(1, 1, note="a" * 3000, data=b"\0\xff", tags=[1, 2])
CHANGED = {**FULL, "small": 2}
SECOND = {**FULL, "small": 3, "note": "b"}


def update(values: dict[str, Any], lsn: int, *unchanged: str) -> Any:
    return event("u", values, lsn, unchanged or LARGE)


@pytest.fixture(params=[False, True], ids=["direct", "gathered"])
def flushes(request: pytest.FixtureRequest) -> Flushes:
    return Flushes(table=new_table(), is_gathered=request.param)


def commit(flushes: Flushes, *batches: Sequence[Any]) -> dict[int, Any]:
    """All batches, and the table."""
    for events in batches:
        flushes.flush(*events)
    if flushes.is_gathered:
        gather(flushes.table)
    return stored(flushes.table)


@pytest.mark.parametrize("apart", [False, True], ids=["in one flush", "in two"])
def test_values_stay_those_of_the_row_before(flushes: Flushes, apart: bool) -> None:
    first, second = event("c", FULL, 1), update(CHANGED, 2)
    batches = [[first], [second]] if apart else [[first, second]]
    assert commit(flushes, *batches) == {1: CHANGED}
    assert stored(flushes.table, event_time=1) == {1: FULL}
    assert check_table(flushes.table) == []


def test_values_go_on_from_row_to_row_each_column_by_itself(flushes: Flushes) -> None:
    last = {**SECOND, "small": 4}
    events = [
        event("c", FULL, 1),
        update(CHANGED, 2),
        update(SECOND, 3, "data", "tags"),
        update(last, 4),
    ]
    assert commit(flushes, events[:2], events[2:]) == {1: last}
    assert [stored(flushes.table, event_time=n)[1] for n in (1, 2, 3)] == [FULL, CHANGED, SECOND]


def test_null_is_a_value_that_stays(flushes: Flushes) -> None:
    empty = row(1, 1)
    assert commit(flushes, [event("c", empty, 1)], [update({**empty, "small": 2}, 2)]) == {
        1: {**empty, "small": 2}
    }


@pytest.mark.parametrize("apart", [False, True], ids=["in one flush", "in two"])
def test_a_late_row_takes_the_value_of_its_own_predecessor(flushes: Flushes, apart: bool) -> None:
    events = [event("c", FULL, 1), event("u", SECOND, 9), update(CHANGED, 5)]
    assert commit(flushes, *([[entry] for entry in events] if apart else [events])) == {1: SECOND}
    assert stored(flushes.table, event_time=5) == {1: CHANGED}


def test_a_replay_changes_nothing(flushes: Flushes) -> None:
    events = [event("c", FULL, 1), update(CHANGED, 2), event("u", SECOND, 3)]
    last = {**SECOND, "small": 4}
    assert commit(flushes, events, events[1:], [update(last, 4)], events) == {1: last}
    assert [stored(flushes.table, event_time=n)[1] for n in (1, 2, 3)] == [FULL, CHANGED, SECOND]


def test_keys_in_one_flush_do_not_mix(flushes: Flushes) -> None:
    rows = [row(n, n, note=f"n{n}", data=b"%d" % n, tags=[n]) for n in range(50)]
    changed = [{**entry, "small": -1} for entry in rows]
    events = [event("c", entry, 1) for entry in rows] + [
        update(entry, 2) for entry in reversed(changed)
    ]
    assert commit(flushes, events) == {entry["id"]: entry for entry in changed}


@pytest.mark.parametrize(
    "before, why",
    [
        ([], "knows no earlier row of its key"),
        ([event("c", FULL, 9)], "knows no earlier row of its key"),
        ([event("c", FULL, 1), event("d", FULL, 2)], "the row before it deletes its key"),
    ],
    ids=["no row", "a later row", "a delete"],
)
@pytest.mark.parametrize("apart", [False, True], ids=["in one flush", "in two"])
def test_a_row_whose_left_out_values_cannot_be_known_is_put_aside(
    flushes: Flushes, before: list[Any], why: str, apart: bool
) -> None:
    other = row(2, 1, note="n")
    new = [event("c", other, 3), update(CHANGED, 5)]
    table = commit(flushes, *([before, new] if apart else [[*before, *new]]))
    assert table[2] == other
    assert table.get(1) == (FULL if before == [event("c", FULL, 9)] else None)
    [bad] = rejected(flushes.table)
    assert "columns 'note', 'data', 'tags', which did not change" in bad["reason"]
    assert why in bad["reason"]
    assert "REPLICA IDENTITY FULL" in bad["reason"]
    assert bad["source"].startswith("orders/3@10")
    assert '"small": 2' in bad["row"]


def test_a_row_that_is_put_aside_is_the_predecessor_of_none(flushes: Flushes) -> None:
    rows = [update(CHANGED, 1), update(SECOND, 2, "data", "tags"), update(CHANGED, 3, "note")]
    assert commit(flushes, rows) == {}
    assert len(rejected(flushes.table)) == 3


def test_by_default_the_stream_stops_and_commits_nothing_of_the_flush() -> None:
    flushes = Flushes(table=new_table(), policy="fail")
    with pytest.raises(
        BadMessageError,
        match=r"none of them was committed(?s:.*)REPLICA IDENTITY FULL(?s:.*)orders/3@101",
    ):
        flushes.flush(event("c", row(2), 1), update(CHANGED, 2))
    assert stored(flushes.table) == {}
    flushes.flush(event("c", FULL, 1), update(CHANGED, 2))
    assert stored(flushes.table) == {1: CHANGED}


def test_a_committer_holds_back_what_its_process_would_not_put_aside() -> None:
    flushes = Flushes(table=new_table(), policy="fail", is_gathered=True)
    flushes.flush(event("c", row(2), 1))
    flushes.flush(update(CHANGED, 2))
    with pytest.raises(
        FormatError,
        match=r"REPLICA IDENTITY FULL(?s:.*)orders/3@101(?s:.*)on_bad_message='quarantine'",
    ):
        gather(flushes.table)
    assert stored(flushes.table) == {2: row(2)}


def test_values_of_pending_rows_count_as_those_of_others() -> None:
    flushes = Flushes(table=new_table())
    flushes.flush(event("c", FULL, 1))
    pending = [{**SECOND, "lsn": 3, "op": "c"}, {**row(2), "note": "p", "lsn": 3, "op": "c"}]
    flushes.table.ingest(pa.Table.from_pylist(pending, SCHEMA), [False] * 2)
    flushes.flush(update(CHANGED, 2), update({**SECOND, "small": 5}, 5), update(row(2, 7), 4))
    assert stored(flushes.table)[2] == row(2, 7, note="p")
    flushes.table.metagen()
    assert stored(flushes.table)[1] == {**SECOND, "small": 5}
    assert [stored(flushes.table, event_time=n)[1] for n in (2, 3)] == [CHANGED, SECOND]
    assert rejected(flushes.table) == []


def test_a_row_that_a_compaction_dropped_has_no_values() -> None:
    flushes = Flushes(table=new_table())
    flushes.flush(event("c", FULL, 1))
    flushes.flush(event("u", SECOND, 5))
    compact(flushes.table, floor=7)
    flushes.flush(update(CHANGED, 3))
    assert len(rejected(flushes.table)) == 1
    flushes.flush(update({**SECOND, "small": 9}, 9))
    assert stored(flushes.table) == {1: {**SECOND, "small": 9}}


def test_below_the_floor_an_older_row_that_was_kept_is_not_taken() -> None:
    """The row between both was dropped."""
    flushes = Flushes(table=new_table())
    flushes.flush(event("c", FULL, 1), event("u", SECOND, 5))
    table = flushes.table
    compact(table, floor=7)
    flushes.flush(event("c", {**FULL, "note": "late"}, 2))
    flushes.flush(update(CHANGED, 4))
    [bad] = rejected(table)
    assert "rows before it may have been dropped" in bad["reason"]
    assert stored(table) == {1: SECOND}


def test_a_damaged_file_makes_bad_messages_of_its_rows_alone(tmp_path: Path) -> None:
    flushes = Flushes(table=new_table(open_storage(str(tmp_path))))
    flushes.flush(event("c", FULL, 1))
    [damaged] = (tmp_path / "data").rglob("*.parquet")
    flushes.flush(event("c", {**SECOND, "id": 2}, 1))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    flushes.flush(update(CHANGED, 2), update({**SECOND, "id": 2, "small": 9}, 2))
    [bad] = rejected(flushes.table)
    assert "its file is damaged" in bad["reason"]
    rows = flushes.table.get([{"id": 2}], columns=["small", "note"]).to_pylist()
    assert rows == [{"small": 9, "note": "b"}]


# The rule's order by brute force: a table of rows, to which flushes come


@dataclass(slots=True)
class Model:
    """The rows of each key as (lsn, arrival, values or None for a delete).

    Pending rows are among them. `bad` counts the messages put aside.
    """

    rows: dict[int, list[tuple[int, int, dict[str, Any] | None]]] = field(default_factory=dict)
    arrived: int = 0
    bad: int = 0

    def add(self, key: int, lsn: int, values: dict[str, Any] | None) -> None:
        self.rows.setdefault(key, []).append((lsn, self.arrived, values))
        self.arrived += 1

    def flush(self, changes: Sequence["Change"]) -> None:
        """Add changes in the order of the rule: a late row counts for those after it."""
        numbered = [(change.lsn, n, change) for n, change in enumerate(changes, self.arrived)]
        self.arrived += len(changes)
        for lsn, arrival, change in sorted(numbered, key=lambda entry: entry[:2]):
            known = self.rows.setdefault(change.key, [])
            before = max((entry for entry in known if entry[:2] < (lsn, arrival)), default=None)
            values = change.values
            if change.unchanged and (before is None or before[2] is None):
                self.bad += 1
                continue
            if change.unchanged and before is not None and before[2] is not None:
                assert values is not None
                values = {**values, **{name: before[2][name] for name in change.unchanged}}
            known.append((lsn, arrival, values))

    def at(self, lsn: int) -> dict[int, dict[str, Any]]:
        actual = {}
        for key, rows in self.rows.items():
            newest = max((entry for entry in rows if entry[0] <= lsn), default=None)
            if newest is not None and newest[2] is not None:
                actual[key] = newest[2]
        return actual


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the source's table; `values` of the row after it, None for a delete."""

    op: str
    key: int
    lsn: int
    values: dict[str, Any] | None
    unchanged: tuple[str, ...] = ()

    def message(self) -> Any:
        return event(self.op, self.values or row(self.key), self.lsn, self.unchanged)


LARGE_VALUES = {
    "note": st.sampled_from([None, "", "a", "b" * 2500]),
    "data": st.sampled_from([None, b"", b"\0\1", b"x" * 2500]),
    "tags": st.sampled_from([None, [], [95], [1, 2, 3]]),
}
LAST = 1 << 40


@st.composite
def sources(draw: st.DrawFn) -> list[Change]:
    """Draw changes of a few keys; an update leaves out some unchanged large values."""
    now: dict[int, dict[str, Any]] = {}
    changes: list[Change] = []
    for lsn in range(1, draw(st.integers(2, 25))):
        key = draw(st.integers(1, 3))
        before = now.get(key)
        if before is None:
            values = row(key, lsn, **{name: draw(entry) for name, entry in LARGE_VALUES.items()})
            changes.append(Change(op="c", key=key, lsn=lsn, values=values))
        elif draw(st.integers(0, 7)) == 0:
            changes.append(Change(op="d", key=key, lsn=lsn, values=None))
        else:
            touched = draw(st.sets(st.sampled_from(LARGE), max_size=2))
            values = {
                **before,
                "small": lsn,
                **{name: draw(LARGE_VALUES[name]) for name in touched},
            }
            same = tuple(name for name in LARGE if values[name] == before[name])
            left_out = tuple(name for name in same if name not in touched or draw(st.booleans()))
            changes.append(Change(op="u", key=key, lsn=lsn, values=values, unchanged=left_out))
        if changes[-1].values is None:
            del now[key]
        else:
            now[key] = changes[-1].values
    return changes


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[bool, list[Any]]:
    """Draw flushes of changes, in order with replays, or of any of them in any order.

    Pauses, pending batches and kills come between.
    """
    changes = draw(sources())
    is_in_order = draw(st.booleans())
    order = changes if is_in_order else draw(st.permutations(changes))
    steps: list[Any] = []
    done = 0
    while done < len(order):
        size = draw(st.integers(1, 6))
        start = done - draw(st.integers(0, min(done, 4))) if draw(st.booleans()) else done
        kill = draw(st.sampled_from(["", "", "before", "after"]))
        as_batch = draw(st.integers(0, 5)) == 0
        steps.append(("batch" if as_batch else kill, list(order[start : done + size])))
        done += size
        if draw(st.integers(0, 3)) == 0:
            steps.append((draw(st.sampled_from(["pause", "metagen", "compact", "start"])), []))
    return is_in_order, steps


class World:
    """A stream into a table, the model of it, and the source."""

    def __init__(self, *, is_gathered: bool) -> None:
        self.store = Shaky(MemoryStorage(), "/gathered/" if is_gathered else "/log/")
        self.flushes = Flushes(table=new_table(self.store), is_gathered=is_gathered)
        self.table = self.flushes.table
        self.model, self.source = Model(), Model()
        self.held: list[Change] = []  # gathered, and not committed yet

    def step(self, what: str, changes: Sequence[Change]) -> None:
        for change in changes:
            self.source.add(change.key, change.lsn, change.values)
        match what:
            case "batch":
                self.settle()
                self.ingest(changes)
            case "metagen":
                self.table.metagen()
            case "compact":
                compact(self.table)
            case "pause":
                self.settle()
            case "start":
                self.flushes.start()
            case _:
                self.flush(what, changes)

    def flush(self, failure: str, changes: Sequence[Change]) -> None:
        self.store.failures = [failure] if failure else []
        self.flushes.flush(*(change.message() for change in changes))
        self.store.failures = []
        self.held += changes
        if not self.flushes.is_gathered:
            self.settle()

    def ingest(self, changes: Sequence[Change]) -> None:
        """Whole rows, which are pending."""
        rows = [
            {**(entry.values or row(entry.key)), "lsn": entry.lsn, "op": entry.op}
            for entry in changes
        ]
        deleted = [entry.values is None for entry in changes]
        self.table.ingest(pa.Table.from_pylist(rows, SCHEMA), deleted)
        for change in changes:
            self.model.add(change.key, change.lsn, change.values)

    def settle(self) -> None:
        if self.flushes.is_gathered:
            gather(self.table)
        self.model.flush(self.held)
        self.held.clear()


def play(is_gathered: bool, is_in_order: bool, steps: Sequence[Any]) -> None:
    """Compare each result with the model, and changes in order with the source."""
    world = World(is_gathered=is_gathered)
    for what, changes in steps:
        world.step(what, changes)
    world.settle()
    world.table.metagen()
    assert check_table(world.table) == []
    for lsn in sorted({change.lsn for _, changes in steps for change in changes}):
        assert stored(world.table, event_time=lsn) == world.model.at(lsn)
        if is_in_order:
            assert world.model.at(lsn) == world.source.at(lsn)
    assert stored(world.table) == world.model.at(LAST)
    assert len(rejected(world.table)) == world.model.bad
    if is_in_order:
        assert world.model.bad == 0


@settings(max_examples=8)
@given(is_gathered=st.booleans(), delivery=deliveries())
def test_a_table_equals_its_source_whichever_unchanged_values_are_left_out(
    is_gathered: bool, delivery: Any
) -> None:
    play(is_gathered, *delivery)


@pytest.mark.slow
@settings(max_examples=HISTORIES)
@given(is_gathered=st.booleans(), delivery=deliveries())
def test_a_table_equals_its_source_in_many_histories(is_gathered: bool, delivery: Any) -> None:
    play(is_gathered, *delivery)


class Between(ForwardingStore):
    """Something happens before the put of a commit: once."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.then: Callable[[], object] | None = None
        self.gets: list[str] = []

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.gets.append(path)
        return self.inner.get(path, start, length)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        then = self.then
        if then is not None and "/log/" in path:
            self.then = None
            then()
        return self.inner.put_if_absent(path, data)


@pytest.mark.parametrize("metadata", ["inline", "batch"])
def test_values_are_looked_up_again_when_a_winner_brings_a_row_between(metadata: str) -> None:
    store = Between(MemoryStorage())
    flushes = Flushes(table=new_table(store))
    flushes.flush(event("c", FULL, 1), event("c", {**FULL, "id": 2}, 1))
    winner = pa.Table.from_pylist([{**SECOND, "lsn": 2, "op": "c"}], SCHEMA)
    other = table_on(store.inner)
    store.then = lambda: other.ingest(winner, [False], metadata=metadata)
    last = {**SECOND, "small": 9}
    flushes.flush(update(last, 3), update({**CHANGED, "id": 2}, 3))
    flushes.table.metagen()
    assert stored(flushes.table) == {1: last, 2: {**CHANGED, "id": 2}}


def test_values_are_not_looked_up_again_for_a_winner_with_other_keys() -> None:
    store = Between(MemoryStorage())
    flushes = Flushes(table=new_table(store))
    flushes.flush(event("c", FULL, 1))
    winner = pa.Table.from_pylist([{**SECOND, "id": 7, "lsn": 2, "op": "c"}], SCHEMA)
    other = table_on(store.inner)
    store.then = lambda: other.ingest(winner, [False], metadata="inline")
    numbers = len([*store.list("_opal/claims")])
    flushes.flush(update(CHANGED, 3))
    assert len([*store.list("_opal/claims")]) == numbers + 2
    assert stored(flushes.table)[1] == CHANGED


def test_only_files_with_predecessors_are_read_and_none_without_placeholders() -> None:
    store = Between(MemoryStorage())
    flushes = Flushes(table=new_table(store))
    for key in range(5):
        flushes.flush(event("c", row(key, note=f"n{key}"), 1))
    store.gets.clear()
    flushes.flush(event("u", row(3, 1, note="x"), 2))
    assert [path for path in store.gets if path.startswith("data/")] == []
    flushes.flush(update(row(2, 1), 3))
    assert len({path for path in store.gets if path.startswith("data/")}) == 1
    assert stored(flushes.table)[2] == row(2, 1, note="n2")


@pytest.mark.parametrize("layout", [{"file_format": "orc"}, {"partition_by": ["small"]}])
def test_values_are_looked_up_in_every_layout_of_a_table(layout: dict[str, Any]) -> None:
    flushes = Flushes(table=new_table(**layout))
    flushes.flush(event("c", FULL, 1))
    flushes.flush(
        event("c", {**FULL, "id": 2}, 1), update(CHANGED, 2), update({**CHANGED, "id": 2}, 2)
    )
    assert stored(flushes.table) == {1: CHANGED, 2: {**CHANGED, "id": 2}}


def test_an_ingest_that_makes_no_rows_visible_refuses_rows_that_lack_values() -> None:
    table = new_table()
    marked = pa.Table.from_pylist([{**CHANGED, "lsn": 2, "op": "u"}], SCHEMA)
    marked = marked.append_column("_opal_unchanged", pa.array(['["note"]']))
    marked = marked.append_column("_opal_deleted", pa.array([False]))
    result = ingest(table, lambda spec, _: marked, Ingest([], on_bad_rows="quarantine"))
    assert result.counts["rejected"] == 1


# Equal deltas in a partitioned table: the row ids that tasks give decide which is the predecessor

PLACES = ("a", "b", "c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Return a message; `values` lacks unchanged ones, and `small` is the serial."""

    key: int
    lsn: int
    values: dict[str, Any]
    unchanged: tuple[str, ...]

    def message(self, serial: int) -> Any:
        values = {**row(self.key, serial), **self.values}
        return event("u" if self.unchanged else "c", values, self.lsn, self.unchanged)


def sent(chance: random.Random) -> Sent:
    unchanged = chance.choice([(), (), ("note",), ("data",), ("note", "data")])
    values = {"note": chance.choice(PLACES), "data": chance.choice(PLACES).encode()}
    known = {name: value for name, value in values.items() if name not in unchanged}
    key, lsn = chance.randint(1, 2), chance.choice((1, 1, 2))
    return Sent(key=key, lsn=lsn, values=known, unchanged=unchanged)


def rows_with_ids(table: Table) -> list[dict[str, Any]]:
    """All rows that the table stores, dead ones too, in the order of the rule."""
    parts = [
        pq.read_table(pa.BufferReader(table.storage.get(path)))
        for path in table.snapshot_at().files
    ]
    rows = [entry for part in parts for entry in part.to_pylist()]
    return sorted(
        rows, key=lambda entry: (entry["lsn"], entry["_opal_segment"], entry["_opal_offset"])
    )


@pytest.mark.parametrize("partition", ["note", "data"])
@pytest.mark.parametrize("segment_rows", [3, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_in_a_partitioned_table_unchanged_values_of_equal_deltas_are_filled_in_row_id_order(
    partition: str, segment_rows: int, seed: int
) -> None:
    chance = random.Random(seed)
    properties = {"segment_rows": segment_rows}
    table = new_table(partition_by=[partition], properties=properties)
    stream = Flushes(table=replace(table, executor=InProcess(tasks=chance.randint(1, 3))))
    messages: dict[int, Sent] = {}
    for _ in range(3):
        batch = [sent(chance) for _ in range(chance.randint(4, 12))]
        numbered = dict(enumerate(batch, len(messages)))
        messages |= numbered
        stream.flush(*(entry.message(serial) for serial, entry in numbered.items()))
    stored_rows = rows_with_ids(table)
    for position, entry in enumerate(stored_rows):
        message = messages[entry["small"]]
        expected = dict(message.values)
        for other in stored_rows[:position]:
            # A row that a later flush brings does not change what was filled
            is_known = other["_opal_segment"] >> 32 <= entry["_opal_segment"] >> 32
            if is_known and other["id"] == entry["id"]:
                expected |= {name: other[name] for name in message.unchanged}
        assert {name: entry[name] for name in ("note", "data")} == expected
    good = {entry["small"] for entry in stored_rows}
    for serial in messages.keys() - good:
        bad = messages[serial]
        assert bad.unchanged
        before = [n for n in good if messages[n].key == bad.key and n < serial]
        assert all(messages[n].lsn > bad.lsn for n in before)
    assert len(rejected(table)) == len(messages) - len(good)
    assert check_table(table) == []
