"""The verbs that keep a table: properties, savepoints, retention."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake.cli import main
from opal_lake.clock import SystemClock
from opal_lake.exit_codes import FINDINGS, INPUT, OK
from opal_lake.storage import open_storage
from opal_lake.table import table_on
from tests.fixtures_cli import metadata, opal_commands
from tests.kit.clocks import SilentStore, SkewedClock
from tests.opal_lake.shop import content, create, reopen, rows

__all__ = ["metadata", "opal_commands"]
pytestmark = pytest.mark.usefixtures("opal_commands")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "shop")
    table = create(open_storage(uri))
    for number in range(3):
        table.ingest(*rows([("ax", number, number)]), metadata="inline")
    return uri


def test_set_changes_and_lists_properties(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["set", uri, "window=3d", "small_files=4", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["version"] == 4
    assert main(["set", uri]) == OK
    shown = capsys.readouterr().out
    assert "window" in shown
    assert "3d" in shown
    assert main(["set", uri, "--default", "window"]) == OK
    assert "window is now '7d'" in capsys.readouterr().out
    assert main(["set", uri, "window"]) == INPUT
    assert "write window=VALUE" in capsys.readouterr().err


def test_columns_are_added_by_name_and_type(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add-columns", uri, "discount:double", "a:b:decimal(10,2)", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["counts"] == {"columns": 2}
    assert reopen(open_storage(uri)).snapshot_at().spec.schema.names[-2:] == ["discount", "a:b"]
    assert main(["add-columns", uri, "discount:double"]) == OK
    assert "nothing to do" in capsys.readouterr().out
    for arguments, problem in (
        (["discount:long"], "is DOUBLE, not BIGINT"),
        (["note"], "'note' has no type; write NAME:TYPE such as discount:double"),
        (["n:long", "n:long"], "column 'n' is named twice"),
    ):
        assert main(["add-columns", uri, *arguments]) == INPUT
        assert problem in capsys.readouterr().err


def test_columns_are_changed_in_the_order_of_the_flags(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--add", "note struct<a: int> first", "--rename", "note = `my note`"]
    flags += ["--add", "`my note`.b decimal(10, 2)", "--add", "x int AFTER `my note`"]
    assert main(["alter", uri, *flags, "--move", "`my note` after x", "--token", "t"]) == OK
    shown = capsys.readouterr().out
    assert "changed: 3 added, 1 renamed, 1 moved, version 4" in shown
    assert "note  renamed column 'note' to '`my note`'" in shown
    spec = reopen(open_storage(uri)).snapshot_at().spec
    assert spec.schema.names[:2] == ["x", "my note"]
    assert main(["alter", uri, "--widen", "x bigint", "--drop", "my note"]) == INPUT
    assert "opal alter: --drop 'my note' is not valid; write --drop 'note'" in (
        capsys.readouterr().err
    )
    assert main(["alter", uri]) == INPUT
    assert "needs a change: one of --add, --rename" in capsys.readouterr().err
    assert main(["alter", uri, "--drop", "nope"]) == INPUT
    assert "no column 'nope'; the table has 'x', 'my note'" in capsys.readouterr().err
    assert main(["alter", uri, "--move", "x first"]) == OK
    assert "nothing to do" in capsys.readouterr().out
    assert main(["history", uri]) == OK
    assert "alter" in capsys.readouterr().out


def test_defaults_and_constraints_are_changed_by_flags(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--add", "note string default 'after all' first", "--add", "x int DEFAULT 5"]
    flags += ["--set-not-null", "x", "--add-constraint", "small=x < 9", "--set-default", "x = 6"]
    assert main(["alter", uri, *flags]) == OK
    counts = "changed: 2 added, 1 not null set, 1 constraint added, 1 default set"
    assert counts in capsys.readouterr().out
    spec = reopen(open_storage(uri)).snapshot_at().spec
    assert spec.schema.names[0] == "note"
    assert [spec.schema.field(name).initial for name in ("note", "x")] == ["after all", 5]
    assert main(["describe", uri]) == OK
    shown = capsys.readouterr().out
    assert "not null, default 6" in shown
    assert "check small" in shown
    flags = ["--drop-default", "x", "--drop-not-null", "x", "--drop-constraint", "small"]
    assert main(["alter", uri, *flags]) == OK
    assert main(["alter", uri, "--add-constraint", "x < 9"]) == INPUT
    assert "write --add-constraint 'positive=price > 0'" in capsys.readouterr().err


def test_a_savepoint_is_set_listed_and_released(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["savepoint", uri, "first", "--version", "1"]) == OK
    assert main(["retain", uri, "--window", "0s", "--grace", "0s"]) == OK
    assert main(["describe", uri]) == OK
    assert "savepoints first (1)" in capsys.readouterr().out
    assert content(reopen(open_storage(uri)), version=1) == [("ax", 0, 0)]
    assert main(["savepoint", uri, "first", "--release"]) == OK
    assert "version 1 is no longer first" in capsys.readouterr().out


def test_pending_rows_are_discarded_by_key_or_token(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = reopen(open_storage(uri))
    table.ingest(*rows([("new", 1, 1)]), partition_key="2026-11-24", token="run 7")
    before = content(table)
    assert (
        main(["discard", uri, "--partition-key", "2026-11-24", "--job-token", "d", "--json"]) == OK
    )
    result = json.loads(capsys.readouterr().out)
    assert result["counts"] == {"segments": 1, "rows": 1, "files": 1}
    assert main(["discard", uri, "--partition-key", "2026-11-24", "--job-token", "d"]) == OK
    assert "done before" in capsys.readouterr().out
    assert main(["discard", uri, "--token", "run 7"]) == INPUT
    assert "discarded the rows that were ingested with token 'run 7'" in capsys.readouterr().err
    for words in ([], ["--token", "a", "--partition-key", "b"]):
        with pytest.raises(SystemExit, match="2"):
            main(["discard", uri, *words])
    reopen(open_storage(uri)).metagen(all=True)
    assert content(reopen(open_storage(uri))) == before


def test_a_replay_reports_rows_that_still_cannot_be_read(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, _ = rows([("ax", 9, 9), ("bow", 9, 9)])
    bad = given.set_column(0, "sku", pa.array([None, "bow"]))
    reopen(open_storage(uri)).ingest(bad, metadata="inline", on_bad_rows="quarantine")
    assert main(["rejected", "replay", uri]) == OK
    assert capsys.readouterr().out.startswith("nothing replayed, 1 rejected, ")


def test_a_dry_run_lists_the_files_that_would_be_deleted(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retain", uri, "--window", "0s", "--grace", "0s", "--dry-run"]) == OK
    shown = capsys.readouterr().out
    assert "would delete" in shown
    assert "_opal/log/00000000000000000000.json" in shown
    assert main(["retain", uri, "--window", "0s", "--grace", "0s"]) == OK
    assert "deleted" in capsys.readouterr().out
    assert main(["retain", uri]) == OK
    assert "nothing to do" in capsys.readouterr().out
    assert main(["check", uri]) == OK
    assert main(["history", uri]) == OK
    assert "older versions" not in capsys.readouterr().out


def test_a_clock_is_repaired_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time of a file system is this machine's: only a writer that did not ask was ahead."""
    uri = str(tmp_path / "table")
    table = create(open_storage(uri))
    wrong = SilentStore(inner=table.storage)
    table_on(wrong, SkewedClock(true=SystemClock(), ahead_us=365 * 86_400_000_000)).set_properties(
        {"window": "8d"}
    )
    assert main(["check", uri]) == FINDINGS
    assert "opal repair-clock" in capsys.readouterr().out
    assert main(["repair-clock", uri, "--dry-run"]) == OK
    shown = capsys.readouterr().out
    assert "would correct 1 version" in shown
    assert "the right times of 1 version, 1 to 1, are " in shown
    assert main(["repair-clock", uri]) == OK
    assert "corrected 1 version" in capsys.readouterr().out
    assert main(["repair-clock", uri]) == OK
    assert "nothing to do" in capsys.readouterr().out
    assert main(["check", uri]) == OK


