"""Tables whose delta is the built-in column: each job fills it with its time."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.definition.positions import Advance
from opal_lake.definition.schema import COMMIT
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.operations.create import BUILT_IN_DELTA
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from tests.kit.ids import CountingIds
from tests.second_reader.second_reader import read_table

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
LAYOUT = TableLayout(keys=["id"], delta=COMMIT)


def rows(names: dict[int, str]) -> pa.Table:
    return pa.table({"id": [*names], "name": [*names.values()]}, schema=SCHEMA)


def names_of(table: Table) -> dict[int, str]:
    return {row["id"]: row["name"] for row in table.read().to_pylist()}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SCHEMA, keys=["id"], delta=COMMIT)


def test_last_job_wins_and_history_before_it_stays(table: Table) -> None:
    table.upsert(rows({1: "a", 2: "b"}))
    table.upsert(rows({1: "c"}))
    table.update({"name": "'d'"}, where="id = 1")
    table.delete(where="id = 2")
    table.insert(rows({2: "e"}))
    merge = table.merge(rows({2: "f", 3: "g"}), on="t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert names_of(table) == {1: "d", 2: "f", 3: "g"}
    view = table.history_view(columns=["id", "name"])
    ordered = view.sort_by([("id", "ascending"), ("valid_from", "ascending")]).to_pylist()
    assert [row["name"] for row in ordered] == ["a", "c", "d", "b", "e", "f", "g"]
    assert all(row["valid_from"] != row["valid_until"] for row in ordered)
    assert table.check(all=True) == []


def test_column_is_read_by_name_only(table: Table, tmp_path: Path) -> None:
    table.upsert(rows({1: "a"}))
    assert table.read().column_names == ["id", "name"]
    assert table.get({"id": 1}).column_names == ["id", "name"]
    assert COMMIT not in table.changes(start=0).column_names
    assert table.read(columns=[COMMIT])[COMMIT][0].as_py() > datetime(2026, 1, 1, tzinfo=UTC)
    assert table.read(where=f"{COMMIT} > TIMESTAMP '2026-01-01'").num_rows == 1
    assert read_table(tmp_path / "t").equals(table.read())


@pytest.mark.parametrize("shift", [timedelta(hours=-1), timedelta(), timedelta(hours=1)])
def test_clock_of_another_writer_does_not_decide(shift: timedelta) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    first = create_on(storage, plan_spec(SCHEMA, LAYOUT), clock, CountingIds())
    own_us = clock.now_us() + int(shift.total_seconds()) * 1_000_000
    other = table_on(storage, ManualClock(own_us), CountingIds(prefix="other"))
    for number in range(3):
        first.upsert(rows({1: f"first {number}"}))
        other.upsert(rows({1: f"other {number}"}))
        assert names_of(first) == {1: f"other {number}"}
        first.update({"name": "'updated'"})
        assert names_of(first) == {1: "updated"}
    assert first.history_view().num_rows == 9


def test_upsert_whose_keys_change_meanwhile_runs_again(table: Table) -> None:
    uri = table.uri
    barrier = threading.Barrier(2)

    def write(name: str) -> None:
        own = Table.open(uri)
        barrier.wait()
        for number in range(4):
            own.upsert(rows({1: f"{name} {number}"}))

    threads = [threading.Thread(target=write, args=(name,)) for name in ("x", "y")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    view = table.history_view().sort_by("valid_from")
    # In the order of the commits, each row ends the one before it
    assert view.num_rows == 8
    assert view["valid_until"].to_pylist()[:-1] == view["valid_from"].to_pylist()[1:]
    assert names_of(table) == {1: view["name"][-1].as_py()}
    assert table.check(all=True) == []


POSITIONS = {"a": Advance(start=0, end=1)}
REFUSED: list[tuple[Callable[[Table], Any], str]] = [
    (lambda table: table.ingest(rows({1: "a"})), "metadata='inline'"),
    (lambda table: table.upsert(table.read(columns=["id", "name", COMMIT])), "has a column"),
    (lambda table: table.upsert(rows({1: "a"}), business_snapshot="2026-01-01"), "held back"),
    (
        lambda table: table.upsert(rows({1: "a"}), positions=POSITIONS),
        "a stream",
    ),
    (lambda table: table.delete(at=datetime(2026, 1, 1, tzinfo=UTC)), "leave out at"),
    (lambda table: table.update({COMMIT: "NULL"}), "leave it out"),
    (
        lambda table: (
            table.merge(rows({1: "a"}), on="t.id = s.id", duplicates="latest")
            .when_matched_update_all()
            .execute()
        ),
        "duplicates='latest'",
    ),
    (lambda table: table.alter([{"rename": COMMIT, "to": "at"}]), "cannot be renamed"),
    (lambda table: table.alter([{"drop": COMMIT}]), "the delta"),
]


@pytest.mark.parametrize("call, text", REFUSED)
def test_what_the_built_in_delta_excludes_is_refused(
    table: Table, call: Callable[[Table], Any], text: str
) -> None:
    table.upsert(rows({1: "a"}))
    with pytest.raises(InvalidInputError, match=text):
        call(table)
    assert names_of(table) == {1: "a"}


@pytest.mark.parametrize(
    "schema, arguments, text",
    [
        (SCHEMA.append(pa.field(COMMIT, pa.int64())), {}, "built-in column"),
        (SCHEMA, {"tie_break": ["id"]}, "leave out tie_break"),
        (SCHEMA, {"partition_by": [COMMIT]}, "cannot be a key"),
    ],
)
def test_layout_without_sense_is_refused(
    tmp_path: Path, schema: pa.Schema, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Table.create(str(tmp_path / "u"), schema, keys=["id"], delta=COMMIT, **arguments)


def test_name_is_the_same_for_operations() -> None:
    assert BUILT_IN_DELTA == COMMIT
