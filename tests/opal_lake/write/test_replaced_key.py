"""Ingests that replace a partition key: which rows end, and what other jobs do meanwhile."""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from opal_lake import Table
from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import create_on, table_on
from tests.kit.check import check_table
from tests.kit.failing_store import Mode
from tests.kit.ids import CountingIds
from tests.opal_lake import shop
from tests.opal_lake.write.meanwhile import MODES, Interfering, tables_after_failures

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
Row = tuple[int | None, int | None, str | None]
SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
METADATA = ["batch", "inline"]


def rows_of(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at")


def replace(table: Table, key: str, *rows: Row, **more: Any) -> JobResult:
    """Replace a key, and publish it if the ingest leaves the rows pending."""
    result = table.ingest(rows_of(*rows), mode="replace", partition_key=key, **more)
    if more.get("metadata") != "inline":
        table.metagen(partition_key=key)
    return result


def content(table: Table, **moment: Any) -> list[Row]:
    rows = table.read(columns=SCHEMA.names, **moment).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


@pytest.mark.parametrize("metadata", METADATA)
def test_rows_that_the_source_no_longer_has_end(table: Table, metadata: str) -> None:
    replace(table, "mon", (1, 1, "a"), (2, 1, "b"), metadata=metadata)
    replace(table, "tue", (2, 2, "c"), (3, 2, "d"), metadata=metadata)
    result = replace(table, "mon", (4, 1, "e"), metadata=metadata)
    # Row 2 is of Tuesday now
    assert (result.counts["rows"], result.counts["ended"]) == (1, 1)
    assert content(table) == [(2, 2, "c"), (3, 2, "d"), (4, 1, "e")]
    assert content(table, event_time=1) == [(2, 1, "b"), (4, 1, "e")]
    replace(table, "tue", metadata=metadata)
    assert content(table) == [(4, 1, "e")]
    assert check_table(table) == []


def test_other_ingests_end_nothing(table: Table) -> None:
    replace(table, "mon", (1, 1, "a"), (2, 1, "b"))
    table.ingest(rows_of((1, 2, "x")), partition_key="mon", metadata="inline")
    replace(table, "tue", (9, 1, "z"))
    assert content(table) == [(1, 2, "x"), (2, 1, "b"), (9, 1, "z")]


def test_pending_rows_of_the_key_are_discarded(table: Table) -> None:
    table.ingest(rows_of((1, 1, "a"), (2, 1, "b")), partition_key="mon", token="first")
    table.ingest(rows_of((3, 1, "c")), partition_key="tue")
    result = replace(table, "mon", (2, 1, "b"))
    assert (result.counts["ended"], result.counts["replaced"]) == (0, 2)
    assert content(table) == [(2, 1, "b")]
    table.metagen(partition_key="tue")
    assert content(table) == [(2, 1, "b"), (3, 1, "c")]
    assert check_table(table) == []


def test_a_row_of_a_statement_stays(table: Table) -> None:
    replace(table, "mon", (1, 1, "a"), (2, 1, "b"))
    table.update({"name": "'fixed'"}, where="id = 1")
    assert replace(table, "mon").counts["ended"] == 1
    assert content(table) == [(1, 1, "fixed")]


def test_a_token_replaces_once(table: Table) -> None:
    replace(table, "mon", (1, 1, "a"), (2, 1, "b"))
    assert replace(table, "mon", (1, 1, "a"), token="t").counts["ended"] == 1
    replace(table, "mon", (2, 1, "b"))
    assert replace(table, "mon", (1, 1, "a"), token="t").repeated
    assert content(table) == [(2, 1, "b")]


def test_a_bad_row_that_is_put_aside_keeps_the_row_of_its_key(table: Table) -> None:
    replace(table, "mon", (1, 1, "a"), (2, 1, "b"))
    result = replace(table, "mon", (1, None, "bad"), on_bad_rows="quarantine")
    assert (result.counts["rejected"], result.counts["ended"]) == (1, 1)
    assert content(table) == [(1, 1, "a")]


def test_a_source_without_rows_ends_all_rows_unless_it_may_not(table: Table) -> None:
    replace(table, "mon", (1, 1, "a"))
    with pytest.raises(InvalidInputError, match="the source has no row"):
        replace(table, "mon", on_empty="fail")
    assert content(table) == [(1, 1, "a")]
    counts = replace(table, "mon", on_empty="accept").counts
    assert (counts["rows"], counts["ended"]) == (0, 1)
    assert content(table) == []


def test_earlier_event_times_of_a_table_by_commit_show_the_ended_rows(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64())])
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"], delta="_commit")

    def ingest(*ids: int) -> int:
        rows = pa.table({"id": pa.array(ids, pa.int64())})
        result = table.ingest(rows, mode="replace", partition_key="k", metadata="inline")
        return result.counts["ended"]

    ingest(1, 2)
    before = table.read(columns=["_commit"])["_commit"].to_pylist()[0]
    assert ingest(2, 3) == 1
    assert sorted(table.read()["id"].to_pylist()) == [2, 3]
    assert sorted(table.read(event_time=before)["id"].to_pylist()) == [1, 2]
    assert check_table(table) == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "needs a partition_key"),
    ({"partition_key": "k", "business_snapshot": "2026-01-01"}, "business_snapshot exclude"),
    ({"partition_key": "k", "business_snapshot_column": "name"}, "business_snapshot_column"),
    ({"partition_key": "k", "positions": {"a": (0, 1)}}, "positions exclude each other"),
    ({"mode": "merge"}, "mode='merge' is unknown; use one of append, replace"),
]


