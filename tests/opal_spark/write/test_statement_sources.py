"""Sources of statements on Spark: their names, types, defaults and generated columns."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable

COLUMNS = "id INT, at BIGINT, ratio FLOAT, day DATE"


def create(spark: SparkSession, path: Path, key: str = "id", **layout: Any) -> OpalTable:
    schema = spark.sql(f"SELECT from_csv('', '{COLUMNS}') AS row").select("row.*").schema
    table = OpalTable.create(spark, str(path), schema, keys=[key], delta="at", **layout)
    table.upsert(rows(spark, "1, 1L, 0.5F, DATE '2026-01-01'"))
    return table


def rows(spark: SparkSession, values: str, names: str = "id, at, ratio, day") -> DataFrame:
    return spark.sql(f"SELECT * FROM VALUES ({values}) AS v({names})")


def content(table: OpalTable) -> list[tuple[Any, ...]]:
    read = table.read().selectExpr("id", "at", "ratio", "CAST(day AS STRING)")
    return sorted(tuple(row) for row in read.collect())


FIRST = (1, 1, 0.5, "2026-01-01")


@pytest.mark.parametrize("verb", ["insert", "overwrite"])
def test_whole_rows_fit_as_those_of_an_ingest(
    spark: SparkSession, tmp_path: Path, verb: str
) -> None:
    table = create(spark, tmp_path / "t")
    write = getattr(table, verb)
    for values, fault in [
        ("2, 1L, 0.5D, DATE '2026-01-02'", "column 'ratio' is DOUBLE, the table has FLOAT"),
        ("2L, 1L, 0.5F, DATE '2026-01-02'", "column 'id' is BIGINT, the table has INT"),
        ("2, 1L, 0.5F, TIMESTAMP '2026-01-02 10:00:00'", "column 'day' is TIMESTAMP"),
    ]:
        with pytest.raises(InvalidInputError, match=fault):
            write(rows(spark, values))
    with pytest.raises(InvalidInputError, match="missing column 'id'"):
        write(rows(spark, "1L, 0.5F, NULL", "at, ratio, day"))
    table.alter([{"set_default": "ratio", "value": 2}])
    write(rows(spark, "2S, 1, NULL", "ID, AT, DAY"))
    assert content(table)[-1] == (2, 1, 2.0, None)


def test_an_overwrite_refuses_a_time_for_the_day_of_a_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "t", key="day")
    with pytest.raises(InvalidInputError, match="column 'day' is TIMESTAMP, the table has DATE"):
        table.overwrite(rows(spark, "2, 1L, 0.5F, TIMESTAMP '2026-01-01 10:00:00'"))
    assert content(table) == [FIRST]


def test_a_number_out_of_the_range_of_a_float_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "t")
    with pytest.raises(InvalidInputError, match=r"'ratio' in the update is -1.0E300 in some row"):
        table.update({"ratio": "-1e300"})
    merge = table.merge(rows(spark, "1, 1e300", "id, ratio"), on="t.id = s.id")
    with pytest.raises(InvalidInputError, match=r"'ratio' in the update is 1.0E300 in some row"):
        merge.when_matched_update({"ratio": "s.ratio"}).execute()
    table.update({"ratio": "double('-Infinity')"})
    assert content(table) == [(1, 1, float("-inf"), "2026-01-01")]


def test_rows_without_a_key_have_no_latest_one(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t")
    given = spark.sql(
        "SELECT * FROM VALUES (NULL, 5L), (1, 7L), (NULL, 5L), (1, 6L), (99999999999L, 1L) "
        "AS v(ID, at)"
    )
    merge = table.merge(given, on="t.id = s.id", duplicates="latest")
    assert merge.when_matched_update({"at": "s.at"}).execute().counts["updated"] == 1
    assert content(table)[0][1] == 7
    insert = merge.when_not_matched_insert({"id": "s.id", "at": "s.at"}, where="s.at = 5")
    with pytest.raises(InvalidInputError, match=r"2 rows.*: key column 'id' is null"):
        insert.execute()