def test_only_the_open_business_snapshot_is_finished_and_finishing_it_again_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = str(tmp_path / "shop")
    table = create(open_storage(uri))
    table.ingest(*rows([("ax", 1, 10)]), metadata="inline", business_snapshot="2022-07-15")
    table.set_properties({"drift": "2h"})
    table.ingest(*rows([("ax", 2, 20)]), business_snapshot="2022-07-16")
    assert main(["describe", uri]) == OK
    assert "2022-07-15 is open; 2022-07-16 held back" in capsys.readouterr().out
    assert main(["finish-snapshot", uri, "2022-07-16"]) == INPUT
    assert (
        "'2022-07-16' is not the open business snapshot, so it was not finished"
        in capsys.readouterr().err
    )
    assert main(["finish-snapshot", uri, "2022-07-15"]) == OK
    assert "version 3 stays readable as 2022-07-15" in capsys.readouterr().out
    assert main(["finish-snapshot", uri, "2022-07-15"]) == OK
    assert "nothing to do" in capsys.readouterr().out
    assert main(["history", uri]) == OK
    assert re.search(r"finish_business_snapshot .*2022-07-15", capsys.readouterr().out)
    assert main(["describe", uri]) == OK
    assert "finished 2022-07-15; 2022-07-16 is open" in capsys.readouterr().out


def test_restore_counts_changes_in_a_dry_run_and_makes_them_otherwise(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = reopen(open_storage(uri))
    assert main(["restore", uri, "--version", "1", "--dry-run"]) == OK
    assert "would change 1 row restored, 1 row removed" in capsys.readouterr().out
    assert content(table) == [("ax", 2, 2)]
    assert main(["restore", uri, "--version", "1", "--token", "t"]) == OK
    shown = capsys.readouterr().out
    assert "changed 1 row restored, 1 row removed, version 4 of" in shown
    assert "version 1 is what reads return again" in shown
    assert content(table) == [("ax", 0, 0)]
    assert main(["restore", uri, "--version", "4"]) == OK
    assert "nothing to do" in capsys.readouterr().out
    assert main(["history", uri, "--limit", "1"]) == OK
    assert "restore" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["restore", uri])
    assert "--version --timestamp --savepoint is required" in capsys.readouterr().err
    assert main(["restore", uri, "--savepoint", "x"]) == INPUT
    assert (
        "no savepoint 'x', nor any other; pass a version that `opal history` lists"
        in capsys.readouterr().err
    )
