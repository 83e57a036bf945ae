"""`df.write.format("opal")` appends as an inline ingest does, and refuses what it cannot do before it writes."""

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
from opal_lake.inspect.check import check_table
from opal_lake.spec.table_spec import TableLayout, plan_spec
from opal_spark import OpalTable
from opal_spark.data_source.delete_marks import delete_marks, delete_predicate
from opal_spark.data_source.writer import OpalWriter
from opal_spark.engine.columns import arrow_of_spark

pytestmark = pytest.mark.spark

DDL = "id INT, `the.day` DATE, at TIMESTAMP, tags ARRAY<STRUCT<a: INT>>, name STRING, amount DECIMAL(10,2)"


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
    rows.write.format("opal").mode("append").options(**options).save(table.table.uri)


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
        table.table.changes(0).drop_columns(["_commit_timestamp"]) for table in (appended, ingested)
    ]
    assert {"insert", "delete", "update_postimage"} <= {*changes[0]["_change_type"].to_pylist()}
    assert content(changes[0]) == content(changes[1])
    assert content(appended.table.read()) == content(ingested.table.read())
    assert [commit.operation for commit in appended.table.history()] == [
        "ingest",
        "ingest",
        "create",
    ]
    assert check_table(appended.table) == []


@pytest.mark.slow
def test_an_append_with_a_token_is_applied_once(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t")
    token = f"day-{random.Random(1).random()}"
    for _ in range(2):
        append(frame(spark, 0, 3, 0), table, token=token)
    assert table.table.snapshot_at().version == 1
    frame(spark, 3, 4, 0).createOrReplaceTempView("more")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING opal OPTIONS (path '{table.table.uri}')")
    spark.sql("INSERT INTO t SELECT id, `the.day`, at, tags, NAME, amount FROM more")
    assert len(table.table.read()) == 4


def test_a_bad_row_refuses_the_append(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t")
    rows = frame(spark, 0, 5, 0).selectExpr("* EXCEPT (at)", "IF(id = 3, NULL, at) AS at")
    with pytest.raises(
        (AnalysisException, PythonException),
        match="1 row cannot go into the table, so nothing was ingested",
    ):
        append(rows, table)
    with pytest.raises(
        (AnalysisException, PythonException),
        match=r"append.* upserts by the table's keys; make a new table with OpalTable",
    ):
        rows.write.format("opal").mode("overwrite").save(table.table.uri)
    assert table.table.snapshot_at().version == 0


@pytest.mark.parametrize(
    "ddl, words",
    [
        (DDL.replace("name STRING", "name INT"), "column 'name' is integer, the table has string"),
        (DDL.replace("id INT", "id BIGINT"), "column 'id' is long, the table has integer"),
        (
            DDL.replace("a: INT", "A: INT"),
            "column 'tags' is array<struct<A:int>>, the table has array<struct<a:int>>; cast it",
        ),
        ("id INT, town STRING", "unknown column 'town'; missing column 'the.day'"),
        (DDL + ", _opal_deleted BOOLEAN", "names that begin with '_opal_' are kept for the format"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_claimed(
    spark: SparkSession, tmp_path: Path, ddl: str, words: str
) -> None:
    table = create(spark, tmp_path / "t")
    with pytest.raises(InvalidInputError) as refused:
        OpalWriter(table.table.uri, {}, StructType.fromDDL(ddl), None)
    assert words in str(refused.value)
    assert not any(table.table.storage.list("_opal/claims/"))


CONDITIONS = (
    "name = 'D'",
    "NOT name = 'D'",
    "name IS NULL",
    "name <=> 'D' OR id > 3",
    "name IN ('D', 'E', NULL) AND id <> 2",
    "name NOT IN ('D', 'E')",
    "name LIKE 'D%'",
    "NOT (name LIKE 'D%' AND id BETWEEN 2 AND 5)",
    "gone",
    "NOT gone OR id = -1",
    "true",
)


def test_delete_conditions_mark_the_rows_that_spark_marks(spark: SparkSession) -> None:
    values = [
        (number, name, gone)
        for number, name in enumerate(["D", "E", "Dx", "d", "", None, "\U0010ffff"])
        for gone in (True, False, None)
    ]
    rows = spark.createDataFrame(
        [(None, "D", True), *values], "id INT, name STRING, gone BOOLEAN"
    ).coalesce(1)
    (batch,) = rows.toArrow().combine_chunks().to_batches()
    expected = rows.select(
        *(
            F.expr(f"coalesce({condition}, false)").alias(str(at))
            for at, condition in enumerate(CONDITIONS)
        )
    ).toArrow()
    for at, condition in enumerate(CONDITIONS):
        layout = TableLayout(keys=["id"], delta="id", deletes=condition)
        spec = plan_spec(arrow_of_spark(rows.schema), layout)
        predicate = delete_predicate(spec)
        assert predicate is not None
        assert delete_marks(predicate, batch, spec).to_pylist() == expected[str(at)].to_pylist(), (
            condition
        )


@pytest.mark.parametrize(
    "deletes",
    ["upper(name) = 'D'", "name = 'D' OR amount > 1", "at < TIMESTAMP'2026-01-01 00:00:00Z'"],
)
def test_other_delete_conditions_are_for_spark_alone(
    spark: SparkSession, tmp_path: Path, deletes: str
) -> None:
    table = create(spark, tmp_path / "t", deletes=deletes)
    with pytest.raises(
        InvalidInputError,
        match=r"cannot evaluate the table's delete condition .*; write with OpalTable",
    ):
        OpalWriter(table.table.uri, {}, StructType.fromDDL(DDL), None)
