"""`explain` says what `plan_read` does, file by file, and which condition does it."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.data.prune import And, Compare, In, IsNull, Or, Predicate, Unknown
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.read.explain import condition_text, explain
from opal_lake.read.read import file_filter, plan_read
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on
from tests.opal_lake.maintenance.build import X, Y, batch, make, order

LOW_X = Compare(field_id=X, op="<", value=0.25)
HIGH_Y = Compare(field_id=Y, op=">=", value=0.75)


def explained(
    table: Table, predicate: Predicate | None = None, until: int | None = None
) -> dict[str, Any]:
    return explain(file_filter(table.snapshot_at(), until, predicate))


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """Return a table in Z-order, with a dead file, a later one, and a pending one."""
    table = make(request.node.name)
    table.ingest(batch(0, 8_000, 1), metadata="inline")
    order(table)
    table.ingest(batch(9_000, 100, 5), metadata="inline")
    table.ingest(batch(9_000, 100, 7), metadata="inline")
    table.ingest(batch(9_500, 100, 8))
    return table


@pytest.mark.parametrize("until", [None, 0, 5, 6])
@pytest.mark.parametrize(
    "predicate", [None, LOW_X, And(parts=(LOW_X, HIGH_Y)), Or(parts=(LOW_X, HIGH_Y)), Unknown()]
)
def test_explain_counts_the_files_of_a_read(
    table: Table, predicate: Predicate | None, until: int | None
) -> None:
    snapshot = table.snapshot_at()
    plan, said = plan_read(snapshot, until, predicate), explained(table, predicate, until)
    for part, members in (("read_whole", plan.plain), ("read_filtered", plan.mixed)):
        assert said["files"][part] == len(members)
        assert said["bytes"][part] == sum(file.size for file in members)
    skipped = ("pruned_by_bounds", "pruned_as_dead", "pruned_by_event_time")
    assert sum(said["files"][name] for name in skipped) == plan.skipped
    for counts in (said["files"], said["bytes"]):
        assert counts["total"] == sum(number for name, number in counts.items() if name != "total")
    assert said["files"]["pending"] == 1


def test_explain_distinguishes_dead_later_and_pending_files(table: Table) -> None:
    now, then = explained(table)["files"], explained(table, until=6)["files"]
    assert (now["pruned_as_dead"], now["pruned_by_event_time"], now["pending"]) == (1, 0, 1)
    assert (then["pruned_as_dead"], then["pruned_by_event_time"], then["pending"]) == (0, 1, 1)


def test_explain_shows_the_files_that_each_condition_skips(table: Table) -> None:
    x, y = explained(table, And(parts=(LOW_X, HIGH_Y)))["conditions"]
    assert (x["condition"], x["columns"]) == ("x < 0.25", ["x"])
    assert (y["condition"], y["columns"]) == ("y >= 0.75", ["y"])
    alone = [explained(table, where)["files"]["pruned_by_bounds"] for where in (LOW_X, HIGH_Y)]
    both = explained(table, And(parts=(LOW_X, HIGH_Y)))["files"]["pruned_by_bounds"]
    assert [x["files"], y["files"]] == alone
    assert x["files_by_it_alone"] == both - alone[1] > 0
    assert y["files_by_it_alone"] == both - alone[0] > 0
    assert x["bytes"] > 0
    [either] = explained(table, Or(parts=(LOW_X, HIGH_Y)))["conditions"]
    assert either["condition"] == "x < 0.25 OR y >= 0.75"
    assert either["columns"] == ["x", "y"]
    assert 0 < either["files"] < min(alone)


def test_explain_shows_the_files_in_z_order(table: Table) -> None:
    said = explained(table)["z_order"]
    [order_] = said["orders"]
    assert order_["columns"] == ["x", "y"]
    assert order_["runs"] == 1
    assert order_["files"] + said["files_without"] == len(table.snapshot_at().files)
    assert said["files_without"] == 3


def test_conditions_are_shown_as_sql() -> None:
    columns = [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("sum", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
    ]
    spec = plan_spec(
        pa.schema([*columns, ("name", pa.string()), ("day", pa.date32())]),
        TableLayout(keys=["id"], delta="at"),
    )
    moment = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) * 1_000_000
    for predicate, text in (
        (Compare(field_id=2, op=">=", value=moment), "at >= '2026-11-01 00:00:00+00:00'"),
        (Compare(field_id=3, op="=", value=Decimal("1.50")), "sum = 1.50"),
        (Compare(field_id=4, op="!=", value="00ff"), "raw != X'00ff'"),
        (Compare(field_id=6, op="<", value=0), "day < '1970-01-01'"),
        (In(field_id=5, values=("a", "b")), "name IN ('a', 'b')"),
        (In(field_id=1, values=(1, 2, 3, 4)), "id IN (1, 2, 3, ...)"),
        (IsNull(field_id=5, negated=True), "name IS NOT NULL"),
        (
            Or(parts=(IsNull(field_id=5), And(parts=(Unknown(), Unknown())))),
            (
                "name IS NULL OR (a condition that bounds cannot answer AND "
                "a condition that bounds cannot answer)"
            ),
        ),
        (And(parts=()), "true"),
        (Or(parts=()), "false"),
    ):
        assert condition_text(predicate, spec) == text


def test_explain_of_an_empty_table_has_no_files(request: pytest.FixtureRequest) -> None:
    spec = plan_spec(
        pa.schema([("id", pa.int64()), ("at", pa.int64())]), TableLayout(keys=["id"], delta="at")
    )
    said = explained(create_on(open_storage(f"memory://{request.node.name}"), spec))
    assert said["files"]["total"] == said["bytes"]["total"] == 0
    assert said["z_order"] == {"orders": [], "files_without": 0, "bytes_without": 0}
