"""Constraints on Spark: its ingests and statements reject the rows that Arrow's reject."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable

DDL = "sku STRING, at BIGINT, price INT, label STRING"
BAD = [("ax", 1, 0, "a"), ("bow", 1, 20, None), ("cup", 1, 30, "c"), ("dye", 1, None, "d")]


def test_spark_rejects_rows_that_violate_constraints(spark: SparkSession, tmp_path: Path) -> None:
    table = OpalTable.create(
        spark,
        str(tmp_path / "t"),
        spark.createDataFrame([], DDL).schema,
        keys=["sku"],
        delta="at",
        not_null=["label"],
        constraints={"positive": "price > 0"},
    )
    rows = spark.createDataFrame(BAD, DDL)
    with pytest.raises(InvalidInputError) as refused:
        table.ingest(rows, metadata="inline")
    message = str(refused.value)
    assert "1 row: column 'label' is null, but it is declared NOT NULL" in message
    assert "1 row: constraint 'positive' is violated: price > 0" in message
    done = table.ingest(rows, metadata="inline", on_bad_rows="quarantine")
    assert done.counts["rejected"] == 2
    # A condition that is null is not violated
    assert sorted(row.sku for row in table.read().collect()) == ["cup", "dye"]
    with pytest.raises(InvalidInputError) as refused:
        table.update({"price": "price - 30"}, where="label = 'c'")
    assert "constraint 'positive' is violated: price > 0" in str(refused.value)
    assert '{"sku": "cup", "at": 1, "price": 0, "label": "c"}' in str(refused.value)
    merge = table.merge(spark.createDataFrame(BAD[:2], DDL), on="t.sku = s.sku")
    with pytest.raises(InvalidInputError, match="column 'label' is null"):
        merge.when_not_matched_insert_all(where="s.price > 0").execute()
    with pytest.raises(InvalidInputError, match=r"1 row .* violates the new constraints"):
        table.alter([{"set_not_null": "price"}])
    assert table.delete(where="price IS NULL").counts["deleted"] == 1
    table.alter([{"set_not_null": "price"}])
    assert [row.sku for row in table.read().collect()] == ["cup"]
    assert table.check() == []
