"""Compaction on Spark: tasks rewrite files during upserts, and every moment reads as before."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError, NotFoundError
from opal_spark import OpalTable
from tests.opal_lake.shop import Row, latest
from tests.opal_spark.build import DAYS, content, create, frame


def filled(spark: SparkSession, path: Path, file_format: str = "parquet") -> OpalTable:
    table = create(spark, path, file_format)
    for day in DAYS:
        table.ingest(frame(spark, day), metadata="inline")
    return table


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_reads_are_the_same_after_minor_and_major_compactions(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    table = filled(spark, tmp_path / "t", file_format)
    assert len(table.files()) >= 3
    done = table.compact(token="night-1")
    assert done.counts["files_written"] == 1
    assert table.compact(token="night-1").repeated
    for moment in range(8):
        assert content(table.read(event_time=moment)) == latest(DAYS, moment)
    assert table.check() == []
    dropped = table.compact(mode="major", look_back=1)
    assert dropped.counts["rows_dropped"] > 0
    assert content(table.read()) == latest(DAYS)
    assert content(table.read(event_time=5)) == latest(DAYS, 5)
    with pytest.raises(NotFoundError, match="is before 5, the oldest readable event time"):
        table.read(event_time=4)
    assert content(table.read(version=3, event_time=2)) == latest(DAYS, 2)
    assert table.check() == []


def test_an_upsert_after_a_compaction_meets_the_rows_where_they_are_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = filled(spark, tmp_path / "t")
    table.compact(mode="major", look_back=1)
    more: list[Row] = [("ax", 7, 1), ("dye", 6, None), ("bow", 3, 9)]
    table.ingest(frame(spark, more))
    table.metagen()
    assert content(table.read()) == latest([*DAYS, more])
    assert table.check() == []


def test_bad_arguments_are_refused_before_any_work(spark: SparkSession, tmp_path: Path) -> None:
    table = filled(spark, tmp_path / "t")
    with pytest.raises(InvalidInputError, match="must be a whole number of megabytes"):
        table.compact(target_mb=0)
    with pytest.raises(InvalidInputError, match="is not a number such as 1000"):
        table.compact(mode="major", look_back="30d")
