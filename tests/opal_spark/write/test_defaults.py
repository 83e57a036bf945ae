"""Defaults of columns on Spark: the same rows as in this process, whatever a query asks."""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from opal_lake import Files, Table
from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable
from tests.opal_spark.build import FIRST, create, frame

AMOUNT = Decimal("12345678901234567890.12")
WALL = datetime(1899, 12, 31, 23, 59, 59, 999_999)
# Types, literals, and the value that each one means
DEFAULTS: list[tuple[str, str, Any, Any]] = [
    ("flag", "boolean", True, True),
    ("tiny", "tinyint", -7, -7),
    ("n", "int", 5, 5),
    ("big", "bigint", "-9223372036854775807", -(2**63) + 1),
    ("single", "float", 0.1, 0.10000000149011612),
    ("dbl", "double", -0.0, -0.0),
    ("amount", "decimal(30,2)", AMOUNT, AMOUNT),
    ("txt", "string", "'it''s \\ \"x\" 😀'", 'it\'s \\ "x" 😀'),
    ("raw", "binary", b"\x00\xff", bytearray(b"\x00\xff")),
    ("day", "date", date(1582, 10, 1), date(1582, 10, 1)),
    ("wall", "timestamp_ntz", WALL, WALL),
]
# Conditions on the new columns, each with the keys of FIRST for which it is true
CONDITIONS: list[tuple[str, int]] = [
    ("n = 5", 3),
    ("n > 5", 0),
    ("n IS NULL", 0),
    ("n IS NOT NULL AND price > 10", 2),
    ("n IN (1, 5)", 3),
    ("n <=> 5 OR big < 0", 3),
    ("n <> 5", 0),
    ("NOT (n = 5) OR price = 10", 1),
    ("flag", 3),
    ("dbl = 0.0", 3),
    ("txt LIKE 'it%' AND amount > 1", 3),
    ("day = DATE '1582-10-01'", 3),
    ("day < DATE '1582-10-01'", 0),
    ("wall > TIMESTAMP_NTZ '1900-01-01 00:00:00'", 0),
]


def changes_of(defaults: Sequence[tuple[str, str, Any, Any]]) -> list[dict[str, Any]]:
    return [{"add": name, "type": kind, "default": given} for name, kind, given, _ in defaults]


def count(table: OpalTable, condition: str) -> int:
    """Return the rows for which a condition is true, by Spark's own filter."""
    return table.read().where(condition).count()


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_old_rows_have_the_initial_value_in_every_query(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    table = create(spark, tmp_path / "t", file_format)
    table.ingest(frame(spark, FIRST), metadata="inline")
    # Hidden rows, so that files are joined with their bitmaps
    table.ingest(frame(spark, [("ax", 2, 10)]), metadata="inline")
    table.alter(changes_of(DEFAULTS))
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    table.alter([{"add": "ts", "type": "timestamp", "default": moment}])
    expected = {name: value for name, _, _, value in DEFAULTS}
    for row in table.read().collect():
        values = row.asDict()
        assert {name: values[name] for name in expected} == expected
        assert values["ts"].astimezone(UTC) == moment
    for condition, rows in CONDITIONS:
        assert count(table, condition) == rows, condition
        assert table.read(where=condition).count() == rows, condition
    # New rows beside old ones: a column that is null in them, and one that they lack
    more = spark.sql("SELECT 'dye' sku, 1L at, 40 price, CAST(NULL AS INT) n, 'own' txt")
    table.ingest(more, metadata="inline")
    assert count(table, "n = 5") == 3
    assert count(table, "n IS NULL") == 1
    assert count(table, "big < 0") == 4
    assert [row.txt for row in table.read(where="sku = 'dye'").collect()] == ["own"]
    assert table.read(version=1).columns == ["sku", "at", "price"]
    assert table.read(version=1, newest_columns=True).where("n = 5").count() == 3
    assert table.history_view().where("n = 5").count() == 4
    feed = table.changes(1, mode="netChanges", compute_updates=False)
    assert feed.where("_change_type = 'insert'").where("n = 5").count() == 3
    in_process: pa.Table = Table.open(str(tmp_path / "t")).read()
    by_key = {row["sku"]: row for row in in_process.to_pylist()}
    shown = {row.sku: row.asDict() for row in table.read().drop("ts", "raw").collect()}
    for sku, values in shown.items():
        assert {name: by_key[sku][name] for name in values} == values
    table.compact()
    assert count(table, "n = 5") == 3
    assert count(table, "big < 0") == 4
    assert table.check() == []


def test_a_column_added_again_under_its_name_has_its_own_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "t")
    table.ingest(frame(spark, FIRST), metadata="inline")
    table.alter([{"add": "n", "type": "int", "default": 5}])
    table.ingest(frame(spark, [("dye", 1, 40)]), metadata="inline")
    table.alter([{"rename": "n", "to": "old"}, {"add": "n", "type": "int", "default": 7}])
    table.alter([{"widen": "old", "type": "bigint"}, {"set_default": "old", "value": 6}])
    table.ingest(frame(spark, [("eel", 1, 50)]), metadata="inline")
    rows = sorted((row.sku, row.old, row.n) for row in table.read().collect())
    assert rows == [("ax", 5, 7), ("bow", 5, 7), ("cup", 5, 7), ("dye", 5, 7), ("eel", 6, 7)]
    table.alter([{"drop": "old"}, {"rename": "n", "to": "old"}, {"add": "n", "type": "int"}])
    assert count(table, "old = 7 AND n IS NULL") == 5
    assert table.read(version=3).where("n = 5").count() == 4


