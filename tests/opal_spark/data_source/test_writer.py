"""`df.write.format("opal")` appends as an inline ingest does, or refuses before it writes."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import opal_spark
from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable
from opal_spark.data_source.writer import OpalWriter
from tests.kit.check import check_table
from tests.opal_spark.twin import arrow_of

pytestmark = pytest.mark.spark

DDL = (
    "id INT, `the.day` DATE, at TIMESTAMP, tags ARRAY<STRUCT<a: INT>>, name STRING, "
    "amount DECIMAL(10,2)"
)


def create(
    spark: SparkSession, path: Path, file_format: str = "parquet", **more: object
) -> OpalTable:
    opal_spark.register(spark)
    schema = StructType.fromDDL(DDL)
    return OpalTable.create(
        spark, str(path), schema, keys=["id"], delta="at", file_format=file_format, **more
    )  # type: ignore[arg-type]


def frame(spark: SparkSession, first: int, last: int, at: int) -> DataFrame:
    """Columns in another order, and smaller types than the table's."""
    return spark.range(first, last, 1, 3).selectExpr(
        "concat('n', id) AS NAME",
        "CAST(id AS SMALLINT) AS id",
        f"timestamp_seconds({at} + id) AS at",
        "array(named_struct('a', CAST(id AS INT)), NULL) AS tags",
        "CAST(id % 3 AS DECIMAL(4,1)) AS amount",
        "date_add(DATE'2026-11-01', CAST(id % 2 AS INT)) AS `the.day`",
    )


def append(rows: DataFrame, table: OpalTable, **options: str) -> None:
    rows.write.format("opal").mode("append").options(**options).save(table.uri)


def content(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


@pytest.mark.parametrize("file_format", ["parquet", pytest.param("orc", marks=pytest.mark.slow)])
def test_an_append_upserts_as_an_inline_ingest_does(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    more = {"partition_by": ["the.day"], "deletes": "name LIKE 'n3%'"}
    appended, ingested = (
        create(spark, tmp_path / name, file_format, **more) for name in ("a", "i")
    )
    first = frame(spark, 0, 40, 0)
    deletes = frame(spark, 15, 25, 50).withColumn("NAME", F.lit("n3"))
    second = (
        frame(spark, 20, 50, 100)
        .unionByName(deletes)
        .union(frame(spark, 0, 3, -9))
        .union(frame(spark, 45, 60, 200))
    )
    for batch in (first, second):
        append(batch, appended)
        ingested.ingest(batch, metadata="inline")
    changes = [
        arrow_of(table).changes(0).drop_columns(["_commit_timestamp"])
        for table in (appended, ingested)
    ]
    assert {"insert", "delete", "update_postimage"} <= {*changes[0]["_change_type"].to_pylist()}
    assert content(changes[0]) == content(changes[1])
    assert content(arrow_of(appended).read()) == content(arrow_of(ingested).read())
    assert [commit.operation for commit in appended.commits()] == [
        "ingest",
        "ingest",
        "create",
    ]
    assert check_table(appended) == []


@pytest.mark.slow
def test_an_append_with_a_token_is_applied_once(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t")
    token = f"day-{random.Random(1).random()}"
    for _ in range(2):
        append(frame(spark, 0, 3, 0), table, token=token)
    assert table.snapshot_at().version == 1
    frame(spark, 3, 4, 0).createOrReplaceTempView("more")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING opal OPTIONS (path '{table.uri}')")
    spark.sql("INSERT INTO t SELECT id, `the.day`, at, tags, NAME, amount FROM more")
    assert table.read().count() == 4


def test_a_bad_row_refuses_the_append(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t")
    rows = frame(spark, 0, 5, 0).selectExpr("* EXCEPT (at)", "IF(id = 3, NULL, at) AS at")
    with pytest.raises(
        (AnalysisException, PythonException),
        match=r"(?s)1 row cannot go into the table, so nothing was ingested.*or ingest the rows by "
        r"OpalTable\.ingest\(rows, on_bad_rows='quarantine'\)",
    ):
        append(rows, table)
    with pytest.raises(
        (AnalysisException, PythonException),
        match=r"append.* upserts by the table's keys\. To create a table, call OpalTable",
    ):
        rows.write.format("opal").mode("overwrite").save(table.uri)
    assert table.snapshot_at().version == 0


@pytest.mark.parametrize(
    "ddl, words",
    [
        (DDL.replace("name STRING", "name INT"), "column 'name' is INT, the table has STRING"),
        (DDL.replace("id INT", "id BIGINT"), "column 'id' is BIGINT, the table has INT"),
        (
            DDL.replace("a: INT", "A: INT"),
            "column 'tags' is ARRAY<STRUCT<A: INT>>, the table has ARRAY<STRUCT<a: INT>>; cast it",
        ),
        ("id INT, town STRING", "unknown column 'town'; missing column 'the.day'"),
        (
            DDL + ", _opal_deleted BOOLEAN",
            "names that begin with '_opal_' are reserved for the format",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_claimed(
    spark: SparkSession, tmp_path: Path, ddl: str, words: str
) -> None:
    table = create(spark, tmp_path / "t")
    with pytest.raises(InvalidInputError) as refused:
        OpalWriter(table.uri, {}, StructType.fromDDL(ddl), None)
    assert words in str(refused.value)
    assert not any(table.storage.list("_opal/claims/"))


def test_delete_conditions_are_those_of_the_language(spark: SparkSession, tmp_path: Path) -> None:
    table = create(
        spark, tmp_path / "t", deletes="upper(name) = 'N1' OR amount % 3 = 2 AND id < 100"
    )
    table.ingest(frame(spark, 0, 6, 0), metadata="inline")
    expected = {row.id for row in table.read(columns=["id"]).collect()}
    other = create(
        spark, tmp_path / "u", deletes="upper(name) = 'N1' OR amount % 3 = 2 AND id < 100"
    )
    frame(spark, 0, 6, 0).write.format("opal").mode("append").save(other.uri)
    assert {row.id for row in other.read(columns=["id"]).collect()} == expected == {0, 3, 4}
