"""Commands on a table print the same in this process and on Spark."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from opal_lake.cli import main
from opal_lake.exit_codes import FINDINGS, INPUT, OK
from opal_lake.storage.local.publish import HIDDEN
from opal_lake.table import Table
from tests.contracts.engines import LAYOUT, SCHEMA
from tests.fixtures_cli import metadata, opal_commands

__all__ = ["metadata", "opal_commands"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("opal_commands", "spark")]
LETTERS = "abcdefgh"
CHECKED = ("looked at: ", "not looked at: ", "left over: ")


def rows(at: int, price: int | None) -> pa.Table:
    """Return a row of each sku."""
    skus = [*LETTERS]
    return pa.table([skus, [at] * len(skus), [price] * len(skus)], schema=SCHEMA)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small files of inserts, updates and deletes, and one of pending rows."""
    path = tmp_path_factory.mktemp("commands") / "made"
    table = Table.create(str(path), SCHEMA, **LAYOUT, properties={"fold_files": 0})
    table.ingest(rows(1, 10), metadata="inline")
    table.ingest(rows(2, 20), metadata="inline", partition_key="monday")
    table.ingest(rows(3, None).slice(0, 2), metadata="inline")
    table.ingest(rows(0, 5), metadata="inline")
    table.ingest(rows(4, 40).slice(4))
    return path


COMMANDS: Sequence[tuple[str, ...]] = (
    ("metagen",),
    ("metagen", "--token", "unknown"),
    ("compact",),
    ("compact", "--look-back", "1", "--token", "t"),
    ("compact", "--only-if-due"),
    ("compact", "--archive-codec", "zstd:19"),
    ("zorder", "sku", "price"),
    ("zorder", "nope"),
    ("maintain", "--small-files", "1", "--zorder", "sku", "--keep-files"),
    ("maintain", "--dry-run"),
    ("rebuild-key-store", "--token", "t"),
    ("read",),
    ("read", "--where", "price > 5", "--columns", "sku"),
    ("read", "--where", "nope > 5"),
    ("read", "--version", "1"),
    ("read", "--version", "99"),
    ("read", "--event-time", "2"),
    ("read", "--partition-key", "monday"),
    ("read", "--partition-key", "monday", "--net"),
    ("changes", "--start", "1"),
    ("changes", "--start", "1", "--limit", "3"),
    ("changes", "--start", "2", "--end", "3", "--no-updates"),
    ("changes", "--start", "1", "--mode", "netChanges", "--columns", "sku"),
    ("changes", "--start", "1", "--axis", "event_time"),
    ("changes", "--start", "99"),
    ("check",),
    ("check", "--sample", "50%"),
)  # fmt: skip


def ran(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """Return the exit code of a command, what it prints as JSON, and its error."""
    code = main([*words, "--json"])
    shown = capsys.readouterr()
    errors = [line for line in shown.err.splitlines() if line.startswith("opal: ")]
    return code, json.loads(shown.out) if shown.out else None, "\n".join(errors)


def comparable(printed: Any) -> Any:
    """Return what a command printed without how long it took; rows of a read in any order."""
    if isinstance(printed, dict):
        return {name: value for name, value in printed.items() if name != "timings_ms"}
    return sorted(map(str, printed)) if isinstance(printed, list) else printed


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_prints_the_same_on_both_engines(
    command: Sequence[str], made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table"
    answers = []
    for engine in ("--local", "--spark"):
        shutil.copytree(made, table)
        code, printed, error = ran([command[0], str(table), *command[1:], engine], capsys)
        if command[0] == "changes" and printed:
            keys = [(row["_commit_version"], row["sku"]) for row in printed]
            assert keys == sorted(keys)
        answers.append((code, comparable(printed), error))
        assert main(["check", str(table), "--local"]) == OK
        capsys.readouterr()
        shutil.rmtree(table)
    here, on_spark = answers
    assert here == on_spark
    assert here[0] == (INPUT if here[2] else OK)


def test_size_alone_sends_a_job_to_spark(
    made: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    table = shutil.copytree(made, tmp_path / "table")
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    before = len(jobs())
    assert main(["read", str(table)]) == OK
    assert "in this process" in capsys.readouterr().err
    assert len(jobs()) == before
    assert main(["set", str(table), "local_mb=0"]) == OK
    for command in ("compact", "check", "read"):
        capsys.readouterr()
        assert main([command, str(table)]) == OK
        assert "on Spark (more than local_mb=0); --local runs it" in capsys.readouterr().err
    assert len(jobs()) > before


def test_a_check_of_a_damaged_table_finds_the_same_on_both_engines(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = shutil.copytree(made, tmp_path / "table")
    next(table.rglob("*.parquet")).unlink()
    code, findings, _ = ran(["check", str(table), "--local"], capsys)
    assert code == FINDINGS
    assert findings
    assert ran(["check", str(table), "--spark"], capsys)[:2] == (FINDINGS, findings)


def test_a_check_names_left_over_files_on_both_engines(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = shutil.copytree(made, tmp_path / "table")
    (table / HIDDEN).mkdir(exist_ok=True)
    (table / HIDDEN / "killed").write_bytes(b"in the making")
    answers = []
    for engine in ("--local", "--spark"):
        assert main(["check", str(table), "--json", engine]) == OK
        shown = capsys.readouterr()
        beside = [line for line in shown.err.splitlines() if line.startswith(CHECKED)]
        answers.append((json.loads(shown.out), beside))
    here, on_spark = answers
    assert here == on_spark
    assert "left over: 1 file of 13 bytes in " in "\n".join(here[1])


def test_a_table_is_created_alike_on_both_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--schema", "id BIGINT, at TIMESTAMP, n DECIMAL(10,2)", "--key", "id", "--delta", "at"]
    described = []
    for engine in ("--local", "--spark"):
        uri = str(tmp_path / engine.strip("-"))
        assert ran(["create", uri, *words, engine], capsys)[0] == OK
        described.append(Table.open(uri).snapshot_at().spec)
    assert described[0] == described[1]
