"""Values that did not change are found in pending files.

Files that cannot hold them are not read.
"""

from typing import Any

import pyarrow as pa
import pytest

from opal_lake.definition.schema import Atomic, arrow_type
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, create_on, table_on
from opal_lake.write.ingest_job import ingest
from tests.kit.strategies import ORDER_KINDS, POOLS

LONG = ("x" * 40 + "a", "x" * 40 + "b", "\U0010ffff" * 40)
LONG_BYTES = (b"x" * 40 + b"a", b"\xff" * 40)


class Counting(ForwardingStore):
    """Remembers which data files were read."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.gets: list[str] = []

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if path.startswith("data/"):
            self.gets.append(path)
        return self.inner.get(path, start, length)


def new_table(store: Storage, key: str, delta: str, file_format: str) -> tuple[Table, pa.Schema]:
    schema = pa.schema(
        [
            ("id", arrow_type(Atomic(name=key))),
            ("at", arrow_type(Atomic(name=delta))),
            ("n", pa.int64()),
        ]
    )
    layout = TableLayout(keys=["id"], delta="at", file_format=file_format)
    create_on(store, plan_spec(schema, layout))
    return table_on(store), schema


def update(table: Table, schema: pa.Schema, key: Any, at: Any) -> JobResult:
    """Make a row visible at once whose `n` did not change."""
    rows = pa.Table.from_pylist([{"id": key, "at": at, "n": None}], schema)
    rows = rows.append_column("_opal_unchanged", pa.array(['["n"]']))
    return ingest(table, lambda spec, number: rows, Ingest([], metadata="inline"))


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("key", POOLS)
def test_only_the_pending_file_that_has_the_key_is_read(key: str, file_format: str) -> None:
    values = {
        **POOLS,
        "string": (*POOLS["string"], *LONG),
        "binary": (*POOLS["binary"], *LONG_BYTES),
    }[key]
    store = Counting(MemoryStorage())
    table, schema = new_table(store, key, "integer", file_format)
    for n, value in enumerate(values):
        table.ingest(pa.Table.from_pylist([{"id": value, "at": 1, "n": n}], schema))
    reads = []
    for value in values:
        store.gets.clear()
        update(table, schema, value, 2)
        reads.append(len(store.gets))
    if key != "boolean":
        assert sum(reads) <= 2 * len(values), "one for its entry and one for its value"
    table.metagen()
    assert sorted(table.read()["n"].to_pylist()) == [*range(len(values))]
    assert table.read()["at"].to_pylist() == [2] * len(values)


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("delta", ORDER_KINDS)
def test_files_of_later_rows_are_not_read(delta: str, file_format: str) -> None:
    first, second, *_, last = sorted(POOLS[delta])
    store = Counting(MemoryStorage())
    table, schema = new_table(store, "long", delta, file_format)
    table.ingest(pa.Table.from_pylist([{"id": 1, "at": first, "n": 7}], schema))
    table.ingest(pa.Table.from_pylist([{"id": 1, "at": last, "n": 8}], schema))
    store.gets.clear()
    update(table, schema, 1, second)
    assert len({*store.gets}) == 1
    table.metagen()
    rows = table.history_view().select(["at", "n"]).to_pylist()
    assert sorted((row["at"], row["n"]) for row in rows) == [(first, 7), (second, 7), (last, 8)]


def test_a_pending_file_that_may_hold_a_row_is_read_once() -> None:
    store = Counting(MemoryStorage())
    table, schema = new_table(store, "long", "integer", "parquet")
    table.ingest(pa.Table.from_pylist([{"id": 5, "at": 1, "n": 0}], schema), metadata="inline")
    for n in range(10):
        rows = [{"id": key, "at": 1, "n": n} for key in (0, 9)]
        table.ingest(pa.Table.from_pylist(rows, schema))
    counts = []
    for at in (2, 3, 4):
        store.gets.clear()
        update(table, schema, 5, at)
        counts.append(len(store.gets))
    assert counts == [11, 1, 1]
    assert table.read()["n"].to_pylist() == [0]
