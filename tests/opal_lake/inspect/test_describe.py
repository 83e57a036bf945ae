"""Descriptions of a table: true counts, and only values that JSON can hold."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock, moment_text
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import NotFoundError
from opal_lake.inspect.describe import (
    describe,
    file_rows,
    history_rows,
    segment_rows,
)
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.ids import CountingIds

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("name", pa.string())]
)


def rows(ids: range, day: int) -> pa.Table:
    moment = datetime(2026, 1, day, tzinfo=UTC)
    return pa.table([[*ids], [moment] * len(ids), [f"n{number}" for number in ids]], schema=SCHEMA)


def new_table(**layout: object) -> Table:
    spec = plan_spec(SCHEMA, TableLayout(keys=["id"], delta="at", **layout))  # type: ignore[arg-type]  # a few of the layout's fields
    return create_on(MemoryStorage(), spec, ManualClock(), CountingIds())


@pytest.fixture
def table() -> Table:
    """Ten rows, three of them updated and one deleted, five more pending."""
    table = new_table(deletes="name = ''", properties={"segment_rows": 6})
    table.ingest(rows(range(10), 1), [False] * 10, token="first")
    table.metagen()
    table.ingest(rows(range(4), 2), [False, False, False, True])
    table.metagen()
    table.ingest(rows(range(20, 25), 3), [False] * 5)
    return table


def test_an_empty_table_counts_nothing() -> None:
    description = describe(new_table())
    assert set(description["counts"].values()) == {0}
    assert (description["version"], description["oldest_version"], description["floor"]) == (
        0,
        0,
        None,
    )


def test_visible_pending_and_all_rows_are_counted_separately(table: Table) -> None:
    counts = describe(table)["counts"]
    assert counts["rows_visible"] == table.read().num_rows == 9
    assert counts["rows_pending"] == 5
    assert counts["rows_ingested"] == 19
    assert (counts["segments"], counts["segments_pending"], counts["files"], counts["groups"]) == (
        4,
        1,
        4,
        1,
    )
    assert counts["bytes"] == sum(file["bytes"] for file in file_rows(table))


def test_pending_rows_are_described_by_partition_key(table: Table) -> None:
    table.ingest(rows(range(30, 33), 3), [False] * 3, partition_key="2026-01-03")
    pending = describe(table)["pending"]
    assert [(key["partition_key"], key["rows"], key["segments"]) for key in pending] == [
        (None, 5, 1),
        ("2026-01-03", 3, 1),
    ]
    commit = table.log.read_commit(table.snapshot_at().version)
    assert pending[1]["ingested_at"] == moment_text(commit.timestamp_us)


def test_the_contract_with_writers_is_described_by_names(table: Table) -> None:
    description = describe(table)
    assert (
        description["keys"],
        description["delta"],
        description["tie_break"],
        description["deletes"],
    ) == (["id"], "at", [], "name = ''")
    assert description["columns"][0] == {"id": 1, "name": "id", "type": "bigint"}
    assert description["properties"] == {"segment_rows": 6}


def test_history_is_newest_first_and_limited(table: Table) -> None:
    operations = [row["operation"] for row in history_rows(table)]
    assert operations == ["ingest", "metagen", "ingest", "metagen", "ingest", "create"]
    assert [row["version"] for row in history_rows(table, 2)] == [5, 4]
    first = history_rows(table)[-2]
    assert (first["token"], first["counts"]["rows"], first["changes_view"]) == ("first", 10, False)


def test_files_report_their_invalid_rows_and_their_time(table: Table) -> None:
    files = file_rows(table)
    assert [(row["rows"], row["rows_invalid"], row["pending"]) for row in files] == [
        (6, 4, False),
        (4, 0, False),
        (4, 1, False),
        (5, 0, True),
    ]
    assert files[2]["delta_low"] == files[2]["delta_high"] == "2026-01-02T00:00:00+00:00"


def test_files_and_segments_as_of_an_older_version(table: Table) -> None:
    assert [row["pending"] for row in file_rows(table, 1)] == [True, True]
    assert [row["rows_invalid"] for row in segment_rows(table, 2)] == [0, 0]
    with pytest.raises(NotFoundError, match="no version 77"):
        segment_rows(table, 77)


def test_segments_are_named_by_part_and_sequence(table: Table) -> None:
    segments = segment_rows(table)
    assert [row["segment"] for row in segments][:2] == ["1:0", "1:1"]
    assert segments[-1]["pending"]
    assert segments[0]["files"] == [file_rows(table)[0]["path"]]
    assert sum(row["rows_invalid"] for row in segments) == 5


def test_descriptions_are_json(table: Table) -> None:
    values = [describe(table), history_rows(table), file_rows(table), segment_rows(table)]
    assert json.loads(json.dumps(values, allow_nan=False)) == values


@pytest.mark.parametrize(
    "kind,delta,shown",
    [
        (pa.int32(), 7, 7),
        (pa.decimal128(10, 2), Decimal("7.50"), "7.50"),
        (pa.date32(), date(2026, 1, 2), "2026-01-02"),
        (pa.timestamp("us"), datetime(2026, 1, 2), "2026-01-02T00:00:00"),
    ],
)
def test_every_kind_of_delta_goes_into_json(
    kind: pa.DataType, delta: object, shown: object
) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", kind)])
    table = create_on(
        MemoryStorage(),
        plan_spec(schema, TableLayout(keys=["id"], delta="at")),
        ManualClock(),
        CountingIds(),
    )
    table.ingest(pa.table([pa.array([1]), pa.array([delta], kind)], schema=schema))
    assert json.loads(json.dumps(file_rows(table)))[0]["delta_high"] == shown


def test_a_delta_beyond_the_calendar_is_shown_as_its_number() -> None:
    table = new_table()
    far = pa.array([1 << 62], pa.int64()).cast(SCHEMA.field("at").type)
    table.ingest(pa.table([pa.array([1]), far, pa.array(["x"])], schema=SCHEMA))
    assert file_rows(table)[0]["delta_low"] == 1 << 62


def test_types_are_written_as_sql_takes_them() -> None:
    nested = pa.struct([("Street no", pa.int16()), ("tags", pa.list_(pa.string()))])
    schema = SCHEMA.append(pa.field("a", nested))
    spec = plan_spec(schema, TableLayout(keys=["id"], delta="at"))
    table = create_on(MemoryStorage(), spec, ManualClock(), CountingIds())
    types = [column["type"] for column in describe(table)["columns"]]
    assert types[1:] == [
        "timestamp",
        "string",
        "struct<`Street no`: smallint, tags: array<string>>",
    ]


def test_moments_keep_their_microseconds() -> None:
    assert moment_text(1_700_000_000_123_457) == "2023-11-14T22:13:20.123457+00:00"
