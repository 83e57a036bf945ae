"""The verbs of `opal` that run on Spark: what a person sees, and what a program gets."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from opal_lake.cli import main
from opal_lake.cli.render import Style
from opal_lake.cli.result_pages import result_page, rows_page
from opal_lake.cli.shown_rows import cell_text
from opal_lake.exit_codes import INPUT, OK, RETRY
from opal_lake.result import JobResult
from opal_lake.table import Table
from opal_spark.cli import launch
from tests.fixtures_cli import SOURCES, metadata, opal_commands

__all__ = ["metadata", "opal_commands"]

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("opal_commands", "spark")]

CREATE = [
    "--schema",
    "id BIGINT, name STRING, op STRING, at TIMESTAMP",
    "--key",
    "id",
    "--delta",
    "at",
    "--deletes",
    "op = 'D'",
]
FIRST = "id,name,op,at\n1,Ann,U,2026-01-01T10:00:00Z\n2,Bob,U,2026-01-01T10:00:00Z\n"
SECOND = "id,name,op,at\n2,,D,2026-01-02T10:00:00Z\n"


def write_files(folder: Path) -> list[str]:
    for name, text in (("1.csv", FIRST), ("2.csv", SECOND)):
        (folder / name).write_text(text)
    return [str(folder / "1.csv"), str(folder / "2.csv")]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return write_files(tmp_path)


@pytest.fixture(scope="module")
def made_table(
    spark: SparkSession, metadata: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a table with one key, and another one that was deleted a day later."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(metadata))
        assert main(["create", str(folder / "users"), *CREATE]) == OK
        for file in write_files(folder):
            assert main(["ingest", str(folder / "users"), file, "--metagen"]) == OK
    return folder / "users"


@pytest.fixture
def table(tmp_path: Path, made_table: Path) -> str:
    """Return a copy of the table for one test."""
    return str(shutil.copytree(made_table, tmp_path / "users"))


def test_commands_create_fill_read_and_maintain_a_table(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    uri = str(tmp_path / "users")
    assert (
        main(
            [
                "create",
                uri,
                *CREATE,
                "--property",
                "segment_rows=100",
                "--property",
                "read_verify=footer",
            ]
        )
        == OK
    )
    assert capsys.readouterr().out.startswith(f"created version 0 of {uri}")
    assert main(["ingest", uri, "--format", "csv", *files, "--token", "run 1"]) == OK
    shown = capsys.readouterr().out
    assert shown.startswith("ingested 3 rows, ")
    assert f"next: opal metagen {uri}" in shown
    assert main(["ingest", uri, *files, "--token", "run 1"]) == OK
    assert capsys.readouterr().out.startswith("done before: ingested 3 rows, ")
    assert main(["metagen", uri]) == OK
    assert "processed 3 rows, 1 update, 1 delete, " in capsys.readouterr().out
    assert main(["read", uri]) == OK
    header, row, summary = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "name", "op", "at"]
    assert row.split()[:3] == ["1", "Ann", "U"]
    assert summary == "1 row, version 2"


def test_ingest_with_metagen_makes_rows_visible_and_json_lists_both(
    table: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ingest", table, files[0], "--metagen", "--json", "--token", "t"]) == OK
    assert [result["operation"] for result in json.loads(capsys.readouterr().out)] == [
        "ingest",
        "metagen",
    ]
    assert main(["ingest", table, files[0], "--metagen", "--json", "--token", "t"]) == OK
    assert [result["repeated"] for result in json.loads(capsys.readouterr().out)] == [True, True]


def test_read_shows_the_table_at_a_version_or_an_event_time(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def ids(*words: str) -> list[int]:
        assert main(["read", table, "--columns", "id", "--json", *words]) == OK
        return sorted(row["id"] for row in json.loads(capsys.readouterr().out))

    assert ids() == [1]
    assert ids("--version", "2") == [1, 2]
    assert ids("--event-time", "2026-01-01T12:00:00+00:00") == [1, 2]
    assert ids("--version", "0") == []
    assert ids("--where", "id > 1", "--version", "2") == [2]


def test_changes_show_the_row_before_and_after(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    later = {"id": [1], "name": ["Eve"], "op": ["U"], "at": [datetime(2026, 1, 3, tzinfo=UTC)]}
    Table.open(table).ingest(pa.table(later), [False], metadata="inline")
    for flags, kinds in (
        ([], ["insert", "update_preimage", "update_postimage"]),
        (["--no-updates"], ["insert", "delete", "insert"]),
    ):
        assert main(["changes", table, "--start", "0", "--json", *flags]) == OK
        assert [
            row["_change_type"] for row in json.loads(capsys.readouterr().out) if row["id"] == 1
        ] == kinds


def test_a_limited_read_reports_that_there_are_more_rows(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["read", table, "--version", "2", "--limit", "1"]) == OK
    assert "1 row, version 2; there are more rows" in capsys.readouterr().out


def test_read_exports_rows_and_replaces_files_only_with_overwrite(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    words = ["read", table, "--to", out, "--format", "csv", "--columns", "`id`, name"]
    assert main(words) == OK
    assert "read 1 row, version 4 of" in capsys.readouterr().out
    (part,) = Path(out).glob("*.csv")
    assert part.read_text() == "id,name\n1,Ann\n"
    assert main(words) == INPUT
    assert main([*words, "--overwrite"]) == OK


def test_bad_rows_are_shown_and_may_be_put_aside(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("id,name,op,at\n7,Good,U,2026-01-03T00:00:00Z\n,NoKey,U,2026-01-03T00:00:00Z\n")
    assert main(["ingest", table, str(file)]) == INPUT
    shown = capsys.readouterr()
    assert "1 row cannot go into the table" in shown.err
    assert shown.out == ""
    assert main(["ingest", table, str(file), "--quarantine"]) == OK
    assert "NoKey" in capsys.readouterr().out


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "words",
    [
        ["read", "{table}", "--where", "nope = 1"],
        ["ingest", "{table}", "/nowhere/x.csv"],
        ["metagen", "/nowhere"],
    ],
)
def test_wrong_input_is_reported_without_a_stack(
    words: list[str], table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(table=table) for word in words]) == INPUT
    shown = capsys.readouterr()
    assert any(line.startswith("opal: ") for line in shown.err.splitlines()[-3:])
    assert "Traceback" not in shown.err
    assert shown.out == ""


def opal(metadata: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCES), str(metadata)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, "-m", "opal_lake.cli", *words],
        env=known | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_process_of_its_own_is_quiet_and_keeps_standard_output_for_json(
    table: str, metadata: Path
) -> None:
    done = opal(
        metadata, "read", table, "--json", "--conf", "spark.sql.session.timeZone=Asia/Tokyo"
    )
    assert done.returncode == OK, done.stderr
    assert json.loads(done.stdout)[0]["at"] == "2026-01-01T10:00:00+00:00"
    assert all(line.startswith("read: ") for line in done.stderr.splitlines())
    assert "in this process" not in done.stderr  # --conf asks for Spark


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "words, error",
    [
        (["changes", "--start", "99"], "has no version 99 yet"),
        (["changes", "--start", "3", "--end", "2"], "ends before it begins"),
        (["read", "--version", "99"], "version 99"),
    ],
)
def test_wrong_versions_are_reported_before_spark_starts(
    table: str, metadata: Path, words: list[str], error: str
) -> None:
    done = opal(metadata, words[0], table, *words[1:], "--conf", "spark.driver.memory=nonsense")
    assert done.returncode == INPUT
    assert error in done.stderr


def test_a_spark_that_does_not_start_leaves_its_log(
    table: str, metadata: Path, tmp_path: Path
) -> None:
    done = opal(
        metadata, "read", table, "--conf", "spark.driver.memory=nonsense", TMPDIR=str(tmp_path)
    )
    assert done.returncode == RETRY
    assert "Spark failed" in done.stderr
    (log,) = tmp_path.glob("opal-spark-*.log")
    assert str(log) in done.stderr
    assert "nonsense" in log.read_text()


def test_a_package_that_cannot_be_fetched_is_named(
    table: str, metadata: Path, tmp_path: Path
) -> None:
    package = "spark.jars.packages=org.example:no-such-package:1"
    done = opal(metadata, "read", table, "--conf", package, TMPDIR=str(tmp_path))
    assert done.returncode == INPUT
    (log,) = tmp_path.glob("opal-spark-*.log")
    assert f"could not fetch org.example:no-such-package:1; its log is {log}" in done.stderr


def test_values_are_shown_as_they_are() -> None:
    shown = [cell_text(value) for value in (None, 1234567, True, "a\nb", {"a": [1, None]}, "NaN")]
    assert shown == ["NULL", "1234567", "true", "a\\nb", '{"a": [1, null]}', "NaN"]


def test_many_columns_on_a_narrow_terminal_are_shown_below_each_other() -> None:
    result = JobResult(
        operation="read",
        table="t",
        version=3,
        examples=[{f"column_{number}": "some text" for number in range(20)}],
    )
    lines = list(rows_page(result, Style(), 80))
    assert lines[0] == "row 1"
    assert lines[1] == "  column_0   some text"
    assert len(list(rows_page(result, Style(), None))) == 3


def test_nothing_to_do_is_reported() -> None:
    assert list(result_page(JobResult(operation="ingest", table="lake/t"), Style(), None)) == [
        "nothing to do in lake/t"
    ]


def test_names_of_files_give_their_order_and_mark_deletes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, folder = str(tmp_path / "t"), tmp_path / "in"
    folder.mkdir()
    (folder / "a_1.csv").write_text("x,1\ny,2\n")
    (folder / "del_2.csv").write_text("2\n")
    assert (
        main(
            [
                "create",
                table,
                "--schema",
                "id INT, name STRING, seen BIGINT",
                "--key",
                "id",
                "--delta",
                "seen",
                "--deletes",
                "false",
            ]
        )
        == OK
    )
    words = [
        "ingest",
        table,
        str(folder),
        "--format",
        "csv",
        "--no-header",
        "--columns",
        "name,id",
        "--delete-files",
        "del*",
    ]
    assert main([*words, "--order", "file_suffix", "--inline"]) == OK
    capsys.readouterr()
    assert main(["read", table, "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == [{"id": 1, "name": "x", "seen": 1}]
    assert (
        main(["ingest", table, "--jdbc-url", "jdbc:postgresql://db/shop", "--order", "seen"])
        == INPUT
    )
    assert "apply only to files; leave them out with --jdbc-url" in capsys.readouterr().err


def test_a_missing_local_source_is_an_error_before_spark_starts(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(*_: object, **__: object) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(launch, "launched", starts)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    missing = str(tmp_path / "nosuch.csv")
    assert main(["ingest", table, missing]) == INPUT
    assert f"no file to read: looked for '{missing}'" in capsys.readouterr().err
    folder = str(tmp_path / "nosuch")
    assert main(["ingest", table, f"file://{missing}"]) == INPUT
    assert "no file to read: looked for" in capsys.readouterr().err
    words = ["bootstrap", str(tmp_path / "new"), folder, "--format", "parquet"]
    assert main([*words, "--key", "id", "--delta", "at"]) == INPUT
    assert f"no file to read: looked for '{folder}'" in capsys.readouterr().err
    assert main(["ingest", table, missing, "--order", "file_suffix"]) == INPUT
    assert "no file to read: looked for" in capsys.readouterr().err
    # Of several sources in an order by name, one may have no files
    existing = tmp_path / "in.csv"
    existing.write_text("id,name,seen\n1,x,1\n")
    main(["ingest", table, str(existing), missing, "--order", "file_suffix"])
    assert "Spark starts" in capsys.readouterr().err
