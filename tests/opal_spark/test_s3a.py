"""Spark through S3A and the log through boto3, against a real S3 API."""

import pytest

from tests.spark_scripts import run_script

SCRIPT = """
import sys
from tests.kit.check import check_table
from tests.kit.failing_store import Crash
from opal_spark import OpalTable
from tests.opal_lake.shop import latest
from tests.opal_spark.build import FIRST, SECOND, DriverStore, upsert
from opal_lake.table import table_on
from tests.fixtures_s3a import s3a_session

endpoint = sys.argv[1]
spark = s3a_session(endpoint)
DDL = "sku STRING, at BIGINT, price INT"


def content(rows):
    return sorted((row.sku, row.at, row.price) for row in rows.collect())


def prepared(uri, file_format):
    schema = spark.createDataFrame([], DDL).schema
    table = OpalTable.create(
        spark,
        uri,
        schema,
        keys=["sku"],
        delta="at",
        deletes="price IS NULL",
        file_format=file_format,
    )
    table.ingest(spark.createDataFrame(FIRST, DDL))
    table.metagen()
    return table


for file_format, metadata in (("parquet", "batch"), ("orc", "batch"), ("parquet", "inline")):
    table = prepared(f"s3a://lake/spark/{file_format} {metadata} [a]", file_format)
    upsert(spark, table.storage, metadata)
    assert content(table.read()) == latest([FIRST, SECOND]), file_format
    assert content(table.read(version=2)) == latest([FIRST]), file_format
    assert content(table.read(event_time=1)) == latest([FIRST, SECOND], 1), file_format
    assert check_table(table) == [], file_format
table = prepared("s3a://lake/spark/dry", "parquet")
dry = DriverStore(table.storage)
upsert(spark, dry, "batch")
for mode in ("after", "done_but_failed"):
    for fail_at in range(1, len(dry.trace) + 1, 11):
        storage = prepared(f"s3a://lake/spark/{mode}-{fail_at}", "parquet").storage
        try:
            upsert(spark, DriverStore(storage, fail_at, mode), "batch")
        except (Crash, Exception) as error:
            print(mode, fail_at, dry.trace[fail_at - 1], type(error).__name__)
        upsert(spark, storage, "batch")
        again = OpalTable.on(spark, table_on(storage))
        assert content(again.read()) == latest([FIRST, SECOND]), (mode, fail_at)
        assert [commit["operation"] for commit in again.history()].count("ingest") == 2
        assert again.check() == []
spark.stop()
print("all well")
"""


@pytest.mark.slow
@pytest.mark.s3
def test_a_table_on_s3_through_s3a_with_failures_of_the_driver(
    moto_server: str, s3_options: dict[str, str]
) -> None:
    assert s3_options["endpoint_url"] == moto_server
    run_script(SCRIPT, moto_server, 1500)
