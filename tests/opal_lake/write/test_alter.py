"""Changes of columns as a job: one commit, tokens, conflicts, and sources with other names."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.definition.changes.columns import RenameColumn
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import ConflictError, InvalidInputError
from opal_lake.log.commit_log import CommitLog
from opal_lake.operations.ingest import Ingest
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from opal_lake.write.ingest_job import IngestRun, commit_ingest, start_ingest, write_inline
from tests.kit.check import check_table
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns

PLACE = pa.struct([("city", pa.string()), ("n", pa.int16())])
SCHEMA = pa.schema({"id": pa.int32(), "at": pa.int64(), "name": pa.string(), "place": PLACE})


@pytest.fixture(params=["parquet", "orc"])
def make(request: pytest.FixtureRequest) -> Callable[[], Table]:
    """Open the same table as another process does."""
    storage, clock, ids = MemoryStorage(), ManualClock(), CountingIds()
    layout = TableLayout(keys=["id"], delta="at", file_format=request.param)
    create_on(storage, plan_spec(SCHEMA, layout), clock, ids)
    return lambda: Table(
        log=CommitLog(storage=storage, clock=clock, ids=ids), cache=MemoryRuns(storage=storage)
    )


def rows(number: int, at: int = 1) -> pa.Table:
    values = {"id": number, "at": at, "name": "a", "place": {"city": "Bern", "n": 3}}
    return pa.Table.from_pylist([values], SCHEMA)


def test_a_list_of_changes_is_one_commit_that_a_token_repeats(make: Callable[[], Table]) -> None:
    table = make()
    changes: list[Any] = [RenameColumn("name", "title"), {"drop": "place.n"}]
    done = table.alter(changes, token="t")
    assert (done.version, done.counts) == (1, {"renamed": 1, "dropped": 1})
    assert done.notes == ("renamed column 'name' to 'title'", "dropped column 'place.n'")
    assert table.alter(changes, token="t").repeated
    assert table.history()[0]["operation"] == "alter"
    with pytest.raises(InvalidInputError, match="was used by the alter of version 1"):
        table.set_properties({"window": "3d"}, token="t")
    same = table.alter([{"rename": "title", "to": "title"}], token="u")
    assert (same.version, table.alter([{"drop": "title"}], token="u").repeated) == (None, True)


def test_a_failed_list_of_changes_changes_nothing(make: Callable[[], Table]) -> None:
    table = make()
    with pytest.raises(InvalidInputError, match="change 2 of 2: no column 'nope'"):
        table.alter([{"drop": "name"}, {"drop": "nope"}])
    assert table.snapshot_at().version == 0
    for wrong in ([], "drop name", [5], {"drop": "name"}):
        with pytest.raises(InvalidInputError, match=r"write|give"):
            table.alter(wrong)  # type: ignore[arg-type]  # what a caller without types passes


@pytest.mark.parametrize(
    "changes, fails",
    [
        ([{"rename": "name", "to": "title"}, {"rename": "place.city", "to": "town"}], False),
        ([{"widen": "id", "type": "bigint"}, {"widen": "place.n", "type": "int"}], False),
        ([{"move": "name", "first": True}, {"add": "place.zip", "type": "int"}], False),
        ([{"drop": "name"}], True),
        ([{"drop": "place.n"}, {"add": "place.n", "type": "string"}], True),
    ],
)
def test_an_ingest_that_began_before_a_change_fails_only_for_a_drop(
    make: Callable[[], Table], changes: list[dict[str, Any]], fails: bool
) -> None:
    table = make()
    run = start_ingest(table, Ingest([], metadata="inline"))
    assert isinstance(run, IngestRun)
    outputs, rule_outputs = write_inline(table, rows(1), run)
    make().alter(changes)
    if fails:
        with pytest.raises(ConflictError, match=r"version 1 dropped the columns (name|n) while"):
            commit_ingest(table.log, run, outputs, rule_outputs)
        return
    assert commit_ingest(table.log, run, outputs, rule_outputs).version == 2
    [row] = table.read().to_pylist()
    assert row["id"] == 1
    assert "Bern" in row["place"].values()
    assert check_table(table) == []


def test_two_writers_that_change_the_same_column_do_not_both_succeed(
    make: Callable[[], Table],
) -> None:
    first, second = make(), make()
    first.alter([{"rename": "name", "to": "title"}])
    with pytest.raises(InvalidInputError, match=r"no column 'name' \(it was renamed to 'title'\)"):
        second.alter([{"drop": "name"}])
    first.alter([{"drop": "title"}])
    with pytest.raises(InvalidInputError, match=r"no column 'title' \(it was dropped\)"):
        second.read(columns=["title"])


def test_a_source_with_a_former_name_gets_an_explanation(make: Callable[[], Table]) -> None:
    table = make()
    table.alter([{"rename": "name", "to": "title"}, {"drop": "place"}])
    for policy in ("fail", "add", "ignore"):
        with pytest.raises(InvalidInputError, match="'name', which the table calls 'title'"):
            table.ingest(rows(1), on_new_columns=policy)
    renamed = rows(1).rename_columns(["id", "at", "title", "place"])
    for policy in ("fail", "add"):
        with pytest.raises(InvalidInputError, match="'place', which was dropped from the table"):
            table.ingest(renamed, on_new_columns=policy)
    table.ingest(renamed, on_new_columns="ignore", metadata="inline")
    assert table.read().to_pylist() == [{"id": 1, "at": 1, "title": "a"}]
    table.add_columns({"place": "int"})
    assert table.read().to_pylist() == [{"id": 1, "at": 1, "title": "a", "place": None}]


def test_rows_may_lack_a_member_that_was_added_and_no_other_one(
    make: Callable[[], Table],
) -> None:
    table = make()
    table.alter([{"add": "place.zip", "type": "string", "first": True}])
    table.ingest(rows(1), metadata="inline")
    assert table.read()["place"].to_pylist() == [{"zip": None, "city": "Bern", "n": 3}]
    kind = pa.struct([("city", pa.string())])
    lacking = rows(2).set_column(3, "place", pa.array([{"city": "x"}], kind))
    with pytest.raises(InvalidInputError, match="column 'place' lacks its member 'n'"):
        table.ingest(lacking)


def test_a_feed_across_a_change_has_the_columns_of_the_newest_version(
    make: Callable[[], Table],
) -> None:
    table = make()
    table.ingest(rows(1), metadata="inline")
    changes = [
        {"rename": "name", "to": "title"},
        {"drop": "place"},
        {"widen": "id", "type": "long"},
    ]
    table.alter(changes)
    table.ingest(pa.table({"id": [1], "at": [2], "title": ["b"]}), metadata="inline")
    for feed in (table.changes(1), table.changes(1, axis="event_time")):
        assert feed.column_names[:3] == ["id", "at", "title"]
        assert set(feed["title"].to_pylist()) == {"a", "b"}
    assert table.read(version=1).column_names == SCHEMA.names
    [old] = table.read(version=1, newest_columns=True).to_pylist()
    assert old == {"id": 1, "at": 1, "title": "a"}
    assert sorted(table.history_view()["title"].to_pylist()) == ["a", "b"]


def test_a_schema_leads_to_its_columns_once(make: Callable[[], Table]) -> None:
    table = make()
    schema = "id INT, at BIGINT, title STRING, place STRUCT<town: STRING>, note STRING"
    arguments: dict[str, Any] = {
        "schema": schema,
        "renamed": {"title": "name", "place.town": "city"},
        "dropped": ["place.n"],
    }
    done = table.alter(**arguments)
    assert done.counts == {"renamed": 2, "added": 1, "dropped": 1}
    assert table.read().schema.names == ["id", "at", "title", "place", "note"]
    again = table.alter(**arguments)
    assert (again.version, again.notes, table.snapshot_at().version) == (None, (), 1)
    table.add_columns({"extra": "int"})
    assert table.alter(**arguments).notes == ("column 'extra' stays, which the schema lacks",)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "alter takes either changes"),
        ({"changes": [{"drop": "name"}], "schema": "id INT"}, "give one of them"),
        ({"changes": [{"drop": "name"}], "dropped": ["name"]}, "without a schema"),
        ({"schema": "id INT, at BIGINT, name STRING"}, "has a column 'place', which the schema"),
        ({"schema": "id INT NOT NULL"}, "is not a type"),
        ({"schema": ""}, "is not a column"),
    ],
)
def test_a_schema_that_does_not_fit_changes_nothing(
    make: Callable[[], Table], arguments: dict[str, Any], message: str
) -> None:
    table = make()
    with pytest.raises(InvalidInputError, match=message):
        table.alter(**arguments)
    assert table.snapshot_at().version == 0