def test_statements_and_sources_that_lack_a_column_write_its_default(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "t")
    table.alter([{"add": "n", "type": "int", "default": 5}, {"set_default": "price", "value": 9}])
    table.insert(spark.sql("SELECT 'ax' sku, 1L at, 1 price, 2 n"))
    merge = table.merge(spark.sql("SELECT 'bow' sku, 1L at"), on="t.sku = s.sku")
    merge.when_not_matched_insert({"sku": "sku", "at": "at"}).execute()
    lines = [{"sku": "cup", "at": 1}, {"sku": "dye", "at": 1, "n": None, "price": 1}]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, lines)))
    table.ingest(Files(str(tmp_path / "rows.json"), format="json"), metadata="inline")
    (tmp_path / "rows.csv").write_text("sku,at\neel,1\n")
    table.ingest(Files(str(tmp_path / "rows.csv"), format="csv"), metadata="inline")
    rows = sorted((row.sku, row.price, row.n) for row in table.read().collect())
    assert rows == [("ax", 1, 2), ("bow", 9, 5), ("cup", 9, 5), ("dye", 1, None), ("eel", 9, 5)]


def test_generated_columns_are_computed_where_rows_lack_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = "id BIGINT, at TIMESTAMP, day DATE, n BIGINT"
    table = OpalTable.create(
        spark,
        str(tmp_path / "t"),
        spark.createDataFrame([], columns).schema,
        keys=["id"],
        delta="at",
        partition_by=["day"],
        generated={"day": "date(at)"},
    )
    late = spark.sql("SELECT 1L id, TIMESTAMP '2026-01-01 23:59:59.999999Z' at, 0L n")
    table.ingest(late, metadata="inline")
    wrong = spark.sql("SELECT 2L id, TIMESTAMP '2026-01-02 00:00:00Z' at, DATE '2026-01-01' day")
    with pytest.raises(InvalidInputError, match=r"column 'day' differs from date\(at\)"):
        table.ingest(wrong.selectExpr("*", "0L n"), metadata="inline")
    table.insert(wrong.selectExpr("id", "at", "0L n"))
    assert [row.day.day for row in table.read().orderBy("id").collect()] == [1, 2]
    table.update({"at": "at + INTERVAL 1 DAY"}, where="id = 1")
    assert [row.day.day for row in table.read().orderBy("id").collect()] == [2, 2]
    assert table.check() == []
