"""Rebuild of the key store on Spark, from lost runs to a sound table, after any failure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from opal_lake.cli import main
from opal_lake.engine.executor import Attempt
from opal_lake.engine.in_process import slots_of
from opal_lake.errors import CommitUnknownError, StorageError
from opal_lake.exit_codes import OK
from opal_lake.key_store.entries import Entries, concat_entries
from opal_lake.maintenance import rebuild
from opal_lake.maintenance.rebuild import RebuildPlan, plan_rebuild, rebuild_slot
from opal_lake.operations.job_spec import JobSpec
from opal_lake.table import table_on
from opal_spark import OpalTable
from opal_spark.engine import executor
from opal_spark.submit.jobs import run_job
from tests.fixtures_cli import metadata, opal_commands
from tests.kit.failing_store import Crash
from tests.opal_lake.maintenance.build import entries_of, lose
from tests.opal_lake.shop import Row, latest
from tests.opal_spark.build import DriverStore, content, create, frame

__all__ = ["metadata", "opal_commands"]

pytestmark = pytest.mark.spark

FIRST: list[Row] = [(f"k{key}", key % 5, key) for key in range(300)]
SECOND: list[Row] = [
    (f"k{key}", (key * 7) % 9, 100 + key if key % 6 else None) for key in range(0, 400, 2)
]
THIRD: list[Row] = [
    (f"k{key}", 3 + key % 4, 200 + key if key % 5 else None) for key in range(0, 500, 3)
]


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> int:
    """More of them than so few rows would get."""
    monkeypatch.setattr(executor, "plan_slots", lambda rows, cores: 8)
    return 8


def harmed(spark: SparkSession, path: Path, file_format: str = "parquet") -> OpalTable:
    """Return a table whose runs, in two layers, are all lost, with pending rows."""
    table = create(spark, path, file_format)
    for batch in (FIRST, SECOND):
        table.ingest(frame(spark, batch, 3), metadata="inline")
    table.ingest(frame(spark, THIRD))
    lose(table.storage, table)
    return table


def assert_sound(table: OpalTable, batches: list[list[Row]]) -> None:
    assert table.check() == []
    assert content(table.read()) == latest(batches)
    assert content(table.read(event_time=4)) == latest(batches, 4)


@pytest.mark.usefixtures("slots")
@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_table_that_lost_its_runs_is_sound_again(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    table = harmed(spark, tmp_path / "table", file_format)
    assert {finding.invariant for finding in table.check()} >= {"I9"}
    result = table.rebuild_key_store(token="t")
    assert (result.counts["rows"], result.counts["runs"], result.counts["slots_done_before"]) == (
        len(FIRST) + len(SECOND),
        8,
        0,
    )
    assert_sound(table, [FIRST, SECOND])
    assert table.rebuild_key_store(token="t").repeated
    table.metagen()
    table.ingest(frame(spark, SECOND), metadata="inline")
    assert_sound(table, [FIRST, SECOND, THIRD, SECOND])


@pytest.mark.slow
@pytest.mark.usefixtures("slots")
def test_a_repeated_rebuild_skips_finished_slots(spark: SparkSession, tmp_path: Path) -> None:
    table = harmed(spark, tmp_path / "table")
    plan = plan_rebuild(table.log, None, lambda _: 8)
    assert isinstance(plan, RebuildPlan)
    entries = concat_entries([entries_of(file, plan.base) for file in plan.files])
    for slot in (1, 6):
        rebuild_slot(
            entries.take(slots_of(entries.high, 8) == slot), plan.task(table.cache), slot, "0"
        )
    result = table.rebuild_key_store()
    assert (result.counts["runs"], result.counts["slots_done_before"]) == (8, 2)
    assert result.counts["rows"] == len(FIRST) + len(SECOND)
    assert_sound(table, [FIRST, SECOND])


@pytest.mark.slow
@pytest.mark.usefixtures("slots")
def test_a_task_that_fails_leaves_what_the_others_did(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies with the stage; the records of finished slots stay."""
    table = harmed(spark, tmp_path / "table")
    whole: Callable[..., Any] = rebuild._rebuild

    def fails(entries: Entries, attempt: Attempt, *, task: Any) -> Any:
        if attempt.part == 7:
            raise StorageError("the store is away; try again")
        return whole(entries, attempt, task=task)

    monkeypatch.setattr(rebuild, "_rebuild", fails)
    with pytest.raises(Exception, match="the store is away"):
        table.rebuild_key_store()
    monkeypatch.undo()
    result = table.rebuild_key_store()
    assert result.counts["slots_done_before"] > 0
    assert result.counts["runs"] == 8
    assert_sound(table, [FIRST, SECOND])


@pytest.mark.slow
@pytest.mark.usefixtures("slots")
def test_a_rerun_after_a_failure_of_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    dry = harmed(spark, tmp_path / "dry")
    store = DriverStore(dry.storage)
    OpalTable.on(spark, table_on(store)).rebuild_key_store(token="t")
    for fail_at in (3, len(store.trace) - 4, len(store.trace) - 1):
        table = harmed(spark, tmp_path / str(fail_at))
        storage = table.storage
        for target in (DriverStore(storage, fail_at, "before"), storage, storage):
            try:
                OpalTable.on(spark, table_on(target)).rebuild_key_store(token="t")
            except (Crash, StorageError, CommitUnknownError):
                continue
        assert [row["operation"] for row in table.history()].count("rebuild_key_store") == 1
        assert_sound(table, [FIRST, SECOND])


def test_a_job_and_the_command_rebuild_the_key_store(
    spark: SparkSession, tmp_path: Path, opal_commands: None, capsys: pytest.CaptureFixture[str]
) -> None:
    table = harmed(spark, tmp_path / "table")
    result = run_job(spark, JobSpec.of("rebuild_key_store", table.uri, token="j"))
    assert (result.version, result.token) == (table.snapshot_at().version, "j")
    lose(table.storage, table)
    assert main(["rebuild-key-store", table.uri]) == OK
    assert capsys.readouterr().out.startswith("rebuilt the key store from 500 rows")
    assert_sound(table, [FIRST, SECOND])
