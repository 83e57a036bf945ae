"""`format("opal")` skips files only if an option asks for it, and never a row of the result."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

import opal_spark
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable
from opal_spark.engine.columns import arrow_of_spark
from opal_spark.read.requested_schema import refuse_nulls, requested_fields
from tests.fixtures_cli import SOURCES


@pytest.fixture(scope="module")
def path(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a table with a file for each row, for tests that write nothing."""
    opal_spark.register(spark)
    path = str(tmp_path_factory.mktemp("rows") / "t")
    rows = spark.range(0, 8, 1, 1).selectExpr(
        "id", "id AS at", "concat('n', id) AS name", "timestamp_seconds(id * 86400) AS day"
    )
    table = OpalTable.create(
        spark, path, rows.schema, keys=["id"], delta="at", properties={"segment_rows": 1}
    )
    table.ingest(rows, metadata="inline")
    return path


def opened(spark: SparkSession, path: str, where: str) -> tuple[int, list[int]]:
    """Return the number of files that a read opens, and its matching rows."""
    rows = spark.read.format("opal").option("files_where", where).load(path)
    return rows.count(), ids(rows.where(where))


def ids(rows: DataFrame) -> list[int]:
    return sorted(row.id for row in rows.select("id").collect())


@pytest.mark.slow
def test_files_that_cannot_hold_such_a_row_are_left_out(spark: SparkSession, path: str) -> None:
    assert opened(spark, path, "id = 3 OR name = 'n5'") == (2, [3, 5])
    assert opened(spark, path, "id > 5 AND name LIKE 'n7%'") == (1, [7])
    assert opened(spark, path, "id > 100") == (0, []), "without any file too"
    assert opened(spark, path, "id + 1 = 4") == (8, [3]), (
        "what bounds cannot answer leaves nothing out"
    )
    assert opened(spark, path, "day < TIMESTAMP '1970-01-02 12:00:00'") == (2, [0, 1])


def test_a_column_that_is_not_there_is_no_filter_that_drops_nothing(
    spark: SparkSession, path: str
) -> None:
    with pytest.raises(AnalysisException, match="no column 'nope'"):
        spark.read.format("opal").option("files_where", "id = 3 OR nope = 1").load(path).count()
    with pytest.raises(AnalysisException, match="files_where 'id = = 1' has a fault at column 6"):
        spark.read.format("opal").option("files_where", "id = = 1").load(path).count()


def test_queries_of_one_view_do_not_share_their_filters(spark: SparkSession, path: str) -> None:
    rows = spark.read.format("opal").load(path)
    assert ids(rows.where("id = 3")) == [3]
    assert ids(rows) == list(range(8))
    assert ids(rows.where("id = 3").union(rows.where("id = 4"))) == [3, 4]


def test_an_empty_table_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    opal_spark.register(spark)
    OpalTable.create(
        spark,
        str(tmp_path / "t"),
        spark.range(1).selectExpr("id", "id AS at").schema,
        keys=["id"],
        delta="at",
    )
    assert spark.read.format("opal").load(str(tmp_path / "t")).count() == 0


def test_explain_and_read_open_the_same_files(spark: SparkSession, path: str) -> None:
    table = OpalTable.for_path(spark, path)
    explained = table.explain("id >= 6 AND name <> 'n7'")
    assert (
        explained["files"]["read_whole"]
        == len(table.read(where="id >= 6 AND name <> 'n7'").inputFiles())
        == 1
    )
    assert [
        (condition["condition"], condition["files"], condition["files_by_it_alone"])
        for condition in explained["conditions"]
    ] == [
        ("id >= 6", 6, 6),
        ("name != 'n7'", 1, 1),
    ]
    assert table.explain(event_time=3)["files"]["pruned_by_event_time"] == 4
    assert table.explain(version=0)["files"]["total"] == 0
    with pytest.raises(InvalidInputError, match="no column 'nothing'"):
        table.explain("nothing = 3")


NESTED = (
    "SELECT id AS a, 10 + id AS b, concat('n', id) AS c, IF(id = 2, NULL, "
    "named_struct('x', id, 'y', concat('y', id))) AS s, "
    "array(named_struct('p', id, 'q', CAST(id AS INT)), NULL) AS l, map('k', "
    "named_struct('u', id, 'v', 0.5D)) AS m, "
    "CAST(id AS DECIMAL(10,2)) AS d, timestamp_seconds(id) AS t FROM range(4)"
)


