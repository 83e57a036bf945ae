"""Bootstrap of Parquet and ORC folders: all rows once, whatever dies, and no later row."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from opal_lake import layout
from opal_lake.cli import main
from opal_lake.errors import CommitUnknownError, InvalidInputError, NoRowsError, StorageError
from opal_lake.exit_codes import INPUT, OK
from opal_lake.operations.ingest import Ingest
from opal_lake.operations.job_spec import JobSpec
from opal_lake.result import JobResult
from opal_lake.storage import open_storage
from opal_lake.table import table_on
from opal_lake.write import bootstrap as core
from opal_lake.write.bootstrap import source_table
from opal_lake.write.bootstrap_job import bootstrap, ingest_batch
from opal_spark import OpalTable
from opal_spark.engine.java import ensure_java
from opal_spark.sources.tables import plan_source
from opal_spark.spark_engine import on_spark
from opal_spark.submit.runner import perform
from opal_spark.write.bootstrap import SparkSource
from tests.fixtures_cli import SOURCES, metadata, opal_commands
from tests.kit.failing_store import Crash
from tests.opal_spark.build import DriverStore

__all__ = ["metadata", "opal_commands"]

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
DDL = "id BIGINT, at BIGINT, name STRING, day DATE, shop STRING"
LAYOUT: dict[str, Any] = {"keys": ["id"], "delta": "at"}
Row = tuple[int, int, str, date | None, str]


def rows_of(seed: int) -> list[Row]:
    """Keys that several folders have; no two rows of a key agree in their delta."""
    shops = ["a b", "50%", "c+d", "é"]
    days = [date(2026, 11, 1), None, date(2026, 11, 2)]
    return [
        (key % 40, key * 10 + seed, f"n{key}-{seed}", days[key % 3], shops[key % 4])
        for key in range(60)
    ]


def latest(rows: list[Row]) -> list[Row]:
    best: dict[int, Row] = {}
    for row in rows:
        if row[0] not in best or best[row[0]][1] < row[1]:
            best[row[0]] = row
    return sorted(best.values(), key=lambda row: row[0])


def content(spark: SparkSession, uri: str) -> list[Row]:
    rows = OpalTable.for_path(spark, uri).read().select("id", "at", "name", "day", "shop").collect()
    return sorted(
        ((row.id, row.at, row.name, row.day, row.shop) for row in rows), key=lambda row: row[0]
    )


def write(spark: SparkSession, folder: Path, rows: list[Row], file_format: str = "parquet") -> None:
    spark.createDataFrame(rows, DDL).repartition(2).write.partitionBy("day", "shop").format(
        file_format
    ).mode("append").save(str(folder))


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> int:
    """Limit the files of a batch, so that there are several batches."""
    monkeypatch.setattr(core, "MAX_FILES", 5)
    return 5


@pytest.fixture(scope="module")
def made_source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "old"
    for seed in (1, 2):
        write(spark, folder, rows_of(seed))
    return folder


@pytest.fixture
def source(made_source: Path, tmp_path: Path) -> Path:
    """Return a copy of the source for one test."""
    return shutil.copytree(made_source, tmp_path / "old [1]")


ALL = rows_of(1) + rows_of(2)


def assert_taken_over(spark: SparkSession, uri: str, rows: list[Row]) -> None:
    table = OpalTable.for_path(spark, uri)
    assert content(spark, uri) == latest(rows)
    assert table.describe()["counts"]["rows_ingested"] == len(rows)
    assert table.check() == []


@pytest.mark.usefixtures("few_files")
@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_partitioned_folder_keeps_all_its_columns(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    folder, uri = tmp_path / "old=1", str(tmp_path / "new")
    for seed in (1, 2):
        write(spark, folder, rows_of(seed), file_format)
    result = OpalTable.bootstrap(spark, uri, str(folder), format=file_format, **LAYOUT)
    assert result.counts["rows"] == len(ALL)
    assert result.counts["batches_done"] > 2
    assert result.counts["batches_skipped"] == 0
    assert_taken_over(spark, uri, ALL)
    assert OpalTable.for_path(spark, uri).read().schema["day"].dataType.simpleString() == "date"
    operations_done = [row["operation"] for row in OpalTable.for_path(spark, uri).history()]
    assert operations_done == ["metagen", *["ingest"] * result.counts["batches_done"], "create"]
    assert result.version == len(operations_done) - 1


@pytest.mark.slow
@pytest.mark.usefixtures("few_files")
def test_a_repeat_changes_nothing_even_without_the_source(
    spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    uri = str(tmp_path / "new")
    first = OpalTable.bootstrap(spark, uri, str(source), format="parquet", **LAYOUT)
    write(spark, source, rows_of(3))
    again = OpalTable.bootstrap(spark, uri, f"{source}/", format="parquet", **LAYOUT)
    assert (again.repeated, again.version, dict(again.counts)) == (
        True,
        first.version,
        dict(first.counts),
    )
    shutil.rmtree(source)
    assert OpalTable.bootstrap(spark, uri, str(source), format="parquet", **LAYOUT).repeated
    assert_taken_over(spark, uri, ALL)


@pytest.mark.slow
@pytest.mark.parametrize("kind, wanted", [("STRING", {"01", "02", "x"}), (None, {"01", "02", "x"})])
def test_names_of_folders_take_the_types_of_the_schema(
    spark: SparkSession, tmp_path: Path, kind: str | None, wanted: set[str]
) -> None:
    folder = tmp_path / "old"
    for key, month in enumerate(["01", "02", *(["x"] if kind is None else [])]):
        spark.createDataFrame([(key, key)], "id BIGINT, at BIGINT").write.parquet(
            str(folder / f"month={month}")
        )
    if kind is not None:
        spark.createDataFrame([(9, 9)], "id BIGINT, at BIGINT").write.parquet(
            str(folder / "month=x")
        )
    schema = (
        None
        if kind is None
        else spark.createDataFrame([], f"id BIGINT, at BIGINT, month {kind}").schema
    )
    OpalTable.bootstrap(
        spark, str(tmp_path / "new"), str(folder), format="parquet", schema=schema, **LAYOUT
    )
    assert {
        row.month for row in OpalTable.for_path(spark, str(tmp_path / "new")).read().collect()
    } == wanted


def test_files_of_one_folder_with_columns_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    folder, uri = tmp_path / "old", str(tmp_path / "new")
    spark.createDataFrame([(1, 1)], "id BIGINT, at BIGINT").write.parquet(str(folder))
    spark.createDataFrame([(2, 1, "x")], "id BIGINT, at BIGINT, extra STRING").write.mode(
        "append"
    ).parquet(str(folder))
    OpalTable.bootstrap(spark, uri, str(folder), format="parquet", **LAYOUT)
    assert {(row.id, row.extra) for row in OpalTable.for_path(spark, uri).read().collect()} == {
        (1, None),
        (2, "x"),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("few_files")
def test_a_source_changed_between_two_attempts_is_refused(
    spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    uri = str(tmp_path / "new")
    files = sorted(path for path in source.rglob("*.parquet"))
    original = files[-1].read_bytes()
    stamp = files[-1].stat()
    OpalTable.create(spark, uri, spark.createDataFrame([], DDL).schema, **LAYOUT)
    table = table_on(open_storage(uri))
    origin = source_table(str(source), "parquet", None)
    core.fix_plan(table.storage, origin.name, plan_source(spark, origin, None, 1 << 30))
    write(spark, source, rows_of(3))  # not of the plan: left out
    files[-1].write_bytes(files[0].read_bytes())
    with pytest.raises(
        InvalidInputError, match=r"was changed since the bootstrap began; restore the files"
    ):
        OpalTable.bootstrap(spark, uri, str(source), format="parquet", **LAYOUT)
    files[-1].unlink()
    with pytest.raises(InvalidInputError, match="were deleted since the bootstrap began"):
        OpalTable.bootstrap(spark, uri, str(source), format="parquet", **LAYOUT)
    assert content(spark, uri) == []
    files[-1].write_bytes(original)
    os.utime(files[-1], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    result = OpalTable.bootstrap(spark, uri, str(source), format="parquet", **LAYOUT)
    assert (result.counts["batches_done"], result.counts["batches_skipped"] > 2) == (1, True)
    assert_taken_over(spark, uri, ALL)


@pytest.mark.slow
@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("mode", ["after", "before"])
def test_a_rerun_after_any_failure_of_the_driver(
    spark: SparkSession, tmp_path: Path, source: Path, mode: Any
) -> None:
    origin = source_table(str(source), "parquet", None)
    schema = spark.createDataFrame([], DDL).schema

    def run(storage: Any) -> JobResult:
        return bootstrap(
            on_spark(spark, table_on(storage)),
            SparkSource(spark=spark, source=origin, batch_bytes=1 << 30),
            Ingest(origin),
        )

    def fresh(name: str) -> Any:
        OpalTable.create(
            spark,
            str(tmp_path / name),
            schema,
            **LAYOUT,
            properties={"token_keep": 1, "checkpoint_commits": 3},
        )
        return open_storage(str(tmp_path / name))

    dry = DriverStore(fresh("dry"))
    done = run(dry)
    for fail_at in range(2, len(dry.trace) + 1, 31 if mode == "after" else 5):
        storage = fresh(str(fail_at))
        for target in (DriverStore(storage, fail_at, mode), storage, storage):
            try:
                result = run(target)
            except (Crash, StorageError, CommitUnknownError):
                continue
        assert result.repeated
        assert (
            sum(result.counts[part] for part in ("batches_done", "batches_skipped"))
            == done.counts["batches_done"]
        )
        assert_taken_over(spark, str(tmp_path / str(fail_at)), ALL)


KILLED = """
import sys
from opal_lake.write import bootstrap
from opal_spark.submit.runner import session
from opal_spark import OpalTable

