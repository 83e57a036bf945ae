"""Overwrites and drops of partitions: which rows they end, and what other writers do to them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from opal_lake import Table, layout
from opal_lake.errors import ConflictError, InvalidInputError
from opal_lake.result import JobResult
from opal_lake.storage import Storage
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.table import table_on
from tests.kit.check import check_table
from tests.kit.failing_store import Mode
from tests.opal_lake import shop
from tests.opal_lake.write.meanwhile import MODES, Interfering, tables_after_failures

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.int64()), ("day", pa.date32()), ("shop", pa.string())]
)
A, B, C = (date(2026, 1, day) for day in (1, 2, 3))
Row = tuple[int, int, date | None, str | None]
FIRST: list[Row] = [
    (1, 10, A, "x"),
    (2, 10, A, "y"),
    (3, 10, B, "x"),
    (4, 10, B, None),
    (5, 10, None, "x"),
    (6, 10, None, None),
]


def rows_of(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    created = Table.create(
        str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at", partition_by=["day", "shop"]
    )
    created.upsert(rows_of(*FIRST))
    return created


def content(table: Table, **moment: Any) -> list[Row]:
    rows = table.read(columns=SCHEMA.names, **moment).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def counts(result: JobResult) -> tuple[int, int, int]:
    return result.counts["inserted"], result.counts["updated"], result.counts["deleted"]


def test_overwrite_replaces_all_rows(table: Table) -> None:
    result = table.overwrite(rows_of((1, 10, C, "z"), (9, 1, A, "x")))
    assert counts(result) == (1, 1, 5)
    assert content(table) == [(1, 10, C, "z"), (9, 1, A, "x")]
    assert counts(table.overwrite(rows_of())) == (0, 0, 2)
    assert content(table) == []
    assert content(table, version=1) == FIRST
    assert check_table(table) == []


def test_dynamic_overwrite_replaces_exactly_the_touched_partitions(table: Table) -> None:
    rows = rows_of((1, 10, A, "x"), (7, 1, None, None), (3, 11, B, None))
    # Row 6 and row 4 end; row 3 leaves its partition, which the new rows do not touch
    assert counts(table.overwrite(rows, partitions="dynamic")) == (1, 2, 2)
    shown = [(1, 10, A, "x"), (2, 10, A, "y"), (3, 11, B, None), (5, 10, None, "x")]
    assert content(table) == [*shown, (7, 1, None, None)]
    assert counts(table.overwrite(rows_of(), partitions="dynamic")) == (0, 0, 0)
    assert check_table(table) == []


def test_overwrite_of_a_condition_ends_the_rows_for_which_it_is_true(table: Table) -> None:
    rows = rows_of((9, 1, C, "x"))
    assert counts(table.overwrite(rows, where="shop = 'x' AND day >= DATE '2026-01-02'")) == (
        (1, 0, 1)
    )
    shown = [FIRST[0], FIRST[1], *FIRST[3:], (9, 1, C, "x")]
    assert content(table) == shown
    assert counts(table.overwrite(rows_of(), where="t.shop IS NULL")) == (0, 0, 2)
    assert counts(table.overwrite(rows_of((2, 10, A, "q")), where="id IN (1, 2)")) == (0, 1, 1)
    assert content(table) == [(2, 10, A, "q"), FIRST[4], (9, 1, C, "x")]


def test_rows_that_end_are_readable_before_the_given_delta(table: Table) -> None:
    table.overwrite(rows_of((1, 30, A, "x")), where="day IS NOT NULL", at=20)
    assert content(table, event_time=19) == FIRST
    assert content(table, event_time=20) == [FIRST[0], *FIRST[4:]]
    table.drop_partition(day=None, at=40)
    assert content(table, event_time=39) == [(1, 30, A, "x"), *FIRST[4:]]
    assert content(table) == [(1, 30, A, "x")]


def test_the_feed_has_the_rows_that_an_overwrite_ends(table: Table) -> None:
    table.overwrite(rows_of((1, 10, A, "z"), (8, 1, A, "x")), where="day = DATE '2026-01-01'")
    changes = table.changes(start=2, columns=["id", "shop"]).to_pylist()
    shown = sorted((row["_change_type"], row["id"], row["shop"]) for row in changes)
    assert shown == [
        ("delete", 2, "y"),
        ("insert", 8, "x"),
        ("update_postimage", 1, "z"),
        ("update_preimage", 1, "x"),
    ]
    assert [commit.operation for commit in table.commits()] == ["overwrite", "ingest", "create"]


@pytest.mark.parametrize(
    "values, ended",
    [
        ({"day": A}, {1, 2}),
        ({"day": "2026-01-02"}, {3, 4}),
        ({"day": "2026-01-02", "shop": None}, {4}),
        ({"shop": "x"}, {1, 3, 5}),
        ({"day": None, "shop": "x"}, {5}),
        ({"day": C}, set()),
    ],
)
def test_drop_partition_ends_the_rows_with_these_values(
    table: Table, values: dict[str, Any], ended: set[int]
) -> None:
    assert counts(table.drop_partition(values)) == (0, 0, len(ended))
    assert content(table) == [row for row in FIRST if row[0] not in ended]
    assert check_table(table) == []


def test_a_column_that_is_called_as_an_argument_is_named_in_a_mapping(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("token", pa.string())])
    created = Table.create(
        str(tmp_path / "t"), columns, keys=["id"], delta="_commit", partition_by=["token"]
    )
    created.insert(pa.table({"id": [1, 2], "token": ["a", "b"]}))
    assert counts(created.drop_partition({"token": "a"}, token="t")) == (0, 0, 1)
    assert created.read().to_pylist() == [{"id": 2, "token": "b"}]


def test_drop_partition_reads_no_other_column_and_no_other_file(table: Table) -> None:
    read = Reads(table.storage, [])
    assert counts(table_on(read).drop_partition(day=B, shop="x")) == (0, 0, 1)
    folders = {path.rpartition("/")[0] for path in read.paths if path.startswith("data/")}
    assert folders == {"data/day=2026-01-02/shop=x"}


@dataclass(slots=True)
class Reads(ForwardingStore):
    """A store that remembers what was read."""

    inner: Storage
    paths: list[str]

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.paths.append(path)
        return self.inner.get(path, start, length)


REFUSED: list[tuple[Callable[[Table], Any], str]] = [
    (
        lambda t: t.overwrite(rows_of((1, 10, B, "x")), where="day = DATE '2026-01-01'"),
        r'1 new row would not meet where=.*\{"id": 1\}',
    ),
    (
        lambda t: t.overwrite(rows_of((9, 10, None, "x")), where="day < DATE '2026-01-09'"),
        r'1 new row would not meet.*\{"id": 9\}',
    ),
    (lambda t: t.overwrite(rows_of((1, 9, A, "x"))), r'1 row .*lower delta.*\{"id": 1\}'),
    (lambda t: t.overwrite(rows_of((9, 1, A, "x"), (9, 2, A, "x"))), r'2 rows.*\{"id": 9\}'),
    (lambda t: t.overwrite(rows_of((1, 10, A, "x")), at=9), "lower delta"),
    (lambda t: t.overwrite(rows_of().drop_columns(["shop"])), "the rows have no column 'shop'"),
    (lambda t: t.overwrite(rows_of(), partitions="all"), "partitions='all' is unknown"),
    (lambda t: t.overwrite(rows_of(), partitions="dynamic", where="id = 1"), "exclude each other"),
    (lambda t: t.overwrite(rows_of(), where="days = 1"), "no column 'days'"),
    (lambda t: t.overwrite([{"id": 1}]), "pass a pyarrow Table"),
    (lambda t: t.drop_partition(), "at least one partition column"),
    (lambda t: t.drop_partition(id=1), "'id' is not a partition column.*day, shop"),
    (lambda t: t.drop_partition(day="yesterday"), "partition column day"),
    (lambda t: t.drop_partition(shop=3), "partition column shop: 3 is not a valid"),
]


@pytest.mark.parametrize("call, message", REFUSED)
def test_a_refused_overwrite_changes_nothing(
    table: Table, call: Callable[[Table], Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call(table)
    assert content(table) == FIRST
    assert len([*table.commits()]) == 2


def test_partitions_need_a_partitioned_table(tmp_path: Path) -> None:
    created = Table.create(str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at")
    with pytest.raises(InvalidInputError, match="no partition columns; use where"):
        created.overwrite(rows_of(), partitions="dynamic")
    with pytest.raises(InvalidInputError, match="no partition columns; delete its rows"):
        created.drop_partition(day=A)


REGIONS: dict[str, tuple[dict[str, Any], set[int]]] = {
    "all": ({}, {1, 2, 3, 4, 5, 6}),
    "condition": ({"where": "day = DATE '2026-01-01'"}, {1, 2}),
    "alias": ({"where": "t.day = DATE '2026-01-01'"}, {1, 2}),
    "partitions": ({"partitions": "dynamic"}, {1}),
}


@pytest.mark.parametrize("region", REGIONS)
def test_a_row_that_comes_into_the_region_meanwhile_ends_too(table: Table, region: str) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.upsert(rows_of((20, 1, A, "x")))
    )
    arguments, ended = REGIONS[region]
    result = table_on(store).overwrite(rows_of((30, 1, A, "x")), **arguments)
    assert (store.calls, counts(result)) == (2, (1, 0, len(ended) + 1))
    assert [row[0] for row in content(table)] == sorted({*range(1, 7), 30} - ended)
    assert check_table(table) == []


@pytest.mark.parametrize("region", [name for name in REGIONS if name != "all"])
def test_a_row_that_comes_elsewhere_meanwhile_costs_no_rerun(table: Table, region: str) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.upsert(rows_of((20, 1, B, "x")))
    )
    arguments, ended = REGIONS[region]
    table_on(store).overwrite(rows_of((30, 1, A, "x")), **arguments, tries=1)
    assert [row[0] for row in content(table)] == sorted({*range(1, 7), 20, 30} - ended)
    assert check_table(table) == []


@dataclass(slots=True, kw_only=True)
class _Racing(ForwardingStore):
    """A store in which another job commits just before the first puts of commits."""

    inner: Storage
    race: Callable[[int], object]
    races: int
    reads: Counter[str] = field(default_factory=Counter)

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads[path] += 1
        return self.inner.get(path, start, length)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        if layout.commit_version(path) is not None and self.races:
            self.races -= 1
            self.race(self.races)
        return self.inner.put_if_absent(path, data)


def test_the_rows_of_a_winner_are_read_once_however_often_a_race_is_lost(table: Table) -> None:
    other = Table.open(table.uri)
    store = _Racing(
        inner=table.storage,
        race=lambda number: other.upsert(rows_of((20 + number, 1, B, "x"))),
        races=4,
    )
    # Bounds do not answer this condition, so that the winners' files have to be read
    table_on(store).overwrite(rows_of((30, 1, A, "zz")), where="length(shop) = 2", tries=1)
    assert [row[0] for row in content(table)] == [*range(1, 7), *range(20, 24), 30]
    ingested = [file.path for commit in table.commits() for file in commit.actions.ingested]
    reads = [store.reads[path] for path in ingested]
    assert max(reads) == 1
    assert check_table(table) == []


def test_a_row_that_moves_into_the_region_meanwhile_is_not_lost_silently(table: Table) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.upsert(rows_of((3, 11, A, "x")))
    )
    with pytest.raises(ConflictError, match=r'added rows among.*replaces.*\{"id": 3\}'):
        table_on(store).drop_partition(day=A, tries=1)
    assert content(table)[2] == (3, 11, A, "x")
    assert counts(table.drop_partition(day=A)) == (0, 0, 3)


def test_rows_that_become_visible_meanwhile_end_too(table: Table) -> None:
    other = Table.open(table.uri)
    other.ingest(rows_of((20, 1, A, "y"), (21, 1, C, "y")))
    store = Interfering(inner=table.storage, interfere=other.metagen)
    assert counts(table_on(store).drop_partition(day=A)) == (0, 0, 3)
    assert [row[0] for row in content(table)] == [3, 4, 5, 6, 21]
    assert check_table(table) == []


def test_a_delete_meanwhile_is_no_row_of_the_region(table: Table) -> None:
    """The file of a delete row has null in the partition column."""
    other = Table.open(table.uri)
    other.delete("id = 1")
    store = Interfering(inner=table.storage, interfere=lambda: other.delete("id = 3"))
    table_on(store).drop_partition(day=None, tries=1)
    assert [row[0] for row in content(table)] == [2, 4]


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_at_any_call_of_an_overwrite_costs_nothing_but_a_rerun(
    mode: Mode, request: pytest.FixtureRequest
) -> None:
    def overwrite(table: Table) -> None:
        source, _ = shop.rows([("ax", 2, 1), ("new", 2, 3)])
        table.overwrite(source, where="price < 30", token="overwrite")

    first = [("ax", 1, 10), ("bow", 1, 20), ("cup", 1, 30)]
    for table, where in tables_after_failures(request.node.name, first, overwrite, mode):
        assert shop.content(table) == [("ax", 2, 1), ("cup", 1, 30), ("new", 2, 3)], where
        assert [commit.operation for commit in table.commits()].count("overwrite") == 1, where
        assert check_table(table) == [], where
