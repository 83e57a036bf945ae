"""Inline ingests on real Spark.

Histories and crashes of both modes are in their own modules.
"""

from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable
from opal_spark.engine.by_key import guess_slots, plan_slots
from tests.opal_lake.shop import Row, latest
from tests.opal_spark.build import DDL, content, create, frame


def test_an_inline_ingest_makes_rows_visible_in_one_commit_and_counts_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "table")
    table.ingest(frame(spark, [("a", 1, 1), ("b", 1, 2)]), metadata="inline")
    result = table.ingest(
        frame(spark, [("a", 2, 3), ("b", 2, None), ("c", 0, 4)]),
        metadata="inline",
        partition_key="monday",
    )
    assert result.version == 2
    counts = {
        name: result.counts[name] for name in ("rows", "updates", "deletes", "events", "rejected")
    }
    assert counts == {"rows": 3, "updates": 2, "deletes": 1, "events": 3, "rejected": 0}
    assert content(table.read()) == [("a", 2, 3), ("c", 0, 4)]
    assert content(table.read(partition_key="monday")) == [("a", 2, 3), ("c", 0, 4)]
    assert [commit["changes_view"] for commit in table.history()] == [True, True, True]
    assert table.snapshot_at().pending == frozenset()


def test_modes_may_alternate_and_pending_rows_of_others_wait_for_their_metagen(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "table")
    table.ingest(frame(spark, [("a", 5, 1), ("b", 1, 1)]))
    table.ingest(frame(spark, [("a", 3, 2), ("c", 1, 1)]), metadata="inline")
    assert content(table.read()) == [("a", 3, 2), ("c", 1, 1)]
    table.metagen()
    assert content(table.read()) == [("a", 5, 1), ("b", 1, 1), ("c", 1, 1)]
    assert table.check() == []


def test_bad_rows_are_refused_or_put_aside(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "table")
    rows = spark.createDataFrame([("a", 1, 1), (None, 2, 2), ("c", None, 3)], DDL)
    with pytest.raises(InvalidInputError, match="key column 'sku' is null"):
        table.ingest(rows, metadata="inline")
    assert table.snapshot_at().version == 0
    result = table.ingest(rows, metadata="inline", on_bad_rows="quarantine")
    assert (result.counts["rows"], result.counts["rejected"]) == (1, 2)
    snippet = result.notes[2].partition(": ")[2].removesuffix(".show(truncate=False)")
    assert [
        row.reason for row in eval(snippet, {"spark": spark}).sort("reason").collect()
    ] == [  # as somebody would paste it
        "delta column 'at' is null",
        "key column 'sku' is null",
    ]
    with pytest.raises(
        InvalidInputError,
        match=(
            r"2 of 3 rows \(66.7%\) cannot go into the table, "
            r"but reject_threshold='60%' allows only 1"
        ),
    ):
        table.ingest(rows, metadata="inline", on_bad_rows="quarantine", reject_threshold="60%")
    assert table.snapshot_at().version == 1
    assert content(table.read()) == [("a", 1, 1)]


def test_columns_may_have_any_name_and_rows_any_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = spark.createDataFrame(
        [], "`the.day` DATE, `a``b` STRING, `id.x` DECIMAL(10,2), at TIMESTAMP"
    ).schema
    keys = ["id.x", "a`b"]
    table = OpalTable.create(
        spark,
        str(tmp_path / "table"),
        schema,
        keys=keys,
        delta="at",
        partition_by=["the.day"],
        file_format="orc",
    )
    base = spark.range(40).select(
        F.date_add(F.lit(date(2026, 11, 1)), (F.col("id") % 3).cast("int")).alias("the.day"),
        F.concat(F.lit("k"), F.col("id") % 5).alias("a`b"),
        (F.col("id") % 4).cast("decimal(10,2)").alias("id.x"),
        F.timestamp_seconds(F.col("id")).alias("at"),
    )
    table.ingest(base, metadata="inline")
    assert table.read().count() == 20
    table.ingest(
        base.withColumn("at", F.timestamp_seconds(F.lit(10_000))).limit(20), metadata="inline"
    )
    assert table.read().count() == 20
    assert {file["path"].split("/")[1][-2:] for file in table.files()} == {"01", "02", "03"}
    assert table.check() == []


@pytest.mark.slow
def test_runs_are_merged_in_passing_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "table", key_store_fan_in=2)
    batches: list[list[Row]] = []
    for turn in range(9):
        batches.append([(f"k{key}", turn, turn) for key in range(turn, turn + 40)])
        table.ingest(frame(spark, batches[-1], 2), metadata="inline")
    assert len(table.snapshot_at().runs) <= 8  # of 4 slots each; without merges 36
    assert content(table.read()) == latest(batches)
    assert table.check() == []


def test_an_empty_source_changes_nothing_and_a_token_is_applied_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "table")
    assert table.ingest(frame(spark, []), metadata="inline").version is None
    first = table.ingest(frame(spark, [("a", 1, 1)]), metadata="inline", token="t")
    assert table.ingest(frame(spark, [("a", 1, 1)]), metadata="inline", token="t").repeated
    assert table.ingest(frame(spark, [("a", 1, 1)]), token="t").version == first.version


def test_the_number_of_slots_grows_with_the_rows_and_a_guess_has_a_limit() -> None:
    assert [plan_slots(rows, 2) for rows in (0, 1000, 100_000, 1_000_000, 10_000_000)] == [
        1,
        1,
        2,
        2,
        16,
    ]
    assert [guess_slots(rows, 0, 2) for rows in (None, 1000, 10_000_000, 1 << 60)] == [4, 1, 16, 64]
    assert guess_slots(None, 50_000_000, 2) == 64
