"""The replacement of a table: its columns, constraints and rows in one commit."""

from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake import Table
from opal_lake.definition.changes.apply import changed
from opal_lake.definition.changes.defaults import SetDefault
from opal_lake.definition.sql_schema import arrow_of_sql
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import ConflictError, InvalidInputError
from opal_lake.result import JobResult
from opal_lake.storage import open_storage
from opal_lake.table import create_on, table_on
from opal_lake.write.replace_table import NewContent, replace_table
from tests.kit.check import check_table
from tests.kit.failing_store import Mode
from tests.opal_lake.write.meanwhile import MODES, Interfering, tables_after_failures

COLUMNS = "id BIGINT, at BIGINT, name STRING, amount INT"
FIRST = [(1, 10, "a", 100), (2, 10, "b", 200), (3, 10, "c", 300)]
Row = tuple[Any, ...]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    created = Table.create(str(tmp_path / "t"), arrow_of_sql(COLUMNS), keys=["id"], delta="at")
    created.upsert(rows_of(COLUMNS, *FIRST))
    return created


def rows_of(columns: str, *rows: Row) -> pa.Table:
    schema = arrow_of_sql(columns)
    return pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema
    )


def replaced(
    table: Table,
    columns: str,
    *rows: Row,
    token: str | None = None,
    tries: int = 3,
    defaults: dict[str, str] | None = None,
    **layout: Any,
) -> JobResult:
    """Replace a table by one with these columns and rows."""
    roles = {"keys": ["id"], "delta": "at", **layout}
    planned = plan_spec(arrow_of_sql(columns), TableLayout(**roles))
    changes = [SetDefault(name, value) for name, value in (defaults or {}).items()]
    spec, _ = changed(planned, changes)
    source = rows_of(columns, *rows) if rows else None
    return replace_table(
        table, lambda _: NewContent(spec=spec, rows=source), token=token, tries=tries
    )


def content(table: Table, **moment: Any) -> list[Row]:
    return sorted(tuple(row.values()) for row in table.read(**moment).to_pylist())


def names(table: Table, **moment: Any) -> list[str]:
    return table.read(**moment).column_names


def test_columns_and_rows_change_in_one_commit_and_older_versions_stay(table: Table) -> None:
    columns = "amount STRING, id BIGINT, at BIGINT, city STRING"
    result = replaced(table, columns, ("x", 1, 10, "Ghent"), ("y", 9, 1, None))
    assert (result.operation, result.version) == ("replace", 2)
    counts = {name: result.counts[name] for name in ("inserted", "updated", "deleted")}
    assert counts == {"inserted": 1, "updated": 1, "deleted": 2}
    assert result.notes == (
        "dropped column 'name'",
        "dropped column 'amount'",
        "added column 'amount'",
        "added column 'city'",
    )
    assert names(table) == ["amount", "id", "at", "city"]
    assert content(table) == [("x", 1, 10, "Ghent"), ("y", 9, 1, None)]
    assert names(table, version=1) == ["id", "at", "name", "amount"]
    assert content(table, version=1) == FIRST
    assert [commit.operation for commit in table.commits()] == ["replace", "ingest", "create"]
    assert check_table(table) == []


def test_a_column_of_the_same_type_stays_and_one_of_another_type_is_new(table: Table) -> None:
    before = {field.name: field.id for field in table.snapshot_at().spec.schema.fields}
    replaced(table, "ID BIGINT, at BIGINT, name INT, amount BIGINT", (1, 10, 7, 8))
    after = {field.name: field.id for field in table.snapshot_at().spec.schema.fields}
    assert (after["ID"], after["at"], after["amount"]) == (
        before["id"],
        before["at"],
        before["amount"],
    )
    assert after["name"] not in before.values()
    # The row that ended has no value of the new column
    images = table.changes(start=2, columns=["ID", "name", "amount"]).to_pylist()
    shown = [(row["_change_type"], row["ID"], row["name"], row["amount"]) for row in images]
    assert sorted(shown) == [
        ("delete", 2, None, 200),
        ("delete", 3, None, 300),
        ("update_postimage", 1, 7, 8),
        ("update_preimage", 1, None, 100),
    ]


def test_constraints_properties_and_defaults_become_those_of_the_new_table(table: Table) -> None:
    table.set_properties({"target_mb": 7})
    table.alter([{"add_constraint": "few", "check": "amount < 1000"}])
    replaced(
        table,
        COLUMNS,
        (1, 10, "a", 5000),
        not_null=["name"],
        constraints={"many": "amount > 1000"},
        properties={"small_files": 8},
        defaults={"amount": "2000"},
    )
    spec = table.snapshot_at().spec
    assert spec.constraints == {"many": "amount > 1000"}
    assert spec.properties == {"small_files": 8}
    table.upsert(pa.table({"id": [2], "at": [10], "name": ["b"]}))
    assert content(table) == [(1, 10, "a", 5000), (2, 10, "b", 2000)]
    with pytest.raises(InvalidInputError, match="declared NOT NULL"):
        table.upsert(rows_of(COLUMNS, (3, 10, None, 2000)))
    assert check_table(table) == []