@pytest.fixture(scope="module", params=["parquet", "orc"])
def nested(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Columns of many types, version 1; a row of version 2 replaces one."""
    opal_spark.register(spark)
    rows = spark.sql(NESTED)
    path = str(tmp_path_factory.mktemp("nested") / request.param)
    table = OpalTable.create(
        spark, path, rows.schema, keys=["a"], delta="b", file_format=request.param
    )
    table.ingest(rows, metadata="inline")
    table.ingest(
        rows.where("a = 3").withColumn("b", rows.b + 10).withColumn("c", rows.a.cast("string")),
        metadata="inline",
    )
    return path


def with_schema(
    spark: SparkSession, path: str, schema: str, **options: str
) -> list[tuple[object, ...]]:
    rows = spark.read.format("opal").schema(schema).options(**options).load(path)
    return sorted(map(tuple, rows.collect()), key=repr)


@pytest.mark.slow
def test_columns_of_a_schema_go_by_name(spark: SparkSession, nested: str) -> None:
    assert with_schema(spark, nested, "b BIGINT, a BIGINT") == [(10, 0), (11, 1), (12, 2), (23, 3)]
    assert with_schema(spark, nested, "c STRING") == [("3",), ("n0",), ("n1",), ("n2",)]
    assert with_schema(spark, nested, "C STRING, A BIGINT", version="1")[-1] == ("n3", 3), (
        "whatever their case"
    )
    assert with_schema(spark, nested, "c STRING", event_time="11", files_where="a < 3") == [
        ("n0",),
        ("n1",),
    ]
    assert with_schema(
        spark, nested, "c STRING", version="1", event_time="13", files_where="d >= 0"
    )[-1] == ("n3",)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW v (b BIGINT, d DECIMAL(10,2), a BIGINT) USING opal "
        f"OPTIONS (path '{nested}', version '1')"
    )
    assert sorted(map(tuple, spark.sql("SELECT a, b FROM v").collect())) == [
        (0, 10),
        (1, 11),
        (2, 12),
        (3, 13),
    ]
    full = spark.read.format("opal").load(nested)
    turned = ", ".join(
        f"{field.name} {field.dataType.simpleString()}" for field in reversed(full.schema.fields)
    )
    rows = spark.read.format("opal").schema(turned).load(nested)
    assert rows.select(*full.columns).orderBy("a").collect() == full.orderBy("a").collect()


def test_parts_of_nested_columns_go_by_name(spark: SparkSession, nested: str) -> None:
    rows = with_schema(spark, nested, "a BIGINT, s STRUCT<y: STRING, X: BIGINT>", version="1")
    assert rows == [(0, ("y0", 0)), (1, ("y1", 1)), (2, None), (3, ("y3", 3))]
    rows = with_schema(
        spark,
        nested,
        "m MAP<STRING, STRUCT<v: DOUBLE>>, l ARRAY<STRUCT<q: INT, p: BIGINT>>",
        files_where="a = 1",
    )
    assert rows[1] == ({"k": (0.5,)}, [(1, 1), None])


@pytest.mark.parametrize(
    "schema, problem",
    [
        (
            "b STRING, a BIGINT",
            (
                r"column 'b' is BIGINT in the table, STRING in the schema.* The table "
                r"has a BIGINT, b "
                r"BIGINT, c STRING"
            ),
        ),
        (
            "a BIGINT, nope INT, b INT",
            r"column 'nope' does not exist; column 'b' is BIGINT in the table, INT in the schema",
        ),
        ("a BIGINT, A BIGINT", "column 'A' is named twice"),
        (
            "d DECIMAL(12,2)",
            r"column 'd' is DECIMAL\(10,2\) in the table, DECIMAL\(12,2\) in the schema",
        ),
        ("t TIMESTAMP_NTZ", "column 't' is TIMESTAMP in the table, TIMESTAMP_NTZ in the schema"),
        (
            "c STRING COLLATE UTF8_LCASE",
            "column 'c' is STRING in the table, string collate UTF8_LCASE in the schema",
        ),
        ("s STRUCT<x: INT>", r"column 's.x' is BIGINT in the table, INT in the schema"),
        ("s STRUCT<z: INT>", r"column 's.z' does not exist"),
        (
            "s STRING",
            "column 's' is STRUCT<x: BIGINT, y: STRING> in the table, STRING in the schema",
        ),
        (
            "l ARRAY<STRUCT<p: STRING>>",
            r"column 'l.element.p' is BIGINT in the table, STRING in the schema",
        ),
        (
            "m MAP<INT, STRUCT<v: DOUBLE>>",
            r"column 'm.key' is STRING in the table, INT in the schema",
        ),
        ("_opal_segment BIGINT", "column '_opal_segment' does not exist"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(
    spark: SparkSession, schema: str, problem: str
) -> None:
    layout = TableLayout(
        keys=["a"],
        delta="b",
        tie_break=(),
        deletes=None,
        partition_by=(),
        file_format="parquet",
        properties={},
    )
    spec = plan_spec(arrow_of_spark(spark.sql(NESTED).schema), layout)
    with pytest.raises(InvalidInputError, match=problem):
        requested_fields(StructType.fromDDL(schema), spec)


@pytest.mark.parametrize(
    "schema, problem",
    [
        (
            (
                "a BIGINT NOT NULL, s STRUCT<x: BIGINT NOT NULL>, m MAP<STRING, "
                "STRUCT<u: BIGINT NOT "
                "NULL, v: DOUBLE>>"
            ),
            None,
        ),
        (
            (
                "l ARRAY<STRUCT<p: BIGINT>> NOT NULL, t TIMESTAMP, s STRUCT<x: BIGINT "
                "NOT NULL> NOT "
                "NULL"
            ),
            "column 's' has nulls",
        ),
        ("m MAP<STRING, STRUCT<u: BIGINT, v: DOUBLE NOT NULL>>", "column 'm.value.v' has nulls"),
    ],
)
def test_not_null_of_a_schema_is_kept_by_the_rows(
    spark: SparkSession, schema: str, problem: str | None
) -> None:
    """Slices keep it too, and a null parent holds no value."""
    kind = pa.schema(
        [
            ("a", pa.int64()),
            ("t", pa.timestamp("us", tz="UTC")),
            ("s", pa.struct([("x", pa.int64())])),
            ("l", pa.list_(pa.struct([("p", pa.int64())]))),
            ("m", pa.map_(pa.string(), pa.struct([("u", pa.int64()), ("v", pa.float64())]))),
        ]
    )
    values = [
        {"a": None, "s": {"x": None}, "l": None, "m": None},
        {"a": 1, "s": None, "l": [{"p": 1}], "m": [("k", {"u": 1, "v": 0.5})]},
        {"a": 2, "s": {"x": 2}, "l": [], "m": [("k", None), ("j", {"u": 2, "v": None})]},
    ]
    rows = pa.Table.from_pylist(values, kind).slice(1)
    asked = StructType.fromDDL(schema)
    assert isinstance(asked, StructType)
    with nullcontext() if problem is None else pytest.raises(InvalidInputError, match=problem):
        refuse_nulls(rows.select(asked.names), asked)


def test_a_schema_that_does_not_fit_fails_the_query_with_the_reason(
    spark: SparkSession, nested: str
) -> None:
    with pytest.raises(
        AnalysisException, match="column 'b' is BIGINT in the table, STRING in the schema"
    ):
        with_schema(spark, nested, "b STRING")
    none_within = StructType(
        [
            StructField(
                "l", ArrayType(StructType([StructField("p", LongType())]), containsNull=False)
            )
        ]
    )
    with pytest.raises(
        PythonException,
        match=r"column 'l.element' has nulls, but the schema says NOT NULL; leave NOT NULL",
    ):
        spark.read.format("opal").schema(none_within).load(nested).collect()


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "sql, advice",
    [
        (
            "CREATE TABLE c USING opal LOCATION '{path}'",
            r"write CREATE TEMPORARY VIEW name USING opal OPTIONS",
        ),
        (
            "CREATE TABLE c USING opal OPTIONS (path '{path}')",
            "write CREATE TEMPORARY VIEW name USING opal OPTIONS",
        ),
        (
            "CREATE TABLE c (a BIGINT) USING opal LOCATION '{path}'",
            "CREATE TEMPORARY VIEW name USING opal OPTIONS",
        ),
        ("CREATE TABLE c USING opal AS SELECT 1 AS a", "To create a table, call OpalTable.create"),
        (
            "INSERT INTO v VALUES (1)",
            "the rows do not fit the table: missing column 'b'; missing column 'c'",
        ),
    ],
)
def test_unsupported_sql_names_the_supported_way(
    spark: SparkSession, nested: str, sql: str, advice: str
) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v (a BIGINT) USING opal OPTIONS (path '{nested}')")
    try:
        with pytest.raises(AnalysisException, match=advice):
            _ = spark.sql(sql.format(path=nested)).collect(), spark.sql("SELECT * FROM c").collect()
    finally:
        spark.sql("DROP TABLE IF EXISTS c")


@pytest.mark.slow_but_one
def test_an_unsupported_write_names_the_supported_one(
    spark: SparkSession, nested: str, tmp_path: Path
) -> None:
    rows = spark.range(1).selectExpr("id AS a")
    with pytest.raises(
        AnalysisException,
        match=r"only writes with \.mode\('append'\)\.save\(path\), which upserts by",
    ):
        rows.write.format("opal").mode("overwrite").save(nested)
    with pytest.raises(AnalysisException, match=r"To create a table, call OpalTable\.create"):
        rows.write.format("opal").saveAsTable("c")
    query = spark.readStream.format("rate").load().writeStream.format("opal").option("path", nested)
    with pytest.raises(
        StreamingQueryException,
        match=r"foreachBatch\(OpalTable.for_path\(spark, '.*'\)\.sink\(application=",
    ):
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)


def feed(spark: SparkSession, path: str, **options: object) -> DataFrame:
    return spark.read.format("opal").options(readChangeFeed="true", **options).load(path)


@pytest.fixture
def upserted(spark: SparkSession, path: str, tmp_path: Path) -> str:
    """Return a copy whose version 2 updates row 3 and inserts row 9."""
    path = str(shutil.copytree(path, tmp_path / "t"))
    rows = spark.createDataFrame(
        [(3, 30, "new", None), (9, 30, "nine", None)],
        "id LONG, at LONG, name STRING, day TIMESTAMP",
    )
    OpalTable.for_path(spark, path).ingest(rows, metadata="inline")
    return path


@pytest.mark.slow
def test_a_feed_by_the_names_of_delta_s_options(spark: SparkSession, upserted: str) -> None:
    table = OpalTable.for_path(spark, upserted)
    expected = sorted(table.changes(2).collect(), key=str)
    assert len(expected) == 3
    moment = expected[0]["_commit_timestamp"].astimezone(UTC).isoformat()
    for options in (
        {"startingVersion": 2},
        {"startingVersion": 2, "endingVersion": 2},
        {"startingTimestamp": moment},
        {"startingTimestamp": moment, "endingTimestamp": moment, "deduplicationMode": "netChanges"},
    ):
        rows = feed(spark, upserted, **options)
        assert rows.dtypes == table.changes(2).dtypes
        assert sorted(rows.collect(), key=str) == expected, options
    kinds = (
        feed(spark, upserted, startingVersion=2, computeUpdates="false")
        .select("_change_type")
        .collect()
    )
    assert sorted(row[0] for row in kinds) == ["delete", "insert", "insert"]
    assert feed(spark, upserted, startingVersion="latest").collect() == []
    assert (
        feed(
            spark, upserted, startingVersion=0, endingVersion=1, deduplicationMode="NETchanges"
        ).count()
        == 8
    )
    assert feed(spark, upserted, startingVersion=0, endingVersion=0).count() == 0
    chosen = (
        spark.read.format("opal")
        .schema("_change_type STRING, ID LONG")
        .option("readChangeFeed", "true")
    )
    assert {row["ID"] for row in chosen.option("startingVersion", 2).load(upserted).collect()} == {
        3,
        9,
    }


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "options, words",
    [
        ({"readChangeFeed": "true"}, "a change feed needs startingVersion or startingTimestamp"),
        (
            {"readChangeFeed": "yes", "startingVersion": "1"},
            "option readChangeFeed='yes' is neither true nor false",
        ),
        (
            {"startingVersion": "1"},
            (
                "option startingVersion applies only to a change feed; add "
                ".option('readChangeFeed', "
                "'true')"
            ),
        ),
        (
            {"readChangeFeed": "true", "startingVersion": "one"},
            "option startingVersion='one' is not a version",
        ),
        (
            {"readChangeFeed": "true", "startingVersion": "1", "endingVersion": "latest"},
            "option endingVersion='latest' is not a version",
        ),
        (
            {"readChangeFeed": "true", "startingVersion": "1", "startingTimestamp": "2026-01-01"},
            "are the same bound of the versions; leave one of them out",
        ),
        (
            {"readChangeFeed": "true", "startingVersion": "1", "version": "1"},
            "option version applies only to a read of rows",
        ),
        (
            {"readChangeFeed": "true", "startingVersion": "7"},
            "has no version 7 yet; the newest is 1",
        ),
        (
            {"readChangeFeed": "true", "startingVersion": "1", "deduplicationMode": "net"},
            "mode='net' is unknown",
        ),
        (
            {"readChangeFeed": "true", "startingTimestamp": "2026-01-01"},
            "startingTimestamp: '2026-01-01' has no time of day",
        ),
    ],
)
def test_options_of_a_feed_that_cannot_be_are_refused(
    spark: SparkSession, path: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises((AnalysisException, PythonException), match=re.escape(words)):
        spark.read.format("opal").options(**options).load(path).collect()


@pytest.mark.slow
def test_spark_finds_the_source_without_registration(path: str) -> None:
    """A table's columns with names of a feed's do not belong to its feed."""
    lines = f"""
        from pyspark.sql import SparkSession
        builder = SparkSession.builder.master("local[1]")
        spark = builder.config("spark.ui.enabled", "false").getOrCreate()
        print("rows", spark.read.format("opal").load({path!r}).count())
        import opal_spark
        opal_spark.register(spark)
        print("rows", spark.read.format("opal").load({path!r}).count())
    """
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(lines)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("rows")] == [
        "rows 8",
        "rows 8",
    ], done.stderr
    assert "Traceback" not in done.stderr