@pytest.mark.parametrize("arguments, message", REFUSED)
def test_what_cannot_replace_is_refused(
    table: Table, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        table.ingest(rows_of((1, 1, "a")), **{"mode": "replace", **arguments})


@pytest.mark.parametrize("metadata", METADATA)
def test_a_key_whose_rows_would_stay_invisible_is_an_error(table: Table, metadata: str) -> None:
    replace(table, "mon", (1, 5, "a"), (2, 1, "b"), metadata=metadata)
    with pytest.raises(InvalidInputError, match=r'lower delta.*\{"id": 1\}'):
        replace(table, "mon", (1, 4, "a"), (2, 1, "c"), metadata=metadata)
    replace(table, "mon", (1, 4, "a"), (1, 5, "z"), (2, 1, "c"), metadata=metadata)
    assert content(table) == [(1, 5, "z"), (2, 1, "c")]


MEANWHILE: dict[str, tuple[Callable[[Table], object], int, list[Row]]] = {
    "an update of a row that ends": (
        lambda other: other.update({"name": "'new'"}, where="id = 1"),
        2,
        [(1, 1, "new"), (2, 1, "x"), (9, 1, "z")],
    ),
    "an ingest of another key": (
        lambda other: replace(other, "tue", (1, 1, "tue"), metadata="inline"),
        2,
        [(1, 1, "tue"), (2, 1, "x"), (9, 1, "z")],
    ),
    "an ingest of the same key": (
        lambda other: replace(other, "mon", (2, 1, "c"), (3, 1, "d"), metadata="inline"),
        2,
        [(2, 1, "x"), (9, 1, "z")],
    ),
    "pending rows of the same key": (
        lambda other: other.ingest(rows_of((3, 1, "d")), partition_key="mon"),
        1,
        [(2, 1, "x"), (9, 1, "z")],
    ),
    "rows elsewhere": (
        lambda other: other.upsert(rows_of((9, 2, "y"))),
        1,
        [(2, 1, "x"), (9, 2, "y")],
    ),
    "a compaction": (lambda other: other.compact(), 1, [(2, 1, "x"), (9, 1, "z")]),
}


@pytest.mark.parametrize("metadata", METADATA)
@pytest.mark.parametrize("name", MEANWHILE)
def test_an_ingest_runs_again_if_rows_of_its_key_change(
    table: Table, name: str, metadata: str
) -> None:
    replace(table, "mon", (1, 1, "a"), (2, 1, "b"), metadata="inline")
    table.upsert(rows_of((9, 1, "z")))
    interfere, runs, shown = MEANWHILE[name]
    other = Table.open(table.uri)
    store = Interfering(inner=table.storage, interfere=lambda: interfere(other))
    own = table_on(store)
    own.ingest(rows_of((2, 1, "x")), mode="replace", partition_key="mon", metadata=metadata)
    assert store.calls == runs
    table.metagen(partition_key="mon")
    assert content(table) == shown
    assert check_table(table) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_at_any_call_costs_nothing_but_a_rerun(
    mode: Mode, request: pytest.FixtureRequest
) -> None:
    def ingest(table: Table) -> None:
        source, _ = shop.rows([("ax", 1, 1), ("new", 2, 3)])
        table.ingest(source, mode="replace", partition_key="k", token="t")
        table.metagen(partition_key="k", token="m")

    first = [("ax", 1, 10), ("bow", 1, 20), ("cup", 1, 30)]
    name = request.node.name
    for table, where in tables_after_failures(name, first, ingest, mode, partition_key="k"):
        assert shop.content(table) == [("ax", 1, 1), ("new", 2, 3)], where
        assert check_table(table) == [], where


KEYS, DAYS, STEPS = range(6), ("mon", "tue"), 14


@dataclass(kw_only=True)
class Program:
    """A table and its model: the newest row of each key, and the day that brought it."""

    table: Table
    random: random.Random
    rows: dict[int, tuple[int, str, str | None]] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)  # the greatest delta of ended keys
    now: int = 0

    def step(self) -> None:
        self.now += 1
        steps: list[Callable[[], None]] = [self.ingest, self.ingest, self.ingest]
        steps += [self.update, self.delete, self.compact]
        self.random.choice(steps)()

    def ingest(self) -> None:
        day, metadata = self.random.choice(DAYS), self.random.choice(METADATA)
        chosen = self.random.sample(KEYS, self.random.randint(0, 4))
        deltas = {key: self.random.choice([self.now, max(1, self.now - 3)]) for key in chosen}
        rows = [(key, delta, f"{self.now}") for key, delta in deltas.items()]
        of_day = {key for key, row in self.rows.items() if row[2] == day}
        if any(key in of_day and self.rows[key][0] > delta for key, delta in deltas.items()):
            with pytest.raises(InvalidInputError, match="lower delta"):
                replace(self.table, day, *rows, metadata=metadata)
            return
        token = f"{self.now}"
        result = replace(self.table, day, *rows, metadata=metadata, token=token)
        assert result.counts["ended"] == len(of_day - deltas.keys())
        if self.random.random() < 0.3:
            assert replace(self.table, day, *rows, metadata=metadata, token=token).repeated
        for key in of_day - deltas.keys():
            self._end(key)
        for key, delta in deltas.items():
            newest = self.rows[key][0] if key in self.rows else self.ended.get(key, -1)
            if delta >= newest:
                self.rows[key] = (delta, token, day)

    def update(self) -> None:
        key = self.random.choice(KEYS)
        self.table.update({"name": "'u'"}, where=f"id = {key}")
        if key in self.rows:
            self.rows[key] = (self.rows[key][0], "u", None)

    def delete(self) -> None:
        key = self.random.choice(KEYS)
        self.table.delete(where=f"id = {key}")
        if key in self.rows:
            self._end(key)

    def compact(self) -> None:
        self.table.compact()

    def _end(self, key: int) -> None:
        self.ended[key] = self.rows.pop(key)[0]

    def check(self) -> None:
        shown = {row[0]: (row[1], row[2]) for row in content(self.table)}
        assert shown == {key: row[:2] for key, row in self.rows.items()}


@pytest.mark.parametrize(
    "seconds", [2, pytest.param(60, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_replaces_do_what_the_model_does(seconds: float) -> None:
    end = time.monotonic() + seconds
    seed = SEED
    while time.monotonic() < end:
        spec = plan_spec(SCHEMA, TableLayout(keys=["id"], delta="at"))
        table = create_on(MemoryStorage(), spec, ManualClock(), CountingIds())
        program = Program(table=table, random=random.Random(seed))
        try:
            for _ in range(STEPS):
                program.step()
                program.check()
            assert table.check(all=True) == []
        except Exception as error:
            error.add_note(f"OPAL_SEED={seed}")
            raise
        seed += 1
