"""Concurrent maintenance: what one job does between two steps of another."""

from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa
import pytest

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.engine.results import run_once
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.log.checkpoint import write_checkpoint
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, create_on, table_on
from tests.kit.check import check_table
from tests.opal_lake.clustering import zorder
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import SCHEMA, Row, content, create, rows

DAY_US = 86_400_000_000


class Interrupted(MemoryStorage):
    """A store in which something happens right before the first file of a kind is put."""

    def __init__(
        self, inner: Storage, is_moment: Callable[[str], bool], happens: Callable[[], object]
    ) -> None:
        super().__init__()
        self.inner, self.is_moment, self.happens = inner, is_moment, happens
        self.left = 1
        self.list, self.get, self.delete = inner.list, inner.get, inner.delete  # type: ignore[method-assign]  # all the same store

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        if self.left and self.is_moment(path):
            self.left = 0
            self.happens()
        return self.inner.put_if_absent(path, data)


def upsert(table: Table, batch: Sequence[Row]) -> None:
    table.ingest(*rows(batch), metadata="inline")


def test_a_compaction_that_loses_all_its_files_forgets_nothing() -> None:
    store = MemoryStorage()
    table = create(store)
    upsert(table, [("zz", 1, 1)])
    compact(table, floor=100)
    upsert(table, [(f"k{number}", 10, 1) for number in range(3)])
    upsert(
        table,
        [(f"k{number}", 20, 2) for number in range(3)]
        + [(f"n{number}", 20, 7) for number in range(100)],
    )
    before, (first, *_) = content(table), table.snapshot_at().spec.schema.fields
    head = table.snapshot_at().version
    rival = Interrupted(
        store,
        lambda path: layout.commit_version(path) == head + 1,
        lambda: zorder(table, (first,)),
    )
    compact(table_on(rival), floor=100, target_bytes=1)
    assert rival.left == 0
    assert content(table) == before
    assert check_table(table) == []


def test_two_concurrent_checkpoints_of_a_version_leave_a_valid_one() -> None:
    store = MemoryStorage()
    table = create(store, checkpoint_commits=1000)
    for number in range(40):  # more logs than bases are folded for
        upsert(table, [("a", number, number)])
    rival = Interrupted(
        store,
        lambda path: path.startswith(layout.CHECKPOINTS) and not path.startswith(layout.SECTIONS),
        lambda: write_checkpoint(store, table.log.head()),
    )
    table_on(rival).savepoint("s")
    assert rival.left == 0
    assert content(table) == [("a", 39, 39)]
    assert check_table(table) == []


def test_a_consumer_at_the_newest_version_continues_after_that_version_expired() -> None:
    clock = ManualClock()
    table = create_on(
        MemoryStorage(),
        plan_spec(SCHEMA, TableLayout(keys=["sku"], delta="at", deletes="price IS NULL")),
        clock,
    )
    upsert(table, [("a", 1, 1)])
    seen = table.snapshot_at().version
    for _ in range(40):
        clock.at_us += DAY_US
        table.retain()
    assert table.snapshot_at().root.oldest_version > seen
    upsert(table, [("b", 2, 2)])
    assert [row["sku"] for row in table.read(after=seen).to_pylist()] == ["b"]
    clock.at_us += 10 * DAY_US
    upsert(table, [("c", 3, 3)])
    clock.at_us += 10 * DAY_US
    table.retain()
    with pytest.raises(NotFoundError):
        table.read(after=seen)  # what "b" was to it cannot be told any more


def test_a_look_back_of_a_decimal_counts_in_its_own_unit() -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.decimal128(12, 3))])
    table = create_on(MemoryStorage(), plan_spec(schema, TableLayout(keys=["k"], delta="at")))
    for moment in (500, 1500, 2000):
        table.ingest(
            pa.table({"k": ["a"], "at": [Decimal(moment)]}, schema=schema), metadata="inline"
        )
    assert compact(table, look_back=1000).notes[-1].endswith("1000.000")
    assert table.read(event_time=Decimal(1600)).to_pylist() == [
        {"k": "a", "at": Decimal("1500.000")}
    ]


def test_a_token_belongs_to_one_operation() -> None:
    table = create(MemoryStorage())
    table.ingest(*rows([("a", 1, 1)]), token="in", metadata="inline")
    run_once(table.log, "compact", "t", lambda: compact(table))
    assert run_once(table.log, "compact", "t", lambda: compact(table)).repeated
    with pytest.raises(InvalidInputError, match="was used by a compact"):
        run_once(table.log, "retain", "t", table.retain)
    with pytest.raises(InvalidInputError, match="was used by the ingest"):
        run_once(table.log, "compact", "in", lambda: compact(table))


def test_files_full_of_deletes_that_must_stay_are_rewritten_once() -> None:
    table = create(MemoryStorage())
    upsert(
        table, [(f"k{number}", 1, None if number % 10 == 0 else number) for number in range(100)]
    )
    upsert(table, [("other", 9, 1)])
    first = compact(table, floor=5)
    assert first.counts["files_written"] == 1
    assert compact(table, floor=5).version is None
    assert not compact(table, floor=6).counts["files_read"]  # only the floor is raised
    assert check_table(table) == []
