"""A Spark job's driver dies, or gets a wrong answer, at every call to the store.

A rerun leads to the same table.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import CommitUnknownError, StorageError
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table, table_on
from opal_spark import OpalTable
from tests.kit.check import check_table
from tests.kit.failing_store import Crash, Mode
from tests.opal_lake.shop import latest
from tests.opal_spark.build import FIRST, SECOND, DriverStore, content, create, frame, upsert

STRIDE = 13  # of the calls at which it fails


def prepared(spark: SparkSession, path: Path, file_format: str) -> Storage:
    table = create(spark, path, file_format, checkpoint_commits=2, key_store_fan_in=2)
    table.ingest(frame(spark, FIRST))
    table.metagen()
    return open_storage(str(path))


@pytest.mark.slow  # the core is walked at every call without Spark
@pytest.mark.parametrize(
    "file_format, metadata, mode",
    [
        ("parquet", "batch", "after"),
        ("parquet", "inline", "after"),
        ("parquet", "batch", "before"),
        ("orc", "batch", "after"),
        ("parquet", "batch", "done_but_failed"),
        ("parquet", "inline", "before"),
        ("parquet", "inline", "done_but_failed"),
    ],
)
def test_a_rerun_after_any_failure_of_the_driver(
    spark: SparkSession, tmp_path: Path, file_format: str, metadata: str, mode: Mode
) -> None:
    dry = DriverStore(prepared(spark, tmp_path / "dry", file_format))
    upsert(spark, dry, metadata)
    for fail_at in range(1, len(dry.trace) + 1, STRIDE):
        storage = prepared(spark, tmp_path / str(fail_at), file_format)
        for target in (DriverStore(storage, fail_at, mode), storage, storage):
            try:
                upsert(spark, target, metadata)
            except (Crash, StorageError, CommitUnknownError):
                continue
        table = OpalTable.on(spark, table_on(storage))
        assert content(table.read()) == latest([FIRST, SECOND]), (fail_at, dry.trace[fail_at - 1])
        assert_applied_once(table)


def assert_applied_once(table: Table) -> None:
    assert [commit.operation for commit in table.commits()].count("ingest") == 2
    assert check_table(table) == []
