"""Generated columns: what fills them, what is refused, and that they follow a rename."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.definition.requested_spec import refuse_another_spec
from opal_lake.definition.table_spec import TableLayout, plan_spec, spec_from_json, spec_to_json
from opal_lake.errors import InvalidInputError
from opal_lake.read.read import plan_read
from opal_lake.read.where import where_condition, where_predicate
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.check import check_table
from tests.kit.ids import CountingIds

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "at": pa.timestamp("us", tz="UTC"),
        "op": pa.string(),
        "day": pa.date32(),
        "n": pa.int64(),
    }
)
MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)
BEFORE = MIDNIGHT - timedelta(microseconds=1)


def layout(**more: Any) -> TableLayout:
    return TableLayout(
        keys=["id"], delta="at", deletes="op = 'D'", **{"generated": {"day": "date(at)"}, **more}
    )


def create(*, file_format: str = "parquet", **more: Any) -> Table:
    made = layout(partition_by=["day"], file_format=file_format, **more)
    return create_on(MemoryStorage(), plan_spec(SCHEMA, made), ManualClock(), CountingIds())


def rows(*values: tuple[int, datetime], **more: Any) -> pa.Table:
    given = {
        "id": pa.array([key for key, _ in values], pa.int64()),
        "at": pa.array([at for _, at in values], SCHEMA.field("at").type),
        "op": pa.array(["U"] * len(values)),
        "n": pa.array([0] * len(values), pa.int64()),
    }
    return pa.table({**given, **more})


def days(table: Table) -> list[tuple[int, date | None]]:
    return sorted((row["id"], row["day"]) for row in table.read().to_pylist())


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_generated_column_is_filled_and_partitions_the_files(file_format: str) -> None:
    table = create(file_format=file_format)
    table.ingest(rows((1, BEFORE), (2, MIDNIGHT)), metadata="inline")
    given = pa.array([date(2026, 1, 2), None], pa.date32())
    table.ingest(rows((3, MIDNIGHT), (4, BEFORE), day=given), metadata="inline")
    first, second = date(2026, 1, 1), date(2026, 1, 2)
    assert days(table) == [(1, first), (2, second), (3, second), (4, first)]
    paths = sorted(path.split("/")[1] for path in table.snapshot_at().files)
    assert paths == ["day=2026-01-01"] * 2 + ["day=2026-01-02"] * 2
    # The bounds of `at` in a file lie within its day
    where = where_condition("at >= TIMESTAMP '2026-01-02 00:00:00Z'", table.snapshot_at().spec)
    assert plan_read(table.snapshot_at(), None, where_predicate(where)).skipped == 2
    assert check_table(table) == []


def test_another_value_is_a_bad_row() -> None:
    table = create()
    wrong = rows((1, BEFORE), (2, MIDNIGHT), day=pa.array([date(2026, 1, 2)] * 2, pa.date32()))
    message = r"1 row: column 'day' differs from date\(at\), by which it is generated"
    with pytest.raises(InvalidInputError, match=message):
        table.ingest(wrong, metadata="inline")
    done = table.ingest(wrong, metadata="inline", on_bad_rows="quarantine")
    assert done.counts["rejected"] == 1
    assert days(table) == [(2, date(2026, 1, 2))]


def test_an_update_computes_the_column_again() -> None:
    table = create()
    table.ingest(rows((1, BEFORE), (2, BEFORE)), metadata="inline")
    table.update(set={"at": MIDNIGHT, "n": 1}, where="id = 1")
    assert days(table) == [(1, date(2026, 1, 2)), (2, date(2026, 1, 1))]
    with pytest.raises(InvalidInputError, match="column 'day' differs from"):
        table.update(set={"day": date(2030, 1, 1)}, where="id = 2")
    merge = table.merge(rows((2, MIDNIGHT), (3, BEFORE)), on="t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert days(table) == [(1, date(2026, 1, 2)), (2, date(2026, 1, 2)), (3, date(2026, 1, 1))]
    table.delete(where="day = DATE '2026-01-02'")
    assert days(table) == [(3, date(2026, 1, 1))]
    assert check_table(table) == []


@pytest.mark.parametrize("has_column", [True, False])
def test_an_overwrite_takes_partitions_and_conditions_by_computed_values(
    has_column: bool,
) -> None:
    more = {"day": pa.nulls(1, pa.date32())} if has_column else {}
    first, second = date(2026, 1, 1), date(2026, 1, 2)
    table = create()
    table.upsert(rows((1, BEFORE), (2, BEFORE), (3, MIDNIGHT)))
    done = table.overwrite(rows((4, BEFORE), **more), partitions="dynamic")
    assert (done.counts["inserted"], done.counts["deleted"]) == (1, 2)
    assert days(table) == [(3, second), (4, first)]
    of_day = "day = DATE '2026-01-01'"
    assert table.overwrite(rows((5, BEFORE), **more), where=of_day).counts["deleted"] == 1
    with pytest.raises(InvalidInputError, match="1 new row would not meet where"):
        table.overwrite(rows((6, BEFORE), **more), where="day IS NULL")
    assert days(table) == [(3, second), (5, first)]
    assert check_table(table) == []


def test_the_expression_follows_a_rename_and_keeps_its_column() -> None:
    table = create()
    table.alter([{"rename": "at", "to": "seen at"}, {"rename": "day", "to": "date"}])
    spec = table.snapshot_at().spec
    assert spec.schema.field("date").generated == "date(`seen at`)"
    assert spec_from_json(spec_to_json(spec)) == spec
    renamed = rows((1, BEFORE)).rename_columns(["id", "seen at", "op", "n"])
    table.ingest(renamed, metadata="inline")
    assert table.read().column("date").to_pylist() == [date(2026, 1, 1)]
    refuse_another_spec("t", spec, SCHEMA, layout(partition_by=["day"]))
    with pytest.raises(InvalidInputError, match=r"is generated by 'date\(`seen at`\)', not by"):
        refuse_another_spec("t", spec, SCHEMA, layout(partition_by=["day"], generated={}))
    other = create(generated={"n": "id"})
    with pytest.raises(InvalidInputError, match="the generated column 'n' of the table needs it"):
        other.alter([{"drop": "id"}])
    with pytest.raises(InvalidInputError, match="is generated by 'id', and has no default"):
        other.alter([{"set_default": "n", "value": 1}])
    with pytest.raises(InvalidInputError, match="generated column 'n': the expression"):
        create(generated={"n": "op"})


@pytest.mark.parametrize(
    "generated, problem",
    [
        ({"day": "date(op)"}, "takes a timestamp"),
        ({"day": "at"}, "does not fit column 'day'"),
        ({"day": "DATE '2026-01-01'"}, "reads no column"),
        ({"day": "NULL"}, "reads no column"),
        ({"day": "date(nope)"}, "no column 'nope'"),
        ({"n": "id % id"}, "may divide by zero"),
        ({"n": "id * 2"}, "declare the column with this type"),
        ({"id": "n"}, "is a key, the delta or a tie-break"),
        ({"n": "id", "day": "date(at)", "op": "lower(op)"}, "no column 'op'"),
        ({"none": "id"}, "no column 'none'"),
        ({"n": "id +"}, "has a fault"),
    ],
)
def test_an_expression_that_cannot_be_computed_is_refused(
    generated: dict[str, str], problem: str
) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        create(generated=generated)


@pytest.mark.parametrize(
    "more, problem",
    [
        ({"deletes": "n = 1"}, "delete condition 'n = 1' reads the generated column 'n'"),
        ({"tie_break": ["n"]}, "'n' is a key, the delta or a tie-break"),
        ({"keys": ["id", "n"]}, "'n' is a key, the delta or a tie-break"),
    ],
)
def test_a_generated_column_decides_neither_deletes_nor_order(
    more: dict[str, Any], problem: str
) -> None:
    roles: dict[str, Any] = {"keys": ["id"], "delta": "at", "generated": {"n": "id"}, **more}
    with pytest.raises(InvalidInputError, match=problem):
        create_on(
            MemoryStorage(),
            plan_spec(SCHEMA, TableLayout(**roles)),
            ManualClock(),
            CountingIds(),
        )


def test_a_column_and_its_copy_become_wider_together() -> None:
    schema = pa.schema({**{field.name: field.type for field in SCHEMA}, "n": pa.int32()})
    copy = schema.append(pa.field("copy", pa.int32()))
    made = layout(generated={"copy": "n"})
    table = create_on(MemoryStorage(), plan_spec(copy, made), ManualClock(), CountingIds())
    alone = {"widen": "n", "type": "bigint"}
    with pytest.raises(InvalidInputError, match="'copy'"):
        table.alter([alone])
    with pytest.raises(InvalidInputError, match=r"change 1 of 2: .*'copy'"):
        table.alter([alone, {"rename": "op", "to": "kind"}])
    table.alter([alone, {"widen": "copy", "type": "bigint"}])
    table.upsert(
        rows((1, MIDNIGHT), n=pa.array([1 << 40])).append_column(
            "day", pa.array([None], pa.date32())
        )
    )
    assert table.read()["copy"].to_pylist() == [1 << 40]
