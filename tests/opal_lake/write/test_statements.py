"""Statements: which rows they change, what they refuse, and what other writers do to them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from opal_lake import Table
from opal_lake.errors import (
    ConflictError,
    InvalidInputError,
)
from opal_lake.operations.statements import MergeBuilder
from opal_lake.result import JobResult
from opal_lake.table import table_on
from tests.kit.check import check_table
from tests.kit.failing_store import Mode
from tests.opal_lake import shop
from tests.opal_lake.write.meanwhile import MODES, Interfering, tables_after_failures

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.int64()), ("name", pa.string()), ("price", pa.float64())]
)
Row = tuple[int, int, str | None, float | None]


def rows_of(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    created = Table.create(str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at")
    created.upsert(rows_of((1, 10, "ax", 1.0), (2, 10, "bow", 2.0), (3, 10, "cup", None)))
    return created


def content(table: Table, **moment: Any) -> list[Row]:
    rows = table.read(columns=SCHEMA.names, **moment).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def counts(result: JobResult) -> tuple[int, int, int]:
    return result.counts["inserted"], result.counts["updated"], result.counts["deleted"]


def test_update_changes_the_rows_for_which_the_condition_is_true(table: Table) -> None:
    result = table.update(set={"price": "price * 2", "name": "'new'"}, where="price > 1")
    assert counts(result) == (0, 1, 0)
    assert content(table) == [(1, 10, "ax", 1.0), (2, 10, "new", 4.0), (3, 10, "cup", None)]
    assert check_table(table) == []


def test_update_without_a_new_delta_corrects_the_past(table: Table) -> None:
    table.update(set={"name": "'right'", "at": "at"}, where="id = 1")
    assert content(table, event_time=10)[0] == (1, 10, "right", 1.0)
    assert content(table, version=1)[0] == (1, 10, "ax", 1.0)


def test_update_with_a_later_delta_keeps_the_past(table: Table) -> None:
    table.update(set={"name": "'new'", "at": 20}, where="id = 1")
    assert content(table, event_time=19)[0] == (1, 10, "ax", 1.0)
    assert content(table)[0] == (1, 20, "new", 1.0)


def test_delete_ends_rows_at_their_own_delta_or_at_a_given_one(table: Table) -> None:
    assert counts(table.delete(where="id = 1")) == (0, 0, 1)
    assert counts(table.delete(where="id = 2", at=30)) == (0, 0, 1)
    assert content(table) == [(3, 10, "cup", None)]
    assert content(table, event_time=29) == [(2, 10, "bow", 2.0), (3, 10, "cup", None)]
    assert check_table(table) == []


def test_delete_without_a_condition_empties_the_table(table: Table) -> None:
    assert counts(table.delete()) == (0, 0, 3)
    assert content(table) == []


def test_rows_that_come_after_the_first_delete_may_delete_again(table: Table) -> None:
    table.delete(where="id = 1")
    table.upsert(rows_of((1, 11, "back", 1.0)))
    table.ingest(rows_of((2, 11, "later", 1.0)))
    table.metagen()
    table.compact()
    assert content(table) == [(1, 11, "back", 1.0), (2, 11, "later", 1.0), (3, 10, "cup", None)]
    assert check_table(table) == []


@pytest.mark.parametrize(
    "where, ids", [("id = 1.5", []), ("id IN (2, 1e20, 1.0)", [1, 2]), ("id = 2e0", [2])]
)
def test_a_condition_may_compare_a_key_with_any_number(
    table: Table, where: str, ids: list[int]
) -> None:
    assert sorted(table.read(where=where)["id"].to_pylist()) == ids
    table.update(set={"name": "'changed'"}, where=where)
    assert [row[0] for row in content(table) if row[2] == "changed"] == ids


@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_an_ingest_counts_the_rows_of_statements_that_it_takes_back(
    table: Table, metadata: str
) -> None:
    table.update(set={"name": "'right'"}, where="id = 1")
    table.delete(where="id = 2")
    table.update(set={"name": "'late'", "at": 20}, where="id = 3")
    rows = rows_of((1, 10, "ax", 1.0), (2, 10, "bow", 2.0), (3, 10, "cup", None))

    def ingested() -> JobResult:
        result = table.ingest(rows, metadata=metadata)
        return table.metagen() if metadata == "batch" else result

    first, second = ingested(), ingested()
    assert first.counts["statement_rows"] == 2
    [note] = [text for text in first.notes if "statements had written" in text]
    assert note.startswith("2 rows that statements had written or deleted came back")
    # Now they are rows of the first ingest
    assert "statement_rows" not in second.counts
    assert content(table) == [(1, 10, "ax", 1.0), (2, 10, "bow", 2.0), (3, 20, "late", None)]
    assert check_table(table) == []


def test_insert_refuses_keys_that_the_table_has(table: Table) -> None:
    with pytest.raises(InvalidInputError, match=r'1 row would be inserted.*\{"id": 1\}'):
        table.insert(rows_of((1, 11, "again", 1.0), (9, 11, "new", 1.0)))
    assert len(content(table)) == 3
    assert counts(table.insert(rows_of((9, 11, "new", 1.0)))) == (1, 0, 0)


def test_statements_write_rows_that_meet_the_condition_of_deletes(tmp_path: Path) -> None:
    """The condition is for rows of ingests."""
    table = Table.create(
        str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at", deletes="name = 'gone'"
    )
    table.insert(rows_of((1, 10, "gone", 1.0), (2, 10, "bow", 2.0)))
    table.update({"name": "'gone'"}, where="id = 2")
    table.compact()
    assert content(table) == [(1, 10, "gone", 1.0), (2, 10, "gone", 2.0)]
    table.rebuild_key_store()
    table.upsert(rows_of((1, 11, "gone", 1.0)))
    assert content(table) == [(2, 10, "gone", 2.0)]
    assert check_table(table) == []


def test_insert_brings_a_deleted_key_back_from_its_delete_on(table: Table) -> None:
    table.delete(where="id = 1", at=20)
    with pytest.raises(InvalidInputError, match="1 row with a lower delta"):
        table.insert(rows_of((1, 15, "too early", 1.0)))
    table.insert(rows_of((1, 20, "back", 1.0)))
    assert content(table)[0] == (1, 20, "back", 1.0)


MERGES: dict[str, tuple[str, Callable[[MergeBuilder], MergeBuilder], list[Row]]] = {
    "upsert": (
        "t.id = s.id",
        lambda merge: merge.when_matched_update_all().when_not_matched_insert_all(),
        [(1, 10, "ax", 1.0), (2, 20, "new", 9.0), (3, 10, "cup", None), (4, 20, "dye", 8.0)],
    ),
    "first clause wins": (
        "s.id = t.id",
        lambda merge: merge.when_matched_delete(where="s.price > 5").when_matched_update(
            {"name": "'no'"}
        ),
        [(1, 10, "ax", 1.0), (3, 10, "cup", None)],
    ),
    "clause without a match": (
        "t.id = s.id",
        lambda merge: merge.when_matched_delete(where="s.price > 50"),
        [(1, 10, "ax", 1.0), (2, 10, "bow", 2.0), (3, 10, "cup", None)],
    ),
    "expression of both sides": (
        "t.id = s.id",
        lambda merge: merge.when_matched_update({"price": "t.price + s.price", "name": "s.name"}),
        [(1, 10, "ax", 1.0), (2, 10, "new", 11.0), (3, 10, "cup", None)],
    ),
    "insert of some columns": (
        "t.id = s.id",
        lambda merge: merge.when_not_matched_insert({"id": "s.id", "at": "s.at"}),
        [(1, 10, "ax", 1.0), (2, 10, "bow", 2.0), (3, 10, "cup", None), (4, 20, None, None)],
    ),
    "rows without a source": (
        "t.id = s.id",
        lambda merge: merge.when_not_matched_by_source_update(
            {"name": "'old'"}, where="price IS NOT NULL"
        ).when_not_matched_by_source_delete(),
        [(1, 10, "old", 1.0), (2, 10, "bow", 2.0)],
    ),
    "another column": (
        "t.price + 7 = s.price AND s.id > 1",
        lambda merge: merge.when_matched_update({"name": "s.name"}),
        [(1, 10, "ax", 1.0), (2, 10, "bow", 2.0), (3, 10, "cup", None)],
    ),
    "a text column": (
        "t.name = s.name",
        lambda merge: merge.when_matched_delete().when_not_matched_insert_all(where="s.id = 4"),
        [(1, 10, "ax", 1.0), (2, 10, "bow", 2.0), (3, 10, "cup", None), (4, 20, "dye", 8.0)],
    ),
}


@pytest.mark.parametrize("name", MERGES)
def test_merge_applies_its_clauses(table: Table, name: str) -> None:
    on, clauses, expected = MERGES[name]
    source = rows_of((2, 20, "new", 9.0), (4, 20, "dye", 8.0))
    if name == "another column":
        with pytest.raises(InvalidInputError, match="has no equality"):
            clauses(table.merge(source, on=on)).execute()
        return
    clauses(table.merge(source, on=on)).execute()
    assert content(table) == expected
    assert check_table(table) == []


def test_several_source_rows_for_one_row_are_an_error_that_names_the_key(table: Table) -> None:
    source = rows_of((2, 20, "one", 1.0), (2, 21, "two", 2.0))
    merge = table.merge(source, on="t.id = s.id").when_matched_update_all()
    with pytest.raises(InvalidInputError, match=r"more than once.*'latest'.*\{\"id\": 2\}"):
        merge.execute()
    with pytest.raises(InvalidInputError, match="more than once") as raised:
        table.insert(rows_of((7, 20, "one", 1.0), (7, 21, "two", 2.0)))
    assert "latest" not in str(raised.value)
    latest = table.merge(source, on="t.id = s.id", duplicates="latest").when_matched_update_all()
    latest.execute()
    assert content(table)[1] == (2, 21, "two", 2.0)


def test_statement_that_changes_no_row_has_no_version(table: Table) -> None:
    before = table.snapshot_at().version
    source = rows_of((2, 20, "new", 9.0))
    done = [
        table.update({"name": "'x'"}, where="id = 99"),
        table.delete(where="id = 99"),
        table.insert(source.slice(0, 0)),
        table.overwrite(source.slice(0, 0), where="id = 99"),
        table.merge(source.slice(0, 0), on="t.id = s.id").when_matched_update_all().execute(),
    ]
    assert {result.version for result in done} == {None}
    assert table.snapshot_at().version == before


FAULTS: list[tuple[Callable[[Table], Any], str]] = [
    (
        lambda table: table.delete(where="year(id) = 1"),
        "write the condition without it, or run the statement on Spark",
    ),
    (
        lambda table: table.update({"name": datetime.fromisoformat("2026-01-01")}),
        r"^the expression datetime.datetime\(2026, 1, 1, 0, 0\): the TIMESTAMP_NTZ",
    ),
    (
        lambda table: table.alter([{"add": "note", "type": "varchar(10)"}]),
        r"column 'note': VARCHAR\(10\) is not a type of a table.*write STRING",
    ),
    (
        lambda table: table.alter([{"add_constraint": "first", "check": "id < 3"}]),
        "^1 row of .* violates the new constraints",
    ),
]


@pytest.mark.parametrize("call, message", FAULTS)
def test_fault_is_named_with_what_to_do(
    table: Table, call: Callable[[Table], Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call(table)


def test_merge_fills_a_default_only_where_it_inserts(table: Table) -> None:
    table.alter([{"add": "stock", "type": "bigint", "default": 7}])
    merge = table.merge(rows_of((2, 20, "new", 9.0), (9, 20, "dye", 8.0)), on="t.id = s.id")
    both = merge.when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(InvalidInputError, match="update of all columns needs the columns stock"):
        both.execute()
    table.update({"stock": 1}, where="id = 2")
    both.with_schema_evolution().execute()
    stock = {row["id"]: row["stock"] for row in table.read().to_pylist()}
    assert (stock[2], stock[9]) == (1, 7)


def test_a_delete_may_match_several_source_rows(table: Table) -> None:
    source = rows_of((2, 20, "one", 1.0), (2, 21, "two", 2.0))
    assert counts(table.merge(source, on="t.id = s.id").when_matched_delete().execute()) == (
        0,
        0,
        1,
    )


def test_merge_adds_columns_of_the_source_only_if_asked(table: Table) -> None:
    source = rows_of((2, 20, "new", 9.0)).append_column("stock", pa.array([5]))
    table.merge(source, on="t.id = s.id").when_matched_update_all().execute()
    assert "stock" not in table.read().column_names
    merge = table.merge(source, on="t.id = s.id").when_matched_update_all()
    version = table.snapshot_at().version
    done = merge.with_schema_evolution().execute(tries=1)
    assert (done.version, done.notes) == (version + 1, ("added column 'stock'",))
    assert sorted(table.read()["stock"].to_pylist(), key=str) == [5, None, None]
    assert check_table(table) == []


def test_a_refused_merge_adds_no_column(table: Table) -> None:
    wider = rows_of((2, 1, "late", 9.0)).append_column("stock", pa.array([5]))
    merge = table.merge(wider, on="t.id = s.id").with_schema_evolution()
    before = table.snapshot_at()
    with pytest.raises(InvalidInputError, match="lower delta"):
        merge.when_matched_update_all().execute()
    nothing = merge.when_matched_update_all(where="s.stock = 6").execute()
    assert (nothing.version, nothing.notes) == (None, ())
    assert table.snapshot_at().spec == before.spec


def test_a_merge_that_adds_columns_runs_again_after_a_change_of_its_rows(table: Table) -> None:
    wider = rows_of((2, 20, "new", 9.0)).append_column("stock", pa.array([5]))
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.add_columns({"stock": "bigint", "x": "int"})
    )
    merge = table_on(store).merge(wider, on="t.id = s.id").with_schema_evolution()
    assert merge.when_matched_update_all().execute().notes == ()
    assert store.calls == 2
    assert sorted(table.read()["stock"].to_pylist(), key=str) == [5, None, None]


REFUSED: list[tuple[Callable[[Table], Any], str]] = [
    (lambda t: t.update(set={"id": 7}), "an update cannot change the key column 'id'"),
    (lambda t: t.update(set={"at": "at - 1"}), "3 rows with a lower delta"),
    (lambda t: t.delete(where="id = 1", at=9), "1 row with a later delta than `at`"),
    (lambda t: t.update(set={}), "the update sets no column"),
    (lambda t: t.update(set={"name": None, "Name": "'x'"}), "the update sets column 'Name' twice"),
    (
        lambda t: t.insert(rows_of((4, 1, "x", 1.0)).append_column("ID", pa.array([5]))),
        "more than one column 'ID'",
    ),
    (lambda t: t.update(set={"nope": 1}), "sets 'nope', and the table has no such column"),
    (lambda t: t.update(set={"name": "1"}), "does not fit column 'name' of type STRING"),
    (lambda t: t.update(set={"at": "9223372036854775807 + 1"}), "cannot hold"),
    (lambda t: t.update(set={"price": "1 / (id - 1)"}), "divides by zero"),
    (lambda t: t.update(set={"at": None}), "delta column 'at' is null"),
    (lambda t: t.delete(where="nope = 1"), "no column 'nope'"),
    (lambda t: t.delete(where="price"), "expected something true or false"),
    (lambda t: t.update(set={"price": 1}, tries=0), "tries"),
    (lambda t: t.merge(rows_of(), on="t.id = s.id").execute(), "the merge has no clause"),
    (
        lambda t: t.merge(rows_of(), on="t.id = s.id").when_matched_delete("at = 1").execute(),
        "'at' is ambiguous; write 't.at' or 's.at'",
    ),
    (
        lambda t: (
            t.merge(rows_of(), on="t.id = s.id").when_not_matched_insert({"id": "1"}).execute()
        ),
        "an insert needs values for the columns at",
    ),
]


@pytest.mark.parametrize("statement, message", REFUSED, ids=[text for _, text in REFUSED])
def test_a_refused_statement_changes_nothing(
    table: Table, statement: Callable[[Table], Any], message: str
) -> None:
    before = content(table)
    with pytest.raises(InvalidInputError, match=message):
        statement(table)
    assert content(table) == before
    assert len([*table.commits()]) == 2


def test_a_token_applies_a_merge_once(table: Table) -> None:
    merge = table.merge(rows_of((2, 10, "x", 1.0)), on="t.id = s.id")
    merge = merge.when_matched_update({"price": "t.price + 1"})
    first, second = merge.execute(token="m"), merge.execute(token="m")
    assert (first.version, second.version, second.repeated) == (2, 2, True)
    assert content(table)[1] == (2, 10, "bow", 3.0)
    nothing = table.update(set={"price": 1}, where="id = 99", token="n")
    assert table.update(set={"price": 1}, token="n").repeated
    assert counts(nothing) == (0, 0, 0)


def test_a_row_that_another_writer_changed_meanwhile_is_read_again(table: Table) -> None:
    """No update is lost: each of the raced increments counts."""
    other = Table.open(table.uri)

    def add_one(_: int) -> None:
        other.update(set={"price": "price + 1"}, where="id = 1", tries=100)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_one, range(12)))
    assert content(table)[0] == (1, 10, "ax", 13.0)
    assert check_table(table) == []


def test_statements_on_other_rows_of_a_file_never_run_again(table: Table) -> None:
    other = Table.open(table.uri)

    def change(number: int) -> None:
        other.update(set={"name": f"'{number}'"}, where=f"id = {1 + number % 3}", tries=1)

    with ThreadPoolExecutor(3) as pool:
        for _ in range(4):
            list(pool.map(change, range(3)))
    assert [name for _, _, name, _ in content(table)] == ["0", "1", "2"]
    assert check_table(table) == []


def test_a_statement_without_a_try_left_names_the_keys(table: Table) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.upsert(rows_of((1, 11, "other", 0.0))), times=9
    )

    with pytest.raises(ConflictError, match=r'ran 2 times.*\{"id": 1\}'):
        table_on(store).update(set={"price": 5}, where="id = 1", tries=2)
    assert content(table)[0] == (1, 11, "other", 0.0)


def test_a_statement_without_a_conflict_adds_to_what_others_committed_meanwhile(
    table: Table,
) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.upsert(rows_of((2, 11, "other", 0.0))), times=9
    )
    assert table_on(store).update(set={"price": 5}, where="id = 1", tries=1).version == 3
    assert content(table)[:2] == [(1, 10, "ax", 5.0), (2, 11, "other", 0.0)]
    assert check_table(table) == []


def test_a_change_of_the_columns_meanwhile_runs_the_statement_again(table: Table) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.add_columns({"stock": "long"}), times=1
    )
    table_on(store).update(set={"price": 5})
    assert store.calls == 2
    assert "stock" in table.read().column_names
    assert check_table(table) == []
    with pytest.raises(ConflictError, match="the columns or the constraints of the table changed"):
        table_on(store_that_adds(table, "more")).update(set={"price": 6}, tries=1)


def store_that_adds(table: Table, column: str) -> Interfering:
    other = Table.open(table.uri)
    return Interfering(
        inner=table.storage, interfere=lambda: other.add_columns({column: "long"}), times=1
    )


def test_a_property_that_is_set_meanwhile_stays_and_is_no_conflict(table: Table) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.set_properties({"group_rows": 5000}), times=1
    )
    table_on(store).delete(where="id = 1", tries=1)
    assert table.log.head().spec.properties == {"group_rows": 5000}
    assert len(content(table)) == 2


def test_first_deletes_of_different_rows_are_no_conflict(table: Table) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.delete(where="id = 1"), times=1
    )
    table_on(store).delete(where="id = 2", tries=1)
    assert content(table) == [(3, 10, "cup", None)]
    assert check_table(table) == []


def test_the_name_of_the_table_goes_before_a_struct_of_that_name(tmp_path: Path) -> None:
    struct = pa.struct([("x", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("x", pa.int64()), ("t", struct)])
    table = Table.create(str(tmp_path / "t"), schema, keys=["id"], delta="at")
    values = [(1, 5, 6), (2, 6, 5), (3, 5, 5)]
    rows = [{"id": key, "at": 1, "x": x, "t": {"x": of_t}} for key, x, of_t in values]
    table.upsert(pa.Table.from_pylist(rows, schema=schema))
    table.update(set={"at": "at + 1"}, where="t.x = 5")
    changed = table.read(where="at = 2")["id"].to_pylist()
    assert sorted(changed) == [1, 3]


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_at_any_call_of_a_merge_costs_nothing_but_a_rerun(
    mode: Mode, request: pytest.FixtureRequest
) -> None:
    def merge(table: Table) -> None:
        source, _ = shop.rows([("ax", 2, 1), ("bow", 2, 2), ("new", 2, 3)])
        builder = table.merge(source, on="t.sku = s.sku").when_matched_delete(where="s.sku = 'ax'")
        builder = builder.when_matched_update({"price": "t.price + s.price", "at": "s.at"})
        builder.when_not_matched_insert_all().execute(token="merge")

    first = [("ax", 1, 10), ("bow", 1, 20), ("cup", 1, 30)]
    for table, where in tables_after_failures(request.node.name, first, merge, mode):
        assert shop.content(table) == [("bow", 2, 22), ("cup", 1, 30), ("new", 2, 3)], where
        assert [commit.operation for commit in table.commits()].count("merge") == 1, where
        assert check_table(table) == [], where
