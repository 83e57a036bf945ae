"""Verbs of a table, which mean the same over Arrow in this process and with Spark."""

import ast
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opal_lake.definition.positions import Advance
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.table import Table
from tests.contracts.engines import Engine, Values

DAY_1: Values = [("a", 1, 1), ("b", 1, 2), ("c", 1, 3)]
DAY_2: Values = [("a", 2, 10), ("b", 2, None), ("d", 2, 4)]
NOW = [("a", 2, 10), ("c", 1, 3), ("d", 2, 4)]
# What others offer: parts of a table, and how one is made or opened, which every test does
NO_VERBS = {"cache", "executor", "log", "storage", "uri", "snapshot_at", "create", "open"}


@pytest.fixture(scope="module", params=["process", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> Engine:
    is_spark = request.param == "spark"
    return Engine(spark=request.getfixturevalue("spark") if is_spark else None)


def fill(table: Table[Any], engine: Engine) -> Table[Any]:
    """Ingest two days: the first is published by MetaGen, the second at once."""
    table.ingest(engine.frame(DAY_1), partition_key="day 1", token="first")
    table.metagen(partition_key="day 1")
    positions = {"app": Advance(start=0, end=5)}
    table.ingest(engine.frame(DAY_2), metadata="inline", partition_key="day 2", positions=positions)
    return table


@pytest.fixture(scope="module")
def filled(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Table[Any]:
    """Return a table for tests that change nothing."""
    return fill(engine.create(tmp_path_factory.mktemp("filled") / "t"), engine)


@pytest.fixture
def table(engine: Engine, tmp_path: Path) -> Table[Any]:
    return engine.create(tmp_path / "t")


def test_read_shows_rows_of_a_version_a_time_or_a_condition(
    engine: Engine, filled: Table[Any]
) -> None:
    table = filled
    assert engine.rows(table.read()) == NOW
    assert engine.rows(table.read(version=2)) == [*DAY_1]
    assert engine.rows(table.read(event_time=1)) == [*DAY_1]
    assert engine.rows(table.read(where="price BETWEEN 3 AND 4")) == NOW[1:]
    assert engine.rows(table.read(where="lower(sku) = 'a' OR at = 1", columns=["sku"]), "sku") == [
        ("a",),
        ("c",),
    ]
    assert engine.rows(table.read(partition_key="day 2")) == [NOW[0], NOW[2]]
    assert engine.rows(table.read(after=2)) == [NOW[0], NOW[2]]
    with pytest.raises(InvalidInputError, match="prise"):
        table.read(where="prise > 1")
    with pytest.raises(NotFoundError, match="version 9"):
        table.read(version=9)


def test_get_returns_arrow_in_the_order_of_the_keys(engine: Engine, filled: Table[Any]) -> None:
    table = filled
    keys = [{"sku": sku} for sku in ("d", "b", "a")]
    assert table.get(keys).to_pylist() == [
        {"sku": "d", "at": 2, "price": 4},
        {"sku": "a", "at": 2, "price": 10},
    ]
    assert table.get(keys, version=2, where="price = 2").to_pylist() == [
        {"sku": "b", "at": 1, "price": 2}
    ]


def test_changes_list_the_changed_rows_of_each_version(engine: Engine, filled: Table[Any]) -> None:
    table, named = filled, ("_commit_version", "_change_type", "sku", "price")
    of_day_2 = [
        (3, "delete", "b", 2),
        (3, "insert", "d", 4),
        (3, "update_postimage", "a", 10),
        (3, "update_preimage", "a", 1),
    ]
    of_day_1 = [(2, "insert", *row) for row in (("a", 1), ("b", 2), ("c", 3))]
    assert engine.rows(table.changes(1), *named) == [*of_day_1, *of_day_2]
    assert engine.rows(table.changes(3, where="price > 3"), *named) == of_day_2[1:3]
    net = table.changes(1, mode="netChanges")
    assert engine.rows(net, *named[1:]) == [
        ("insert", "a", 10),
        ("insert", "c", 3),
        ("insert", "d", 4),
    ]


def test_history_view_has_the_time_in_which_each_row_was_valid(
    engine: Engine, filled: Table[Any]
) -> None:
    table, named = filled, ("sku", "price", "valid_from", "valid_until", "is_current", "deleted")
    ended = [("a", 1, 1, 2, False, False), ("b", 2, 1, 2, False, True)]
    current = [("a", 10, 2, None, True, False), ("c", 3, 1, None, True, False)]
    everything = [ended[0], current[0], ended[1], current[1], ("d", 4, 2, None, True, False)]
    assert engine.rows(table.history_view(), *named) == everything
    of_a = table.history_view(keys=[{"sku": "a"}], where="is_current OR price = 1")
    assert engine.rows(of_a, *named) == [ended[0], current[0]]


def test_columns_of_a_result_are_named_once_and_are_the_tables(filled: Table[Any]) -> None:
    table, key = filled, [{"sku": "a"}]
    for read in (
        table.read,
        partial(table.get, key),
        table.history_view,
        partial(table.history_view, keys=key),
        partial(table.changes, 0),
        partial(table.changes, 0, axis="event_time"),
    ):
        with pytest.raises(InvalidInputError, match="name at least one column, or leave out"):
            read(columns=[])
        with pytest.raises(InvalidInputError, match="columns name 'sku' 2 times; name it once"):
            read(columns=["sku", "SKU"])
    with pytest.raises(InvalidInputError, match="'valid_from' is always in a history view"):
        table.history_view(columns=["sku", "valid_from"])
    with pytest.raises(InvalidInputError, match="'_change_type' is always in a change feed"):
        table.changes(0, columns=["sku", "_change_type"])


def test_describe_files_and_segments_count_the_same(engine: Engine, filled: Table[Any]) -> None:
    table = filled
    about = table.describe()
    counts = {
        "files": 2,
        "events": 3,
        "rows_ingested": 6,
        "rows_pending": 0,
        "rows_visible": 3,
        "segments": 2,
        "segments_pending": 0,
    }
    assert {name: about["counts"][name] for name in counts} == counts
    assert [column["type"] for column in about["columns"]] == ["string", "bigint", "int"]
    assert (about["keys"], about["delta"], about["deletes"]) == (["sku"], "at", "price IS NULL")
    expected = [("1:0", 3, 2, False), ("3:0", 3, 1, False)]
    names = ("rows", "rows_invalid", "pending")
    assert expected == [(row["segment"], *map(row.get, names)) for row in table.segments()]
    assert expected == [(*row["segments"], *map(row.get, names)) for row in table.files()]
    assert [row["pending"] for row in table.files(version=1)] == [True]
    assert table.segments(version=0) == []


def test_history_and_commits_list_the_operations(engine: Engine, filled: Table[Any]) -> None:
    table = filled
    steps = [(3, "ingest", None), (2, "metagen", None), (1, "ingest", "first"), (0, "create", None)]
    listed = [(row["version"], row["operation"], row["token"]) for row in table.history()]
    assert listed == steps
    assert [row["version"] for row in table.history(limit=1)] == [3]
    commits = [(commit.version, commit.operation, commit.token) for commit in table.commits()]
    assert commits == steps
    counts = {"updates": 2, "deletes": 1, "late": 0, "events": 3, "rows": 3}
    newest = table.history(limit=1)[0]["counts"]
    assert {name: newest[name] for name in counts} == counts
    assert table.position("app") == 5
    assert table.position("another") is None


def test_a_history_of_0_is_all_of_it_and_of_less_an_error(filled: Table[Any]) -> None:
    table = filled
    assert table.history(0) == table.history()
    assert [*table.commits(0)] == [*table.commits()]
    for read in (table.history, table.commits):
        with pytest.raises(
            InvalidInputError,
            match="limit must be a whole number of at least 1, or 0 for all, got -1",
        ):
            read(-1)


def test_explain_says_which_files_a_read_leaves_out(engine: Engine, filled: Table[Any]) -> None:
    about = filled.explain(where="price > 3")
    files = {name: count for name, count in about["files"].items() if count}
    assert files == {"total": 2, "pruned_by_bounds": 1, "read_filtered": 1}
    assert [condition["condition"] for condition in about["conditions"]] == ["price > 3"]


def test_check_of_a_sound_table_reports_its_extent(engine: Engine, filled: Table[Any]) -> None:
    table = filled
    findings = table.check()
    assert findings == []
    assert findings.looked_at.text == "version 3: 2 data files with 6 rows, whole"
    every = table.check(all=True)
    assert every == []
    assert every.looked_at.text == "versions 0 to 3: 2 data files with 6 rows, whole"


def test_ingest_applies_a_token_once_and_adds_columns(engine: Engine, table: Table[Any]) -> None:
    first = table.ingest(engine.frame(DAY_1), token="t")
    again = table.ingest(engine.frame(DAY_1), token="t")
    assert (first.version, again.version, again.repeated) == (1, 1, True)
    wider = engine.frame([("e", 5, 5)], note=["x"])
    with pytest.raises(InvalidInputError, match="note"):
        table.ingest(wider)
    table.ingest(wider, on_new_columns="add", metadata="inline")
    table.metagen()
    read = engine.rows(table.read(where="note IS NOT NULL OR price = 1"), "sku", "note")
    assert read == [("a", None), ("e", "x")]
    table.add_columns({"amount": "decimal(10,2)"})
    assert table.describe()["columns"][-1] == {"id": 5, "name": "amount", "type": "decimal(10,2)"}
    assert {row for (row,) in engine.rows(table.read(), "amount")} == {None}
    table.alter([{"rename": "amount", "to": "total"}, {"widen": "total", "type": "decimal(20,2)"}])
    assert table.describe()["columns"][-1] == {"id": 5, "name": "total", "type": "decimal(20,2)"}
    assert {row for (row,) in engine.rows(table.read(), "total")} == {None}
    table.set_properties({"group_rows": 100})
    assert table.describe()["properties"] == {"group_rows": 100}


def test_pending_rows_are_published_or_discarded_by_their_key(
    engine: Engine, table: Table[Any]
) -> None:
    table.ingest(engine.frame(DAY_1), partition_key="day 1")
    table.ingest(engine.frame(DAY_2), partition_key="day 2", token="second")
    published = table.metagen(partition_key="day 1")
    assert published.counts["rows"] == 3
    assert [example["partition_key"] for example in published.examples] == ["day 2"]
    assert engine.rows(table.read()) == [*DAY_1]
    gone = table.discard(token="second")
    assert gone.counts["rows"] == 3
    table.metagen(all=True)
    assert engine.rows(table.read()) == [*DAY_1]
    with pytest.raises(InvalidInputError, match=r"discarded the rows .* token 'second'"):
        table.discard(token="second")


def test_rewrites_change_files_and_no_row(engine: Engine, table: Table[Any]) -> None:
    fill(table, engine)
    before = engine.rows(table.history_view(), "sku", "at", "price", "valid_from", "deleted")
    table.compact()
    assert [row["rows"] for row in table.files()] == [6]
    table.zorder(["price"], whole=True)
    table.rebuild_key_store()
    after = engine.rows(table.history_view(), "sku", "at", "price", "valid_from", "deleted")
    assert after == before
    assert engine.rows(table.read()) == NOW
    table.compact(mode="major", look_back=0)
    assert engine.rows(table.read()) == NOW
    assert table.describe()["floor"] == 2
    assert table.check() == []


def test_restore_savepoints_and_retention_go_by_versions(engine: Engine, table: Table[Any]) -> None:
    fill(table, engine)
    table.savepoint("day-1", version=2)
    assert table.describe()["savepoints"] == {"day-1": 2}
    would = table.restore(savepoint="day-1", dry_run=True)
    assert would.version is None
    table.restore(savepoint="day-1")
    assert engine.rows(table.read()) == [*DAY_1]
    table.retain(window="0s", grace="0s")
    assert engine.rows(table.read(version=2)) == [*DAY_1]
    with pytest.raises(NotFoundError, match=r"version 3 of .* has expired"):
        table.read(version=3)
    table.release("day-1")
    assert table.describe()["savepoints"] == {}
    assert table.check(all=True) == []


def test_maintenance_and_the_clock_have_nothing_to_do(engine: Engine, filled: Table[Any]) -> None:
    table = filled
    assert table.maintain(dry_run=True).version is None
    assert table.repair_clock(dry_run=True).version is None


def test_business_snapshots_are_finished_by_name(engine: Engine, tmp_path: Path) -> None:
    table = engine.create(tmp_path / "t", drift="0s")
    name = "2026-11-01"
    table.ingest(engine.frame(DAY_1), business_snapshot=name, metadata="inline")
    assert table.describe()["business_snapshots"]["open"] == name
    table.finish_business_snapshot(name)
    assert table.describe()["business_snapshots"]["finished"] != []
    assert engine.rows(table.read(business_snapshot=name)) == [*DAY_1]


def test_rejected_rows_are_listed_and_none_of_a_frame_can_be_replayed(
    engine: Engine, table: Table[Any]
) -> None:
    rows: Values = [*DAY_1, (None, 1, 4)]
    table.ingest(engine.frame(rows), metadata="inline", on_bad_rows="quarantine")
    [rejected] = table.rejected()
    assert (rejected["rows"], rejected["can_replay"]) == (1, False)
    assert table.replay().version is None
    assert engine.rows(table.read()) == [*DAY_1]


def test_statements_change_rows_of_a_condition(engine: Engine, table: Table[Any]) -> None:
    fill(table, engine)
    updated = table.update({"price": "price + 1"}, where="sku IN ('a', 'd') AND price < 10")
    assert (updated.counts["updated"], updated.version) == (1, 4)
    assert engine.rows(table.read()) == [("a", 2, 10), ("c", 1, 3), ("d", 2, 5)]
    assert table.delete("price = 3", at=7).counts["deleted"] == 1
    assert engine.rows(table.read(event_time=6)) == [("a", 2, 10), ("c", 1, 3), ("d", 2, 5)]
    assert engine.rows(table.read()) == [("a", 2, 10), ("d", 2, 5)]
    assert table.update({"price": 1}, where="price = 3").version is None
    with pytest.raises(InvalidInputError, match="key column 'sku'"):
        table.update({"sku": "'x'"})
    assert table.check(all=True) == []


def test_insert_adds_keys_and_upsert_replaces_them(engine: Engine, table: Table[Any]) -> None:
    assert table.insert(engine.frame(DAY_1), token="t").counts["inserted"] == 3
    assert table.insert(engine.frame(DAY_1), token="t").repeated
    with pytest.raises(InvalidInputError, match="already"):
        table.insert(engine.frame([("c", 2, 1), ("e", 1, 1)]))
    table.upsert(engine.frame([("c", 2, 9), ("e", 1, 1)]))
    assert engine.rows(table.read()) == [*DAY_1[:2], ("c", 2, 9), ("e", 1, 1)]


@pytest.mark.parametrize("on", ["t.sku = s.sku", "t.sku = s.sku AND t.at <= s.at"])
def test_merge_applies_clauses_to_pairs_and_to_other_rows(
    engine: Engine, table: Table[Any], on: str
) -> None:
    table.upsert(engine.frame(DAY_1))
    rows = engine.frame([("a", 2, 5), ("b", 2, 0), ("d", 2, 4), ("e", 2, -1)])
    merge = table.merge(rows, on=on).when_matched_delete(where="s.price = 0")
    merge = merge.when_matched_update({"price": "t.price + s.price", "at": "s.at"})
    merge = merge.when_not_matched_insert_all(where="price > 0")
    counts = merge.execute(token="m").counts
    assert (counts["inserted"], counts["updated"], counts["deleted"]) == (1, 1, 1)
    assert merge.execute(token="m").repeated
    assert engine.rows(table.read()) == [("a", 2, 6), ("c", 1, 3), ("d", 2, 4)]
    others = table.merge(rows, on=on).when_not_matched_by_source_update({"price": 0})
    assert others.execute().counts["updated"] == 1
    assert engine.rows(table.read()) == [("a", 2, 6), ("c", 1, 0), ("d", 2, 4)]
    assert table.check(all=True) == []


def test_inserts_and_overwrites_refuse_columns_that_the_table_lacks(
    engine: Engine, table: Table[Any]
) -> None:
    rows = engine.frame([("new", 1, 10)])
    table.alter([{"rename": "price", "to": "cost"}])
    for write in (table.insert, table.overwrite):
        with pytest.raises(InvalidInputError, match="'price', which the table calls 'cost'"):
            write(rows)
    assert table.history()[0]["operation"] == "alter"


def test_overwrite_replaces_the_rows_of_a_condition_or_all(
    engine: Engine, table: Table[Any]
) -> None:
    table.upsert(engine.frame([*DAY_1, ("d", 1, 40)]))
    rows = engine.frame([("b", 1, 20), ("d", 2, 4), ("e", 1, 5)])
    result = table.overwrite(rows, where="price < 30", token="o")
    counts = [result.counts[name] for name in ("inserted", "updated", "deleted")]
    assert counts == [1, 2, 2]
    assert table.overwrite(rows, where="price < 30", token="o").repeated
    assert engine.rows(table.read()) == [("b", 1, 20), ("d", 2, 4), ("e", 1, 5)]
    outside = engine.frame([("e", 1, 5), ("f", 1, 30), ("g", 1, None)])
    with pytest.raises(InvalidInputError, match="the overwrite changed nothing"):
        table.overwrite(outside, where="price < 30")
    with pytest.raises(InvalidInputError, match=r"lower delta.*d"):
        table.overwrite(engine.frame([("d", 1, 4)]))
    assert table.overwrite(engine.frame([("d", 2, 5)]), at=7).counts["deleted"] == 2
    assert engine.rows(table.read()) == [("d", 2, 5)]
    assert engine.rows(table.read(event_time=6)) == [("b", 1, 20), ("d", 2, 5), ("e", 1, 5)]
    assert table.check(all=True) == []


def test_overwrite_replaces_the_partitions_of_its_rows(engine: Engine, tmp_path: Path) -> None:
    table = engine.create(tmp_path / "t", partition_by=["price"])
    table.insert(engine.frame([("a", 1, 1), ("b", 1, 1), ("c", 1, None), ("d", 1, 2), ("e", 1, 3)]))
    rows = engine.frame([("a", 1, 1), ("d", 1, None), ("f", 1, 4)])
    result = table.overwrite(rows, partitions="dynamic")
    counts = [result.counts[name] for name in ("inserted", "updated", "deleted")]
    # The row of d moves from another partition
    assert counts == [1, 2, 2]
    shown = [("a", 1, 1), ("d", 1, None), ("e", 1, 3), ("f", 1, 4)]
    assert engine.rows(table.read()) == shown
    assert table.drop_partition(price=3).counts["deleted"] == 1
    assert table.drop_partition({"price": None}, token="d").counts["deleted"] == 1
    assert table.drop_partition(price=None, token="d").repeated
    assert table.drop_partition(price=3).counts["deleted"] == 0
    assert engine.rows(table.read()) == [("a", 1, 1), ("f", 1, 4)]
    with pytest.raises(InvalidInputError, match="not a partition column"):
        table.drop_partition(sku="a")
    assert table.check(all=True) == []


@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_an_ingest_that_replaces_its_key_ends_the_rows_it_lacks(
    engine: Engine, table: Table[Any], metadata: str
) -> None:
    def ingest(key: str, *values: tuple[str, int, int | None]) -> int:
        rows = engine.frame([*values])
        result = table.ingest(rows, mode="replace", partition_key=key, metadata=metadata)
        if metadata == "batch":
            table.metagen(partition_key=key)
        return result.counts["ended"]

    assert ingest("1", ("a", 1, 1), ("b", 1, 2), ("c", 1, 3)) == 0
    assert ingest("2", ("b", 2, 20), ("d", 2, 4)) == 0
    # b is the other key's now; its earlier row comes late
    assert ingest("1", ("a", 1, 5), ("b", 1, 2)) == 1
    assert engine.rows(table.read()) == [("a", 1, 5), ("b", 2, 20), ("d", 2, 4)]
    assert ingest("1", ("c", 1, 3)) == 1
    assert engine.rows(table.read()) == [("b", 2, 20), ("c", 1, 3), ("d", 2, 4)]
    with pytest.raises(InvalidInputError, match=r"mode='replace'.*lower delta.*|.*d.*lower delta"):
        ingest("2", ("b", 2, 20), ("d", 1, 4))
    assert ingest("2", ("d", 3, None), ("e", 2, 5)) == 1
    assert engine.rows(table.read()) == [("c", 1, 3), ("e", 2, 5)]
    assert table.check(all=True) == []


def test_alter_changes_columns_and_no_row(engine: Engine, table: Table[Any]) -> None:
    fill(table, engine)
    table.alter([{"rename": "sku", "to": "item"}])
    assert engine.rows(table.read(), "item", "at", "price") == NOW
    assert table.describe()["keys"] == ["item"]


def test_erase_removes_all_rows_of_a_key(engine: Engine, table: Table[Any]) -> None:
    fill(table, engine)
    other_rows = [row for row in NOW if row[0] != NOW[0][0]]
    table.erase(where=f"sku = '{NOW[0][0]}'", grace="0s", token="e")
    assert engine.rows(table.read()) == other_rows
    assert table.erase(where=f"sku = '{NOW[0][0]}'", grace="0s", token="e").repeated
    assert table.check(all=True) == []


def test_every_verb_has_a_contract() -> None:
    verbs = {name for name in dir(Table) if not name.startswith("_")} - NO_VERBS
    assert verbs - called_by_tests() == set()


def called_by_tests() -> set[str]:
    """Return the methods that tests of this module call on a table of either engine."""
    tree = ast.parse(Path(__file__).read_text())
    called: set[str] = set()
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test_"):
            continue
        if "engine" not in {argument.arg for argument in function.args.args}:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if isinstance(owner, ast.Name) and owner.id in ("table", "filled"):
                    called.add(node.func.attr)
    return called
