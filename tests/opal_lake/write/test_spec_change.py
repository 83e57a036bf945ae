"""Columns that are added to a table after its creation.

Tests show which rows are null, what conflicts, what is refused, and what older versions show.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.definition.schema import extended, schema_from_json, schema_to_json
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.log.commit_log import CommitLog
from opal_lake.operations.ingest import Ingest
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from opal_lake.write.ingest_job import (
    IngestRun,
    commit_ingest,
    start_ingest,
    write_inline,
)
from tests.kit.check import check_table
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns

SCHEMA = pa.schema({"id": pa.int64(), "at": pa.int64(), "name": pa.string()})


@pytest.fixture(params=["parquet", "orc"])
def make(request: pytest.FixtureRequest) -> Callable[[], Table]:
    """Open the same table as another process does."""
    storage, clock, ids = MemoryStorage(), ManualClock(), CountingIds()
    layout = TableLayout(
        keys=["id"], delta="at", file_format=request.param, properties={"checkpoint_commits": 2}
    )
    create_on(storage, plan_spec(SCHEMA, layout), clock, ids)
    return lambda: Table(
        log=CommitLog(storage=storage, clock=clock, ids=ids), cache=MemoryRuns(storage=storage)
    )


def rows(*values: tuple[int, int, str], **more: list[Any]) -> pa.Table:
    table = pa.table(
        dict(zip(SCHEMA.names, map(list, zip(*values, strict=True)), strict=True)), SCHEMA
    )
    for name, column in more.items():
        table = table.append_column(name, pa.array(column))
    return table


def shown(table: Table, **view: Any) -> list[dict[str, Any]]:
    return sorted(table.read(**view).to_pylist(), key=lambda row: row["id"])


def test_an_added_column_is_null_in_earlier_rows_and_missing_in_older_versions(
    make: Callable[[], Table],
) -> None:
    table = make()
    table.ingest(rows((1, 1, "a"), (2, 1, "b")), metadata="inline")
    added = table.add_columns(
        {"discount": "double", "seen": "timestamp", "day": "date", "price": "decimal(10, 2)"}
    )
    assert added.version == 2
    assert added.counts == {"columns": 4}
    table.ingest(
        rows((2, 2, "c"), discount=[0.5]), metadata="inline"
    )  # the other new columns are not there
    head = table.snapshot_at().spec.schema
    assert [(field.name, field.id, field.physical) for field in head.fields[3:]] == [
        ("discount", 4, "discount"),
        ("seen", 5, "seen"),
        ("day", 6, "day"),
        ("price", 7, "price"),
    ]
    nothing = {"seen": None, "day": None, "price": None}
    assert shown(table) == [
        {"id": 1, "at": 1, "name": "a", "discount": None, **nothing},
        {"id": 2, "at": 2, "name": "c", "discount": 0.5, **nothing},
    ]
    assert table.read(version=1).column_names == SCHEMA.names
    assert table.get([{"id": 2}, {"id": 1}])["discount"].to_pylist() == [0.5, None]
    feed = table.changes(1)
    assert list(
        zip(feed["_change_type"].to_pylist(), feed["discount"].to_pylist(), strict=True)
    ) == [
        ("insert", None),
        ("insert", None),
        ("update_preimage", None),
        ("update_postimage", 0.5),
    ]
    assert sorted(table.history_view()["discount"].to_pylist(), key=str) == [0.5, None, None]
    assert table.changes(1, axis="event_time").num_rows
    assert check_table(table) == []


def test_adding_an_existing_column_of_the_same_type_commits_nothing(
    make: Callable[[], Table],
) -> None:
    table = make()
    table.add_columns({"discount": "double"}, token="t")
    assert table.add_columns({"Discount": "DOUBLE"}).version is None
    assert table.add_columns({"discount": pa.float64(), "n": "bigint"}).counts == {"columns": 1}
    assert table.add_columns({"discount": "double"}, token="t").repeated
    with pytest.raises(InvalidInputError, match="column 'discount' is DOUBLE, not BIGINT"):
        table.add_columns({"discount": "long", "other": "long"})
    assert "other" not in table.snapshot_at().spec.schema.names


@pytest.mark.parametrize(
    "columns, problem",
    [
        ({}, "names no column"),
        ({"a": "text"}, "is not a type"),
        ({"a": "decimal(50,2)"}, "is not a type"),
        ({"a": "struct<x:>"}, "is not a type"),
        ({"a": "array<int"}, "is not a type"),
        ({"_opal_x": "long"}, "reserved for the format"),
        ({"a": "long", "A": "long"}, "differ in case only"),
        ({"a": pa.null()}, "not supported"),
        ({5: "long"}, "a column has the name 5 of type int; write the name as a text"),
        ({True: "long"}, "a column has the name True of type bool"),
        ({("a",): "long"}, "of type tuple"),
        ({None: "long"}, "empty name"),
    ],
)
def test_columns_that_cannot_be_added_are_refused(
    make: Callable[[], Table], columns: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        make().add_columns(columns)


def test_nested_columns_can_be_added_by_their_arrow_type(make: Callable[[], Table]) -> None:
    table = make()
    table.ingest(rows((1, 1, "a")), metadata="inline")
    kind = pa.struct([("city", pa.string()), ("seen", pa.list_(pa.timestamp("us", "UTC")))])
    table.add_columns({"place": kind})
    structs = pa.array([{"city": "Bern", "seen": []}], kind)
    table.ingest(rows((2, 1, "b")).append_column("place", structs), metadata="inline")
    table.compact()
    assert [row["place"] for row in shown(table)] == [None, {"city": "Bern", "seen": []}]
    assert check_table(table) == []


def test_two_concurrent_writers_both_add_their_columns(make: Callable[[], Table]) -> None:
    first, second = make(), make()
    stale = second.log.head()
    first.add_columns({"a": "long", "b": "string"})
    late = replace(
        second,
        log=Late(
            storage=second.log.storage, clock=second.log.clock, ids=second.log.ids, first=[stale]
        ),
    )
    assert late.add_columns({"c": "double", "a": "long"}).counts == {"columns": 1}
    assert [(field.name, field.id) for field in make().snapshot_at().spec.schema.fields[3:]] == [
        ("a", 4),
        ("b", 5),
        ("c", 6),
    ]
    late = replace(
        late,
        log=Late(
            storage=second.log.storage, clock=second.log.clock, ids=second.log.ids, first=[stale]
        ),
    )
    with pytest.raises(InvalidInputError, match="column 'b' is STRING, not BIGINT"):
        late.add_columns({"b": "long"})


class Late(CommitLog):
    """A log whose reader has looked at the head a while ago."""

    def __init__(self, *, first: list[Any], **parts: Any) -> None:
        super().__init__(**parts)
        object.__setattr__(self, "first", first)

    def head(self, *, to_commit: bool = False) -> Any:
        return self.first.pop() if self.first else super().head(to_commit=to_commit)  # type: ignore[attr-defined]


def test_an_ingest_that_began_before_the_add_commits_and_its_rows_have_null(
    make: Callable[[], Table],
) -> None:
    table = make()
    run = start_ingest(table, Ingest([], metadata="inline"))
    assert isinstance(run, IngestRun)
    outputs, rule_outputs = write_inline(table, rows((1, 1, "a")), run)
    make().add_columns({"discount": "double"})
    make().ingest(rows((1, 2, "b"), discount=[1.5]), metadata="inline")
    assert commit_ingest(table.log, run, outputs, rule_outputs).version == 3
    assert [(row["at"], row["discount"]) for row in shown(table)] == [(2, 1.5)]
    assert [row["discount"] for row in shown(table, event_time=1)] == [None]
    assert check_table(table) == []


@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_an_ingest_adds_ignores_or_refuses_the_columns_that_the_table_lacks(
    make: Callable[[], Table], metadata: str
) -> None:
    table, more = make(), rows((1, 1, "a"), discount=[0.5], tag=pa.array(["x"]).dictionary_encode())
    reserved = {"id": [1], "_opal_x": [1]}
    with pytest.raises(InvalidInputError, match="'_opal_x' of the rows: names that begin with"):
        table.ingest(pa.table(reserved))
    with pytest.raises(InvalidInputError, match="on_new_columns='add' or 'ignore'"):
        table.ingest(more, metadata=metadata)
    table.ingest(more, metadata=metadata, on_new_columns="ignore")
    assert table.snapshot_at().spec.schema.names == SCHEMA.names
    table.ingest(
        rows((2, 1, "b"), discount=[0.5], tag=["x"]),
        metadata=metadata,
        on_new_columns="add",
        token="t",
    )
    table.ingest(
        rows((2, 1, "b"), discount=[0.5], other=[1]),
        metadata=metadata,
        on_new_columns="add",
        token="t",
    )
    table.metagen(all=True)
    assert [(row["id"], row["discount"], row["tag"]) for row in shown(table)] == [
        (1, None, None),
        (2, 0.5, "x"),
    ]
    with pytest.raises(InvalidInputError, match="column 'nothing': type null is not supported"):
        table.ingest(rows((3, 1, "c")).append_column("nothing", pa.nulls(1)), on_new_columns="add")
    with pytest.raises(InvalidInputError, match="unknown; use one of fail, add, ignore"):
        table.ingest(more, on_new_columns="yes")
    with pytest.raises(
        InvalidInputError, match="the rows have no column 'name'"
    ):  # 'name' is none that was added
        table.ingest(rows((3, 1, "c")).drop_columns("name"), on_new_columns="add")
    assert check_table(table) == []


def test_rewrites_join_old_and_new_files_and_a_restore_keeps_the_columns(
    make: Callable[[], Table],
) -> None:
    table = make()
    table.ingest(rows((1, 1, "a"), (2, 1, "b")), metadata="inline", partition_key="k")
    table.add_columns({"discount": "double"})
    table.ingest(
        rows((2, 2, "c"), (3, 2, "d"), discount=[2.5, 3.5]), metadata="inline", partition_key="k"
    )
    expected = [None, 2.5, 3.5]
    assert sorted(
        row["discount"] or 0 for row in table.read(net=True, partition_key="k").to_pylist()
    ) == [0, 2.5, 3.5]
    table.compact()
    assert len(table.snapshot_at().files) == 1
    assert [row["discount"] for row in shown(table)] == expected
    table.zorder(["discount", "id"], whole=True)
    assert [row["discount"] for row in shown(table)] == expected
    table.rebuild_key_store()
    table.ingest(rows((3, 3, "e")), metadata="inline")
    assert [row["discount"] for row in shown(table)] == [None, 2.5, None]
    table.restore(version=1)
    assert shown(table) == [
        {"id": n, "at": 1, "name": name, "discount": None} for n, name in ((1, "a"), (2, "b"))
    ]
    table.restore(version=3)
    assert [row["discount"] for row in shown(table)] == expected
    assert table.changes(1).column_names[:4] == ["id", "at", "name", "discount"]
    assert check_table(table) == []


def test_a_physical_name_that_was_used_gets_the_id(make: Callable[[], Table]) -> None:
    """Columns cannot be renamed or dropped here; another writer may have done it."""
    table = make()
    schema = table.snapshot_at().spec.schema
    renamed = replace(schema, fields=(*schema.fields[:2], replace(schema.fields[2], name="title")))
    more = extended(
        renamed, pa.schema({"NAME": pa.int64(), "name 2": pa.int64(), "plain": pa.int64()})
    )
    assert [field.physical for field in more.fields[3:]] == ["NAME_4", "_f5", "plain"]
    dropped = extended(
        replace(schema, fields=schema.fields[:2]),
        pa.schema({"name": pa.int64(), "plain": pa.int64()}),
    )
    assert [field.physical for field in dropped.fields[2:]] == ["name_4", "plain_5"]
    clash = extended(more, pa.schema({"x": pa.int64(), "name_4": pa.int64()}))
    assert [field.physical for field in clash.fields[6:]] == ["x", "name_4_8"]
    assert schema_from_json(schema_to_json(clash)) == clash


def nested(levels: int, shape: str) -> tuple[pa.DataType, Any]:
    """Return a type of so many levels, and a value of it."""
    kind, value = pa.int64(), 1
    for _ in range(levels):
        if shape == "list":
            kind, value = pa.list_(kind), [value]
        elif shape == "struct":
            kind, value = pa.struct([("a", kind)]), {"a": value}
        else:
            kind, value = pa.map_(pa.string(), kind), [("a", value)]
    return kind, value


@pytest.mark.parametrize("shape, most", [("list", 45), ("struct", 60), ("map", 30)])
def test_every_column_that_can_be_added_can_be_written(
    make: Callable[[], Table], shape: str, most: int
) -> None:
    table = make()
    kind, value = nested(most, shape)
    table.add_columns({"deep": kind})
    row = rows((1, 1, "a")).append_column("deep", pa.array([value], kind))
    table.ingest(row, metadata="inline")
    assert shown(make())[0]["deep"] == value


@pytest.mark.parametrize("levels", [1, 1000])
@pytest.mark.parametrize("shape, most", [("list", 45), ("struct", 60), ("map", 30)])
def test_a_column_that_no_file_can_hold_is_refused(
    make: Callable[[], Table], shape: str, most: int, levels: int
) -> None:
    kind, _ = nested(most + levels, shape)
    with pytest.raises(InvalidInputError, match=r"column 'deep' nests too deep.*Flatten it"):
        make().add_columns({"deep": kind})
    with pytest.raises(InvalidInputError, match=r"column 'deep' nests too deep.*Flatten it"):
        plan_spec(SCHEMA.append(pa.field("deep", kind)), TableLayout(keys=["id"], delta="at"))
