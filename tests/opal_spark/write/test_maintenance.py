"""Properties, savepoints, retention and maintenance, by the public face and as jobs."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import ExpiredError, FormatError, NotFoundError, StorageError
from opal_lake.exit_codes import RETRY, exit_code
from opal_lake.operations.job_spec import JobSpec
from opal_lake.result import JobResult
from opal_spark import OpalTable
from opal_spark.engine import verify
from opal_spark.engine.failures import spark_errors
from opal_spark.engine.scan import scan_files
from opal_spark.submit.runner import perform

COLUMNS = "sku STRING, at BIGINT, price INT"


@pytest.fixture(scope="module")
def made_table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 1 to 4, a row each."""
    path = tmp_path_factory.mktemp("made") / "table"
    schema = spark.createDataFrame([], COLUMNS).schema
    table = OpalTable.create(spark, str(path), schema, keys=["sku"], delta="at")
    for number in range(4):
        table.ingest(spark.createDataFrame([("ax", number, number)], COLUMNS), metadata="inline")
    return path


@pytest.fixture
def table(spark: SparkSession, made_table: Path, tmp_path: Path) -> OpalTable:
    """Return a copy of the table for one test."""
    return OpalTable.for_path(spark, str(shutil.copytree(made_table, tmp_path / "table")))


def job(table: OpalTable, operation: str, token: str | None = None, **arguments: Any) -> JobResult:
    spec = JobSpec.of(operation, table.uri, arguments, token)
    return perform(table.spark, spec)


def prices(table: OpalTable, version: int | None = None) -> list[int]:
    return [row.price for row in table.read(version=version).collect()]


def test_maintenance_goes_by_the_properties_that_were_set(table: OpalTable) -> None:
    assert job(table, "set_properties", properties={"small_files": 3, "window": "30d"}).version == 5
    result = job(table, "maintain", dry_run=True)
    assert result.notes == (
        "compact is due: 4 files below 192 MB in 1 partition, due from more than 3",
    )
    done = job(table, "maintain", token="daily")
    assert done.version == table.snapshot_at().version
    assert (done.counts["compact_files_read"], len(table.files())) == (4, 1)
    again = job(table, "maintain", token="daily")
    assert (again.repeated, again.version) == (True, done.version)
    assert job(table, "maintain", small_files=1, delete=False).notes == ("nothing is due",)
    assert prices(table) == [3]


def test_retention_keeps_what_a_savepoint_names(table: OpalTable) -> None:
    table.savepoint("first", 1)
    assert job(table, "retain", window="0s", grace="0s", dry_run=True).examples
    result = job(table, "retain", window="0s", grace="0s", token="t")
    assert (result.version, result.counts["versions"]) == (6, 5)
    assert job(table, "retain", window="0s", grace="0s", token="t").repeated
    assert (prices(table, 1), prices(table)) == ([0], [3])
    with pytest.raises(
        NotFoundError,
        match=r"has expired; the readable versions are 5 to 6, and savepoints first \(1\)",
    ):
        table.read(version=2)
    table.release("first")
    assert table.check() == []


def test_a_read_whose_files_expire_is_run_again_and_one_whose_files_are_lost_is_damage(
    table: OpalTable,
) -> None:
    """A DataFrame is lazy: Spark opens the files when somebody asks for rows."""
    lazy = table.read(version=1)
    planned = table.snapshot_at(1)
    table.compact()
    job(table, "retain", window="0s", grace="0s")
    with (
        pytest.raises(
            StorageError, match=r"was deleted while Spark read it.*read the table again"
        ) as raised,
        spark_errors(),
    ):
        lazy.collect()
    assert exit_code(raised.value) == RETRY
    verify._verified.clear()
    with pytest.raises(
        ExpiredError, match=r"has expired: .*; the readable versions are now \d+ to \d+"
    ):
        verify.verify_files(table.spark, planned, [*planned.files.values()])
    with pytest.raises(ExpiredError, match="has expired"):
        scan_files(
            table.spark,
            table.storage,
            [*planned.files.values()],
            planned.spec,
        )
    now = table.snapshot_at()
    table.storage.delete([*now.files])
    with pytest.raises(FormatError, match="is missing, though the table refers to it"):
        prices(table)
    with pytest.raises(FormatError, match="is missing, though the table refers to it"):
        scan_files(
            table.spark,
            table.storage,
            [*now.files.values()],
            now.spec,
        )
