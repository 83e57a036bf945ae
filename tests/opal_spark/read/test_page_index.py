"""Spark skips pages by their extremes, and returns all rows that fulfil the filter."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.storage.open import open_storage
from opal_lake.table import create_on
from opal_spark import OpalTable

pytestmark = pytest.mark.spark

ROWS = 40_000


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OpalTable:
    """Return ascending columns, so that extremes rule out most pages.

    They have nulls, NaN and signed zeros in some rows.
    """
    uri = str(tmp_path_factory.mktemp("indexed") / "t")
    ids = np.arange(ROWS)
    floats = np.where(ids % 1000 == 7, np.nan, np.where(ids % 1000 == 8, -0.0, (ids - 20_000) / 8))
    rows = pa.table(
        {
            "id": ids,
            "at": pa.array(ids, pa.int64()),
            "text": pa.array(
                [None if 10_000 <= number < 14_000 else f"ä{number:06d}" for number in ids.tolist()]
            ),
            "share": pa.array(floats),
            "price": pa.array(
                [Decimal(number) / 100 if number % 3 else None for number in ids.tolist()],
                pa.decimal128(20, 2),
            ),
            "moment": pa.array(
                [
                    datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
                    for number in ids.tolist()
                ],
                pa.timestamp("us", "UTC"),
            ),
            "word": pa.array([f"w{number // 5000}" for number in ids.tolist()]),
        }
    )
    made = create_on(
        open_storage(uri), plan_spec(rows.schema, TableLayout(keys=["id"], delta="at"))
    )
    made.ingest(rows, metadata="inline")
    made.ingest(
        rows.slice(5, 3000).set_column(1, "at", pa.array(np.arange(3000) + ROWS)), metadata="inline"
    )
    files = [pq.read_metadata(path) for path in Path(uri).rglob("data/*.parquet")]
    assert any(file.row_group(0).column(0).has_column_index for file in files)
    return OpalTable.for_path(spark, uri)


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "where",
    [
        "id BETWEEN 20000 AND 20010 OR id = 39999",
        "text > 'ä013990' AND text < 'ä014010'",
        "text IS NULL AND id > 13000",
        "share = 0",
        "isnan(share) AND id < 5000",
        "share < -2400",
        "price IN (1.0, 399.98, 0.01)",
        "price IS NULL AND id >= 39990",
        "moment >= timestamp '2026-01-28 00:00:00Z'",
        "word = 'w7' AND id % 100 = 0",
        "word <> 'w0' AND id < 6000",
    ],
)
def test_a_filter_keeps_the_same_rows_with_and_without_pages_to_skip(
    table: OpalTable, where: str
) -> None:
    spark = table.spark
    skipped = table.read(where=where).orderBy("id").collect()
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")
    try:
        whole = table.read().where(where).orderBy("id").collect()
    finally:
        spark.conf.unset("spark.sql.parquet.filterPushdown")
    assert str(skipped) == str(whole)
    assert whole