bootstrap.MAX_FILES = 1
with session("killed") as spark:
    OpalTable.bootstrap(spark, sys.argv[1], sys.argv[2], format="parquet", keys=["id"], delta="at")
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_continues(
    spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    uri = str(tmp_path / "new")
    ensure_java()
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment["PYSPARK_SUBMIT_ARGS"] = (
        "--master local[2] --conf spark.ui.enabled=false pyspark-shell"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", KILLED, uri, str(source)],
        env=environment,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        folder = Path(uri) / layout.bootstrap_folder(
            source_table(str(source), "parquet", None).name
        )
        limit = time.monotonic() + 240
        while len([*folder.glob("0*.json")]) < 3:
            assert driver.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # the group is of this test's own making
        driver.wait()
    write(spark, source, rows_of(3))
    result = OpalTable.bootstrap(spark, uri, str(source), format="parquet", **LAYOUT)
    assert result.counts["batches_skipped"] >= 3
    assert result.counts["batches_done"] > 0
    assert_taken_over(spark, uri, ALL)


def test_an_existing_table_has_to_be_the_wanted_one(
    spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    uri = str(tmp_path / "new")
    OpalTable.create(
        spark,
        uri,
        spark.createDataFrame([], DDL).schema,
        keys=["id"],
        delta="at",
        tie_break=["day"],
    )
    with pytest.raises(InvalidInputError, match=r"tie_break is \['day'\], not \[\]"):
        OpalTable.bootstrap(spark, uri, str(source), format="parquet", **LAYOUT)
    schema = spark.createDataFrame([], DDL.replace("id BIGINT", "id INT")).schema
    with pytest.raises(InvalidInputError, match="column 'id' is BIGINT, not INT"):
        OpalTable.bootstrap(
            spark, uri, str(source), format="parquet", schema=schema, tie_break=["day"], **LAYOUT
        )
    OpalTable.bootstrap(spark, uri, str(source), format="parquet", tie_break=["day"], **LAYOUT)
    assert_taken_over(spark, uri, ALL)


def test_a_wrong_source_is_refused(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    uri = str(tmp_path / "new")
    with pytest.raises(NoRowsError, match="no file to read"):
        OpalTable.bootstrap(spark, uri, str(tmp_path / "nowhere"), format="parquet", **LAYOUT)
    for kind, package in (
        ("delta", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("iceberg", "iceberg-spark-runtime-4.1_2.13:1.11.0"),
    ):
        (source / "_delta_log").mkdir(exist_ok=True)
        (source / "_delta_log" / f"{0:020d}.json").write_text("{}")
        with pytest.raises(
            InvalidInputError,
            match=rf"no reader for {kind}: start Spark with --packages .*{package}",
        ):
            OpalTable.bootstrap(spark, uri, str(source), format=kind, **LAYOUT)
    with pytest.raises(InvalidInputError, match="format='hudi' is unknown"):
        OpalTable.bootstrap(spark, uri, str(source), format="hudi", **LAYOUT)
    with pytest.raises(InvalidInputError, match="has no versions, got version 3"):
        OpalTable.bootstrap(spark, uri, str(source), format="orc", source_version=3, **LAYOUT)
    with pytest.raises(InvalidInputError, match="must not contain one another"):
        OpalTable.bootstrap(spark, str(source / "table"), str(source), format="parquet", **LAYOUT)
    assert not Path(uri).exists()


@pytest.mark.parametrize("taken_for", ["parquet", "orc"])
def test_a_folder_of_another_format_is_reported(
    spark: SparkSession, tmp_path: Path, taken_for: str
) -> None:
    other = tmp_path / "other"
    spark.createDataFrame(rows_of(0), DDL).write.format(
        "orc" if taken_for == "parquet" else "parquet"
    ).save(str(other))
    with pytest.raises(
        InvalidInputError,
        match=rf"other has a file that is damaged or not {taken_for} \(.*part-00.*\); correct",
    ):
        OpalTable.bootstrap(spark, str(tmp_path / "table"), str(other), format=taken_for, **LAYOUT)


def test_rows_without_a_key_stop_the_bootstrap_or_are_put_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, uri = tmp_path / "old", str(tmp_path / "new")
    spark.createDataFrame([(1, 1), (None, 2)], "id BIGINT, at BIGINT").write.parquet(str(folder))
    with pytest.raises(InvalidInputError, match="1 row cannot go into the table"):
        OpalTable.bootstrap(spark, uri, str(folder), format="parquet", **LAYOUT)
    result = OpalTable.bootstrap(
        spark, uri, str(folder), format="parquet", on_bad_rows="quarantine", **LAYOUT
    )
    assert (result.counts["rows"], result.counts["rejected"], len(result.notes)) == (1, 1, 2)


def test_a_job_and_the_command_bootstrap_a_table(
    spark: SparkSession,
    tmp_path: Path,
    source: Path,
    opal_commands: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = str(tmp_path / "new")
    arguments = {
        "source": str(source),
        "format": "parquet",
        "keys": ["id"],
        "delta": "at",
        "schema": DDL,
        "batch_mb": 1,
    }
    result = perform(spark, JobSpec.of("bootstrap", uri, arguments, "t"))
    assert (result.counts["rows"], result.token) == (len(ALL), "t")
    assert_taken_over(spark, uri, ALL)
    words = [
        "bootstrap",
        uri,
        str(source),
        "--format",
        "parquet",
        "--key",
        "id",
        "--delta",
        "at",
        "--json",
    ]
    assert main(words) == OK
    assert json.loads(capsys.readouterr().out)["repeated"]
    assert (
        main(
            [
                "bootstrap",
                str(tmp_path / "other"),
                str(source),
                "--format",
                "parquet",
                "--key",
                "id",
                "--delta",
                "at",
            ]
        )
        == OK
    )
    assert capsys.readouterr().out.startswith(f"took over {len(ALL)} rows, ")
    assert (
        main([*words[:2], str(source), "--format", "parquet", "--key", "name", "--delta", "at"])
        == INPUT
    )


@pytest.mark.slow
def test_a_rerun_after_a_change_of_columns_reads_the_source_by_the_names_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, uri = tmp_path / "old", str(tmp_path / "new")
    rows = rows_of(1)
    frame = spark.createDataFrame(rows, DDL)
    frame.repartition(3).write.parquet(str(folder))
    table = OpalTable.create(spark, uri, frame.schema, **LAYOUT)
    origin = source_table(str(folder), "parquet", None)
    schema = table.snapshot_at().spec.schema
    plan = replace(plan_source(spark, origin, None, 1), table_schema=schema)
    core.fix_plan(table.storage, origin.name, plan)
    ingest_batch(table, SparkSource(spark=spark, source=origin), plan, 0, Ingest(origin))
    table.alter(
        [
            {"rename": "name", "to": "between"},
            {"rename": "shop", "to": "name"},
            {"rename": "between", "to": "shop"},
            {"drop": "day"},
            {"add": "day", "type": "date"},
        ]
    )
    result = OpalTable.bootstrap(spark, uri, str(folder), format="parquet", **LAYOUT)
    assert (result.counts["batches_skipped"], result.counts["batches_done"] > 1) == (1, True)
    expected = [(row[0], row[1], row[4], None, row[2]) for row in latest(rows)]
    assert content(spark, uri) == expected
