"""`format("opal")` leaves files out when it is told to, and no row that a query asks for, however often a view is used."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import opal_spark
from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    """A file a row."""
    opal_spark.register(spark)
    rows = spark.range(0, 8, 1, 1).selectExpr("id", "id AS at", "concat('n', id) AS name", "timestamp_seconds(id * 86400) AS day")
    table = OpalTable.create(spark, str(tmp_path / "t"), rows.schema, keys=["id"], delta="at", properties={"segment_rows": 1})
    table.ingest(rows, metadata="inline")
    return str(tmp_path / "t")


def opened(spark: SparkSession, path: str, where: str) -> tuple[int, list[int]]:
    """How many files a read opens, and the rows that fulfil the condition."""
    rows = spark.read.format("opal").option("files_where", where).load(path)
    return rows.count(), ids(rows.where(where))


def ids(rows: DataFrame) -> list[int]:
    return sorted(row.id for row in rows.select("id").collect())


def test_files_that_cannot_hold_such_a_row_are_left_out(spark: SparkSession, path: str) -> None:
    assert opened(spark, path, "id = 3 OR name = 'n5'") == (2, [3, 5])
    assert opened(spark, path, "id > 5 AND name LIKE 'n7%'") == (1, [7])
    assert opened(spark, path, "id > 100") == (0, []), "without any file too"
    assert opened(spark, path, "id + 1 = 4") == (8, [3]), "what bounds cannot answer leaves nothing out"
    assert opened(spark, path, "day < TIMESTAMP'1970-01-02 12:00:00Z'") == (2, [0, 1])
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert opened(spark, path, "day < TIMESTAMP'1970-01-03 00:00:00'") == (8, [0, 1]), "no zone is known where files are chosen"
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_a_column_that_is_not_there_is_no_filter_that_drops_nothing(spark: SparkSession, path: str) -> None:
    with pytest.raises(AnalysisException, match="no column 'nope'"):
        spark.read.format("opal").option("files_where", "id = 3 OR nope = 1").load(path).count()
    with pytest.raises(AnalysisException, match="cannot be read"):
        spark.read.format("opal").option("files_where", "id = = 1").load(path).count()


def test_queries_of_one_view_do_not_share_their_filters(spark: SparkSession, path: str) -> None:
    rows = spark.read.format("opal").load(path)
    assert ids(rows.where("id = 3")) == [3]
    assert ids(rows) == list(range(8))
    assert ids(rows.where("id = 3").union(rows.where("id = 4"))) == [3, 4]


def test_an_empty_table_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    opal_spark.register(spark)
    OpalTable.create(spark, str(tmp_path / "t"), spark.range(1).selectExpr("id", "id AS at").schema, keys=["id"], delta="at")
    assert spark.read.format("opal").load(str(tmp_path / "t")).count() == 0


def test_explain_and_read_open_the_same_files(spark: SparkSession, path: str) -> None:
    table = OpalTable.for_path(spark, path)
    said = table.explain("id >= 6 AND name <> 'n7'")
    assert said["files"]["read_whole"] == len(table.read(where="id >= 6 AND name <> 'n7'").inputFiles()) == 1
    assert [(one["condition"], one["files"], one["files_by_it_alone"]) for one in said["conditions"]] == [
        ("id >= 6", 6, 6),
        ("name != 'n7'", 1, 1),
    ]
    assert table.explain(event_time=3)["files"]["pruned_by_event_time"] == 4
    assert table.explain(version=0)["files"]["total"] == 0
    with pytest.raises(InvalidInputError, match="does not fit the columns"):
        table.explain("nothing = 3")