def test_without_rows_the_table_is_empty(table: Table) -> None:
    result = replaced(table, "id BIGINT, at BIGINT, note STRING", not_null=["note"])
    assert result.counts["deleted"] == 3
    assert (names(table), content(table)) == (["id", "at", "note"], [])
    # Only the definition changes
    again = replaced(table, "id BIGINT, at BIGINT, note INT")
    assert (again.version, content(table)) == (3, [])
    assert not next(iter(table.commits())).changes_view
    # And now nothing at all
    same = replaced(table, "id BIGINT, at BIGINT, note INT")
    assert (same.version, len([*table.commits()])) == (None, 4)
    table.upsert(rows_of("id BIGINT, at BIGINT, note INT", (1, 10, 4)))
    assert content(table) == [(1, 10, 4)]
    assert check_table(table) == []


def test_a_generated_column_is_new_and_computed(tmp_path: Path) -> None:
    columns = "id BIGINT, at BIGINT, twice DECIMAL(21,0)"
    created = Table.create(str(tmp_path / "t"), arrow_of_sql(columns), keys=["id"], delta="at")
    created.upsert(rows_of(columns, (1, 10, 5)))
    replaced(created, columns, (1, 10, None), (2, 11, 22), generated={"twice": "at * 2"})
    assert content(created) == [(1, 10, 20), (2, 11, 22)]
    # The column of the old row is another one, which a restored row would not have computed
    with pytest.raises(InvalidInputError, match=r"violates? constraints that were added later"):
        created.restore(version=1)
    replaced(created, columns, (1, 10, 5))
    created.restore(version=2)
    assert [row[:2] for row in content(created)] == [(1, 10), (2, 11)]
    assert check_table(created) == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"keys": ["id", "name"]}, r"keys is \['id'\] in the table, .*\['id', 'name'\]"),
    ({"delta": "amount"}, "delta is 'at' in the table, and would become 'amount'"),
    ({"tie_break": ["amount"]}, "tie_break is"),
    ({"partition_by": ["name"]}, r"partition_by is \[\] in the table"),
    ({"file_format": "orc"}, "file_format is 'parquet'"),
    ({"deletes": "amount = 0"}, "deletes is None in the table"),
    ({"columns": "id INT, at BIGINT"}, "column 'id'.* is BIGINT in the table.* become INT"),
    ({"columns": "id BIGINT, at TIMESTAMP"}, "column 'at'.* is BIGINT .* become TIMESTAMP"),
    ({"constraints": {"x": "nothing = 1"}}, "no column 'nothing'"),
]


@pytest.mark.parametrize("layout, message", REFUSED)
def test_a_refused_replacement_changes_nothing(
    table: Table, layout: dict[str, Any], message: str
) -> None:
    given = {"columns": COLUMNS, **layout}
    with pytest.raises(InvalidInputError, match=message):
        replaced(table, given.pop("columns"), **given)
    assert content(table) == FIRST
    assert len([*table.commits()]) == 2


def test_rows_that_the_new_definition_refuses_change_nothing(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="1 row that cannot go into"):
        replaced(table, COLUMNS, (1, 10, "a", 1), constraints={"many": "amount > 1000"})
    with pytest.raises(InvalidInputError, match="lower delta"):
        replaced(table, COLUMNS, (1, 9, "a", 1))
    assert content(table) == FIRST


def test_pending_rows_have_to_be_processed_first(table: Table) -> None:
    table.ingest(rows_of(COLUMNS, (4, 10, "d", 400)))
    with pytest.raises(InvalidInputError, match="has 1 pending row"):
        replaced(table, COLUMNS)
    table.metagen()
    replaced(table, COLUMNS)
    assert content(table) == []


def test_rows_that_become_pending_meanwhile_are_not_lost(table: Table) -> None:
    other = Table.open(table.uri)

    def ingest() -> None:
        other.ingest(rows_of(COLUMNS, (4, 10, "d", 400)))

    racing = table_on(Interfering(inner=table.storage, interfere=ingest))
    with pytest.raises(InvalidInputError, match="pending"):
        replaced(racing, COLUMNS)
    other.metagen()
    assert content(table) == [*FIRST, (4, 10, "d", 400)]


def test_a_row_that_comes_meanwhile_ends_too(table: Table) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage, interfere=lambda: other.upsert(rows_of(COLUMNS, (4, 10, "d", 1)))
    )
    replaced(table_on(store), "id BIGINT, at BIGINT", (7, 1))
    assert (store.calls, content(table)) == (2, [(7, 1)])
    assert check_table(table) == []


