"""Columns that a table gets later, on Spark: reads across the add, and each kind of source."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, LongType

import opal_spark
from opal_lake.errors import InvalidInputError
from opal_lake.operations.job_spec import JobSpec
from opal_lake.source import Files
from opal_spark import OpalTable
from opal_spark.submit.runner import perform
from tests.kit.check import check_table

COLUMNS = "id BIGINT, at BIGINT, name STRING"


def create(spark: SparkSession, path: Path, file_format: str = "parquet") -> OpalTable:
    schema = spark.createDataFrame([], COLUMNS).schema
    return OpalTable.create(
        spark, str(path / "table"), schema, keys=["id"], delta="at", file_format=file_format
    )


def shown(table: OpalTable, column: str, **view: Any) -> list[Any]:
    return [row[column] for row in table.read(**view).orderBy("id").collect()]


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_every_read_across_an_add_gives_null_for_the_files_of_before(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    table = create(spark, tmp_path, file_format)
    table.ingest(spark.createDataFrame([(1, 1, "a"), (2, 1, "b")], COLUMNS), metadata="inline")
    table.add_columns({"seen": "timestamp", "score": "double", "tags": ArrayType(LongType())})
    rows = spark.createDataFrame([(2, 2, "c", 0.5)], f"{COLUMNS}, SCORE DOUBLE").selectExpr(
        "*", "timestamp_seconds(7) AS seen", "array(1L) AS tags"
    )
    table.ingest(rows, metadata="inline")
    before, after = table.read().orderBy("id").collect()
    assert (before["score"], before["tags"], before["seen"]) == (None, None, None)
    assert (after["score"], after["tags"], after["seen"].timestamp()) == (0.5, [1], 7)
    assert table.read(version=1).columns == ["id", "at", "name"]
    assert shown(table, "score", event_time=1) == [None, None]
    assert table.read(where="score > 0").count() == 1
    assert table.read(where="score IS NULL").count() == 1
    explained = table.explain(where="score > 0.1")["files"]
    assert explained["total"] - explained["pruned_by_bounds"] == 1, explained
    feed = table.changes(1).orderBy("_commit_version", "id", "at").collect()
    assert [(row["_change_type"], row["score"]) for row in feed] == [
        ("insert", None),
        ("insert", None),
        ("update_preimage", None),
        ("update_postimage", 0.5),
    ]
    assert sorted(row["score"] or 0 for row in table.history_view().collect()) == [0, 0, 0.5]
    opal_spark.register(spark)
    read = spark.read.format("opal").load(table.uri)
    assert [row["score"] for row in read.orderBy("id").collect()] == [None, 0.5]
    table.zorder(["score", "id"], whole=True)
    table.rebuild_key_store()
    assert shown(table, "score") == [None, 0.5]
    table.restore(version=1)
    assert shown(table, "score") == [None, None]
    assert check_table(table) == []


@pytest.mark.slow_but_one
@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "frame"])
def test_a_source_adds_ignores_or_lacks_columns(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table = create(spark, tmp_path)

    def source(number: int | str, **values: Any) -> Any:
        row = {"id": number, "at": 1, "name": "a", **values}
        path = tmp_path / f"{number}.{kind}"
        if kind == "csv":
            path.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
        elif kind == "json":
            path.write_text(json.dumps(row) + "\n")
        else:
            frame = spark.createDataFrame(pa.Table.from_pylist([row]))
            if kind == "frame":
                return frame
            frame.write.parquet(str(path))
        return Files(str(path), format=kind)

    with pytest.raises(InvalidInputError) as caught:
        table.ingest(source("one"), metadata="inline")
    assert "on_new_columns" not in str(caught.value)  # which takes no other types
    new = source(1, score=0.5, Tag="x")
    if kind != "json":  # there an unknown key makes a bad row
        with pytest.raises(InvalidInputError, match="unknown column"):
            table.ingest(new, metadata="inline")
    else:
        with pytest.raises(InvalidInputError, match="score"):
            table.ingest(new, metadata="inline")
    assert table.ingest(new, metadata="inline", on_new_columns="ignore").counts["rows"] == 1
    assert table.read().columns == ["id", "at", "name"]
    table.ingest(source(2, score=1.5, Tag="x"), metadata="inline", on_new_columns="add")
    assert table.read().columns == [
        "id",
        "at",
        "name",
        *(["Tag", "score"] if kind == "json" else ["score", "Tag"]),
    ]
    table.ingest(source(3), metadata="inline")
    assert [(row["score"], row["Tag"]) for row in table.read().orderBy("id").collect()] == [
        (None, None),
        (1.5, "x"),
        (None, None),
    ]
    assert check_table(table) == []


@pytest.mark.slow
def test_files_without_a_header_may_be_as_wide_as_before_the_add(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path)
    table.add_columns({"score": "double"})
    (tmp_path / "old.csv").write_text("1,1,a\n")
    (tmp_path / "new.csv").write_text("2,1,b,0.5\n")
    for name in ("old", "new"):
        table.ingest(
            Files(str(tmp_path / f"{name}.csv"), options={"header": False}),
            metadata="inline",
            on_new_columns="add",
        )
    assert shown(table, "score") == [None, 0.5]


@pytest.mark.slow
def test_a_stream_and_a_writer_continue_across_an_add(spark: SparkSession, tmp_path: Path) -> None:
    opal_spark.register(spark)
    table = create(spark, tmp_path)
    table.ingest(spark.createDataFrame([(1, 1, "a")], COLUMNS), metadata="inline")
    seen: list[Any] = []

    def run() -> list[Any]:
        seen.clear()
        rows = spark.readStream.format("opal").option("readChangeFeed", "true").load(table.uri)
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        opal_spark.run_available(writer.foreachBatch(lambda frame, _: seen.extend(frame.collect())))
        return seen

    assert [row["_change_type"] for row in run()] == ["insert"]
    spark.createDataFrame([(1, 2, "b")], COLUMNS).write.format("opal").mode("append").save(
        table.uri
    )
    table.add_columns({"score": "double"})
    spark.createDataFrame([(1, 3, "c")], COLUMNS).write.format("opal").mode("append").save(
        table.uri
    )
    spark.createDataFrame([(1, 4, "d", 0.5)], f"{COLUMNS}, score DOUBLE").write.format("opal").mode(
        "append"
    ).save(table.uri)
    assert [
        (row["at"], row["_change_type"], row["score"])
        for row in sorted(run(), key=lambda row: (row["_commit_version"], row["at"]))
    ] == [
        (1, "update_preimage", None),
        (2, "update_postimage", None),
        (2, "update_preimage", None),
        (3, "update_postimage", None),
        (3, "update_preimage", None),
        (4, "update_postimage", 0.5),
    ]


def test_the_jobs_add_columns_and_a_pipeline_that_made_the_table_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    uri, path = str(tmp_path / "table"), tmp_path / "in.json"
    path.write_text('{"id": 1, "at": 1, "name": "a", "score": 0.5, "more": {"x": 1}}\nno JSON\n')
    made = {"keys": ["id"], "delta": "at", "schema": COLUMNS}
    arguments = {"source": {"files": [str(path)]}, "create": made, "on_bad_rows": "quarantine"}

    def job(operation: str, **given: Any) -> Any:
        return perform(spark, JobSpec.of(operation, uri, given, None))

    assert (
        job("ingest", **arguments, metadata="inline", on_new_columns="add").counts["rejected"] == 1
    )
    assert job("add_columns", columns={"note": "string"}).counts == {"columns": 1}
    assert (
        job("ingest", **arguments, metadata="inline", on_new_columns="ignore").counts["rows"] == 1
    )
    table = OpalTable.for_path(spark, uri)
    assert table.read().columns == ["id", "at", "name", "more", "score", "note"]
    assert shown(table, "more")[0]["x"] == 1
