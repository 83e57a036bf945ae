"""A check by Spark's tasks finds what the local one finds, on sound tables and on forged ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from opal_lake.cli import main
from opal_lake.exit_codes import FINDINGS, OK
from opal_lake.inspect.check.check import check
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.look import Check
from opal_lake.storage import open_storage
from opal_lake.table import Table, table_on
from opal_spark import OpalTable
from opal_spark.engine import by_key
from opal_spark.spark_engine import SparkEngine
from opal_spark.submit.runner import run_app
from tests.kit.check import check_table
from tests.opal_lake.inspect.build import (
    FORGERIES,
    Forger,
    forger,
    moved,
    shown_findings,
    table_with_a_floor,
)

__all__ = ["forger"]
FAST = {
    "a row gone",
    "narrow bounds",
    "an event of no row",
    "an event too late",
    "an unsorted run",
    "an entry with another delta",
    "an entry missing",
}


def stored(files: Mapping[str, bytes], folder: Path) -> Table:
    storage = open_storage(str(folder))
    for path, data in files.items():
        storage.put_if_absent(path, data)
    return table_on(storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class InSlots(SparkEngine):
    """Spark with so many slots, however small the table is."""

    cut: int

    def slots(self, entries: int, rows: Any = None) -> int:
        return self.cut


def assert_same(
    spark: SparkSession, table: Table, sample: str | None = None, slots: int = 3
) -> int:
    options = Check(sample=sample)
    by_tasks = check(replace(table, executor=InSlots(spark=spark, cut=slots)), options)
    here = check(table, options)
    assert shown_findings([*by_tasks.findings]) == shown_findings([*here.findings])
    assert by_tasks.left_out == here.left_out
    return len(here.findings)


@pytest.mark.parametrize(
    "what",
    [what if what in FAST else pytest.param(what, marks=pytest.mark.slow) for what in FORGERIES],
)
def test_forgeries_are_found_as_the_local_check_finds_them(
    what: str, forger: Forger, spark: SparkSession, tmp_path: Path
) -> None:
    FORGERIES[what][1](forger)
    assert assert_same(spark, stored(forger.files, tmp_path / "table"))


def test_a_sound_table_a_sample_of_it_and_one_that_lacks_a_file(
    forger: Forger, spark: SparkSession, tmp_path: Path
) -> None:
    table = stored(forger.files, tmp_path / "table")
    assert assert_same(spark, table) == 0
    assert assert_same(spark, table, sample="40%", slots=2) == 0
    table.storage.delete([next(iter(table.snapshot_at().files))])
    assert assert_same(spark, table)


def test_with_a_floor_an_entry_of_another_key_s_row_is_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    storage = table_with_a_floor()
    forger = Forger.of(storage)
    assert assert_same(spark, stored(forger.files, tmp_path / "sound")) == 0
    forger.run(
        max(commit.version for commit in forger.table().commits() if commit.actions.add_runs),
        moved(1),
    )
    assert assert_same(spark, stored(forger.files, tmp_path / "forged"))


@pytest.mark.slow
def test_app_and_command_report_findings_and_skipped_parts(
    forger: Forger,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(by_key, "SMALL_SLOT_ROWS", 1)
    sound = str(tmp_path / "sound")
    stored(forger.files, tmp_path / "sound")
    spec = JobSpec.of("check", sound, {"sample": "50%"})
    assert run_app(["--spec", spec.to_json()]) == OK
    looked_at, left_out, *_ = json.loads(capsys.readouterr().out.splitlines()[-1])["notes"]
    assert looked_at.endswith(", 50% of the keys")
    assert "not looked at: 50% of the keys" in left_out
    assert main(["check", sound, "--spark"]) == OK
    said = capsys.readouterr().out
    assert "every invariant holds" in said
    assert "looked at  version " in said
    assert main(["check", sound, "--spark", "--all"]) == OK
    assert "looked at  versions 0 to " in capsys.readouterr().out
    assert OpalTable.for_path(spark, sound).check() == []
    FORGERIES["an event missing"][1](forger)
    table = stored(forger.files, tmp_path / "forged")
    assert OpalTable.for_path(spark, table.uri).check() == check_table(table)
    assert main(["check", table.uri, "--spark", "--json"]) == FINDINGS
    assert [finding["invariant"] for finding in json.loads(capsys.readouterr().out)] == [
        finding.invariant for finding in check_table(table)
    ]
    spec = JobSpec.of("check", table.uri)
    assert run_app(["--spec", spec.to_json()]) == FINDINGS
