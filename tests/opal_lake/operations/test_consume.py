"""A consumer without Spark: its function gets new rows as Arrow, and is called once for a token."""

import sys
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.errors import FunctionError, InvalidInputError
from opal_lake.operations.consume import Change, Consume
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.opal_lake.shop import create, rows

Given = Change[Table, pa.Table]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Given]:
    """Return the list of what the function `shop_consumer:count` is given."""
    given: list[Given] = []
    module: Any = ModuleType("shop_consumer")

    def count(change: Given) -> dict[str, int]:
        given.append(change)
        return {"rows": change.rows.num_rows}

    module.count = count
    module.broken = lambda change: 1 / 0
    module.silent = lambda change: "done"
    monkeypatch.setitem(sys.modules, "shop_consumer", module)
    return given


@pytest.fixture
def table() -> Table:
    table = create(MemoryStorage())
    table.ingest(*rows([("ant", 1, 10), ("bee", 1, 20)]), metadata="inline", partition_key="mon")
    table.ingest(*rows([("ant", 2, 11)]), metadata="inline", partition_key="tue")
    return table


def test_a_function_gets_the_rows_of_a_partition_key(calls: list[Given], table: Table) -> None:
    result = Consume(function="shop_consumer:count", partition_key="mon").run(table)
    assert (result.operation, result.version, dict(result.counts)) == ("consume", 2, {"rows": 2})
    [change] = calls
    assert change.table is table
    assert sorted(change.rows["sku"].to_pylist()) == ["ant", "bee"]
    assert change.valid_rows["sku"].to_pylist() == ["bee"]


def test_a_token_calls_the_function_once(calls: list[Given], table: Table) -> None:
    job = Consume(function="shop_consumer:count", after=1, token="t")
    first, again = job.run(table), job.run(table)
    assert (first.repeated, again.repeated, len(calls)) == (False, True, 1)
    assert dict(again.counts) == dict(first.counts) == {"rows": 1}


def test_changes_are_those_after_a_version(calls: list[Given], table: Table) -> None:
    Consume(function="shop_consumer:count", after=1, rows="changes").run(table)
    kinds = calls[0].rows["_change_type"].to_pylist()
    assert sorted(kinds) == ["update_postimage", "update_preimage"]


def test_changes_from_a_begin_that_expired_are_inserts(calls: list[Given]) -> None:
    clock = ManualClock(at_us=1_700_000_000_000_000, step_us=1000)
    spec = create(MemoryStorage()).snapshot_at().spec
    table = create_on(MemoryStorage(), spec, clock)
    table.ingest(*rows([("ant", 1, 10)]), metadata="inline")
    table.ingest(*rows([("ant", 2, 11), ("bee", 1, 20)]), metadata="inline")
    clock.at_us += 30 * 86_400_000_000
    table.retain(window="1d")
    Consume(function="shop_consumer:count", after=0, rows="changes").run(table)
    changes = calls[0].rows
    assert changes["_change_type"].to_pylist() == ["insert", "insert"]
    assert changes["_commit_version"].to_pylist() == [calls[0].version] * 2
    feed = table.changes("latest")
    assert changes.schema.field("_commit_timestamp") == feed.schema.field("_commit_timestamp")


def test_a_mistake_of_a_function_is_named(calls: list[Given], table: Table) -> None:
    with pytest.raises(FunctionError, match="shop_consumer:broken failed: ZeroDivisionError"):
        Consume(function="shop_consumer:broken", after=0).run(table)
    with pytest.raises(
        InvalidInputError, match="returned str; let the function return nothing, or counts"
    ):
        Consume(function="shop_consumer:silent", after=0).run(table)
    with pytest.raises(InvalidInputError, match="has no function 'absent'"):
        Consume(function="shop_consumer:absent", after=0).run(table)
    assert calls == []
