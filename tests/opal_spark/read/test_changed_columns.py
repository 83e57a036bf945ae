"""Spark's reads of files from before and after changes of columns, next to those of this process.

Both read the same table, whose files have different types, members and orders.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import opal_spark
from opal_lake.table import Table
from opal_spark import OpalTable
from tests.kit.check import check_table

PLACE = pa.struct(
    [("city", pa.string()), ("n", pa.int32()), ("old", pa.struct([("gone", pa.int32())]))]
)
TAGS = pa.list_(pa.struct([("word", pa.string()), ("n", pa.int16()), ("f", pa.float32())]))
BEFORE = {
    "id": pa.int32(),
    "at": pa.int16(),
    "tiny": pa.int8(),
    "ratio": pa.float32(),
    "price": pa.decimal128(5, 2),
    "sum": pa.decimal128(12, 2),
    "name": pa.string(),
    "note": pa.string(),
    "seen": pa.timestamp("us", "UTC"),
    "place": PLACE,
    "tags": TAGS,
    "by": pa.map_(pa.string(), pa.int32()),
}
CHANGES: list[dict[str, Any]] = [
    {"widen": "id", "type": "bigint"},
    {"widen": "at", "type": "bigint"},
    {"widen": "tiny", "type": "bigint"},
    {"widen": "ratio", "type": "double"},
    {"widen": "price", "type": "decimal(12,2)"},
    {"widen": "sum", "type": "decimal(25,2)"},
    {"rename": "name", "to": "full name"},
    {"drop": "note"},
    {"add": "note", "type": "int", "first": True},
    {"move": "place", "after": "note"},
    {"widen": "place.n", "type": "bigint"},
    {"rename": "place.city", "to": "town"},
    {"add": "place.zip", "type": "string", "first": True},
    {"add": "place.old.new", "type": "timestamp"},
    {"drop": "place.old.gone"},
    {"widen": "tags.element.n", "type": "int"},
    {"widen": "tags.element.f", "type": "double"},
    {"move": "tags.element.f", "first": True},
    {"drop": "tags.element.word"},
    {"add": "tags.element.word", "type": "array<int>"},
    {"widen": "by.value", "type": "bigint"},
]
DAY = [{"rename": "day", "to": "since"}, {"widen": "since", "type": "timestamp_ntz"}]
WHERE = [
    "id = 2",
    "id > 2147483647",
    "tiny >= 3",
    "ratio = 0.5",
    "ratio > 0.1",
    "price = 1.50",
    "price > 1000",
    "sum < 2",
    "`full name` = 'b'",
    "`full name` IS NULL",
    "note IS NULL",
    "note > 1",
    "place.n = 7",
    "place.old IS NOT NULL",
    "place.old.new IS NULL",
    "place.zip IS NULL",
]


def before(ids: list[int], file_format: str) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "id": ids,
        "at": [1] * len(ids),
        "tiny": [number - 1 for number in ids],
        "ratio": [0.5, 0.1, None][: len(ids)],
        "price": [Decimal("1.50"), None, Decimal("999.99")][: len(ids)],
        "sum": [Decimal("1.50"), None, Decimal("1234567890.12")][: len(ids)],
        "name": ["a", "b", None][: len(ids)],
        "note": ["old"] * len(ids),
        "seen": [datetime(2026, 1, 1, tzinfo=UTC)] * len(ids),
        "place": [
            {"city": "x", "n": 7, "old": {"gone": 1}},
            None,
            {"city": None, "n": None, "old": None},
        ][: len(ids)],
        "tags": [[{"word": "w", "n": 1, "f": 0.1}, None], [], None][: len(ids)],
        "by": [[("k", 1)], [], None][: len(ids)],
    }
    schema = pa.schema(BEFORE)
    if file_format == "parquet":
        columns["day"] = [date(1999, 12, 31), None, date(1500, 1, 1)][: len(ids)]
        schema = schema.append(pa.field("day", pa.date32()))
    return pa.table(columns, schema)


def after(table: Table[pa.Table], ids: list[int]) -> pa.Table:
    """Return rows of the changed table, whose values fit only the wider types."""
    rows = table.read().slice(0, 0)
    values: list[dict[str, Any]] = []
    for number in ids:
        row: dict[str, Any] = {
            "note": 5,
            "id": number,
            "at": 1 << 40,
            "tiny": 1 << 40,
            "ratio": 0.1,
            "price": Decimal("1234567890.12"),
            "sum": Decimal("12345678901234567890123.45"),
            "full name": "b",
            "seen": datetime(2026, 1, 2, tzinfo=UTC),
            "place": {
                "zip": "z",
                "town": "t",
                "n": 1 << 40,
                "old": {"new": datetime(2026, 1, 2, tzinfo=UTC)},
            },
            "tags": [{"f": 0.1, "n": 1 << 20, "word": [1]}],
            "by": [("k", 1 << 40)],
        }
        if "since" in rows.column_names:
            row["since"] = datetime(2026, 1, 2, 3, 4, 5, 6)
        values.append(row)
    return pa.Table.from_pylist(values, rows.schema)


def spark_rows(rows: DataFrame) -> list[dict[str, Any]]:
    return sorted(rows.toArrow().to_pylist(), key=lambda row: str(row["id"]))


def local_rows(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: str(row["id"]))


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_spark_reads_files_of_all_schemas_as_this_process_does(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    first = before([1, 2, 3], file_format)
    uri = str(tmp_path / "table")
    local = Table.create(uri, first.schema, keys=["id"], delta="at", file_format=file_format)
    local.ingest(first, metadata="inline")
    local.ingest(before([4], file_format))
    table = OpalTable.for_path(spark, uri)
    table.alter([*CHANGES, *(DAY if file_format == "parquet" else [])])
    local.ingest(after(local, [1, 1 << 40]), metadata="inline")
    local.metagen()
    assert check_table(local) == []
    for view in ({}, {"version": 1}, {"event_time": 1}):
        assert spark_rows(table.read(**view)) == local_rows(local.read(**view)), view
    for where in [*WHERE, *(["since < TIMESTAMP_NTZ '2000-01-01 00:00:00'"] * len(DAY))]:
        if file_format == "orc" and "since" in where:
            continue
        expected = local_rows(local.read(where=where))
        assert spark_rows(table.read(where=where)) == expected, where
        assert spark_rows(table.read().where(where)) == expected, where
    part = table.read().selectExpr("id", "place.old IS NULL AS a", "place.old.new AS b", "place.n")
    assert [row["a"] for row in spark_rows(part)] == [
        row["place"] is None or row["place"]["old"] is None for row in local_rows(local.read())
    ]
    assert spark_rows(table.changes(1)) == local_rows(local.changes(1))
    assert spark_rows(table.history_view()) == local_rows(local.history_view())
    opal_spark.register(spark)
    source = spark.read.format("opal").load(uri)
    assert spark_rows(source) == local_rows(local.read())
    rows = local_rows(local.read())
    table.zorder(["ratio", "id"], whole=True)
    table.rebuild_key_store()
    assert local_rows(local.read()) == rows
    assert spark_rows(table.read()) == rows
    assert check_table(local) == []