def test_an_upsert_of_the_old_columns_fails_if_it_commits_later(table: Table) -> None:
    other = Table.open(table.uri)
    store = Interfering(
        inner=table.storage,
        interfere=lambda: replaced(
            other, "id BIGINT, at BIGINT, twice DECIMAL(21,0)", generated={"twice": "at * 2"}
        ),
    )
    with pytest.raises(ConflictError, match="dropped the columns name, amount"):
        table_on(store).upsert(rows_of(COLUMNS, (4, 10, "d", 1)))
    assert content(table) == []


def test_a_token_replaces_once(table: Table) -> None:
    first = replaced(table, "id BIGINT, at BIGINT", (7, 1), token="t")
    table.upsert(pa.table({"id": [8], "at": [1]}))
    again = replaced(table, "id BIGINT, at BIGINT", (7, 1), token="t")
    assert (first.repeated, again.repeated, again.version) == (False, True, first.version)
    assert content(table) == [(7, 1), (8, 1)]


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_at_any_call_leaves_the_old_table_or_the_new_one(
    mode: Mode, request: pytest.FixtureRequest
) -> None:
    # The price that deletes is a text from now on
    columns = "sku STRING, at BIGINT, price STRING"
    source = rows_of(columns, ("ax", 2, "x"), ("new", 2, "y"))
    layout = TableLayout(
        keys=["sku"], delta="at", deletes="price IS NULL", properties={"key_store_fan_in": 2}
    )
    spec = plan_spec(arrow_of_sql(columns), layout)

    def replace_shop(table: Table) -> None:
        new = NewContent(spec=spec, rows=source)
        replace_table(table, lambda _: new, token="replace", tries=3)

    first = [("ax", 1, 10), ("bow", 1, 20)]
    after = [("ax", 2, "x"), ("new", 2, "y")]
    for table, where in tables_after_failures(request.node.name, first, replace_shop, mode):
        assert content(table) == after, where
        assert content(table, version=1) == first, where
        operations = [commit.operation for commit in table.commits()]
        assert operations.count("replace") == 1, where
        assert check_table(table) == [], where


# What a column may be in a random program, and a value of it
KINDS = {"INT": 1, "BIGINT": 2, "STRING": "s", "DATE": date(2026, 1, 1), "STRUCT<a: INT>": {"a": 3}}
definitions = st.dictionaries(st.sampled_from("xyz"), st.sampled_from([*KINDS]), max_size=3)
ids = st.sets(st.integers(1, 5), max_size=4)
steps = st.one_of(
    st.tuples(st.just("replace"), definitions, ids),
    st.tuples(st.just("upsert"), st.just({}), ids),
    st.tuples(st.just("delete"), st.just({}), ids),
    st.tuples(st.just("compact"), st.just({}), st.just(set())),
)


@settings(max_examples=40, deadline=None)
@given(program=st.lists(steps, min_size=1, max_size=6))
def test_every_version_of_a_random_program_shows_its_own_table(
    program: list[tuple[str, dict[str, str], set[int]]],
) -> None:
    """Every version has the columns that its table had then, and the rows of a dict."""
    storage = open_storage(f"memory://replaced-{next(NUMBERS)}")
    columns: dict[str, str] = {"x": "INT"}
    table = create_on(storage, plan_spec(arrow_of_sql(sql_of(columns)), LAYOUT))
    rows: dict[int, Row] = {}
    expected: dict[int, tuple[list[str], list[Row]]] = {}
    for verb, definition, keys in program:
        if verb == "replace":
            columns = definition
            rows = {key: row_of(key, columns) for key in keys}
            new = [(key, *row) for key, row in rows.items()]
            replaced(table, sql_of(columns), *new, delta="_commit")
        elif verb == "upsert" and keys:
            given = {key: row_of(key, columns) for key in keys}
            rows = {**rows, **given}
            table.upsert(rows_of(sql_of(columns), *[(key, *row) for key, row in given.items()]))
        elif verb == "delete" and keys:
            table.delete(f"id IN ({', '.join(map(str, keys))})")
            rows = {key: row for key, row in rows.items() if key not in keys}
        elif verb == "compact":
            table.compact()
        shown = sorted((key, *row) for key, row in rows.items())
        expected[table.snapshot_at().version] = (["id", *columns], shown)
    for version, (column_names, shown) in expected.items():
        assert names(table, version=version) == column_names
        assert content(table, version=version) == shown
    assert check_table(table) == []


NUMBERS = count()
LAYOUT = TableLayout(keys=["id"], delta="_commit")


def sql_of(columns: dict[str, str]) -> str:
    return ", ".join(["id BIGINT", *[f"{name} {kind}" for name, kind in columns.items()]])


def row_of(key: int, columns: dict[str, str]) -> Row:
    """Return a row without its key; every second key has nulls."""
    return tuple(KINDS[kind] if key % 2 else None for kind in columns.values())
