"""What a command does where its output cannot be written, or lacks letters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake.cli.command import OpalParser
from opal_lake.exit_codes import OK, RETRY
from opal_lake.table import Table

KEY = "é日😀"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    columns = pa.schema([("id", pa.string()), ("at", pa.int64())])
    table = Table.create(str(tmp_path / "table"), columns, keys=["id"], delta="at")
    table.ingest(pa.table({"id": [KEY], "at": [1]}))
    return table


def opal(*words: str, redirected: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell that redirects its output."""
    command = f'"$0" -m opal_lake.cli "$@" {redirected}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_full_disk_behind_the_output_is_not_a_bug(table: Table, options: tuple[str, ...]) -> None:
    ended = opal("metagen", table.uri, *options, redirected=">/dev/full")
    assert ended.returncode == RETRY
    assert "a temporary file could not be written (No space left on device)" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert Table.open(table.uri).read().num_rows == 1


def test_full_disk_behind_standard_error_is_not_a_bug(table: Table) -> None:
    assert opal("read", table.uri, redirected="2>/dev/full").returncode == RETRY


def test_closed_output_ends_no_command(table: Table) -> None:
    assert opal("metagen", table.uri, redirected=">&- 2>&-").returncode == OK
    assert Table.open(table.uri).read().num_rows == 1


def test_help_reports_a_full_disk() -> None:
    ended = opal("--help", redirected=">/dev/full")
    assert (ended.returncode, "Traceback" in ended.stderr) == (RETRY, False)


def test_letters_that_the_encoding_lacks_are_escaped(table: Table) -> None:
    table.metagen()
    ended = opal("read", table.uri, PYTHONIOENCODING="ascii")
    assert ended.returncode == OK
    assert r"\u00e9\u65e5\ud83d\ude00" in ended.stdout


def test_json_stays_the_same_value_in_any_encoding(table: Table) -> None:
    table.metagen()
    ended = opal("read", table.uri, "--json", PYTHONIOENCODING="ascii")
    assert json.loads(ended.stdout) == [{"id": KEY, "at": 1}]


def test_metagen_without_work_reports_the_rows_that_stay_pending(table: Table) -> None:
    ended = opal("metagen", table.uri, "--partition-key", "2026-11-28")
    assert ended.stdout.startswith("nothing to do in version 1 of ")
    assert "no row of partition key '2026-11-28' is pending" in ended.stdout


def test_compact_names_pending_files(table: Table) -> None:
    ended = opal("compact", table.uri)
    assert "1 file of pending rows must first be processed by a MetaGen" in ended.stdout


def test_check_names_the_cure_of_a_lost_run(table: Table) -> None:
    table.metagen()
    runs = Path(table.uri.removeprefix("file://")) / "_opal" / "key_store"
    for run in runs.iterdir():
        run.unlink()
    assert f"run `opal rebuild-key-store {table.uri}`" in opal("check", table.uri).stdout


def test_command_of_another_package_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    parser = OpalParser(prog="opal")
    parser.add_subparsers().add_parser("describe")
    with pytest.raises(SystemExit):
        parser.check_command(["dag"])
    expected = "unknown command 'dag'; install the package airflow-provider-opal"
    assert expected in capsys.readouterr().err
