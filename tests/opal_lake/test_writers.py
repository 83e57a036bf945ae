"""Many writers together: nothing is lost, nothing is applied twice, each gets its turn."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.errors import ConflictError
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table
from opal_lake.write.metagen_job import commit_metagen
from tests.kit.check import check_table
from tests.kit.failing_store import StallingStore
from tests.opal_lake.shop import Row, content, create, latest, reopen, rows
from tests.opal_lake.writer import INGESTS, METAGENS, batch_of, prepare_metagen

ROOT = Path(__file__).parents[2]


def race(uri: str, options: dict[str, str], rounds: int) -> None:
    """Four processes ingest and two run MetaGen, all at once, so many rounds each."""
    arguments = [f"{name}={value}" for name, value in options.items()]
    jobs = [("ingest", number) for number in range(INGESTS)] + [
        ("metagen", number) for number in range(METAGENS)
    ]
    writers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.opal_lake.writer",
                uri,
                verb,
                str(number),
                str(rounds),
                *arguments,
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for verb, number in jobs
    ]
    for writer in writers:
        output, _ = writer.communicate(timeout=1500)
        assert writer.returncode == 0, output


def assert_whole(table: Table, rounds: int) -> None:
    """Every row of every batch is in the table once, and all views are right."""
    table.metagen()
    batches = [batch_of(writer, turn) for turn in range(rounds) for writer in range(INGESTS)]
    operations = [commit.operation for commit in table.commits()]
    assert operations.count("ingest") == len(batches)
    assert table.snapshot_at().root.rows == sum(map(len, batches))
    assert content(table) == latest(batches)
    for moment in range(0, 170_000, 17_000):
        assert content(table, event_time=moment) == latest(batches, moment)
    assert check_table(table) == []


def test_six_processes_at_once_on_local_files(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    create(open_storage(uri))
    race(uri, {}, rounds=8)
    assert_whole(reopen(open_storage(uri)), rounds=8)


@pytest.mark.slow
def test_six_processes_at_once_on_local_files_fifty_rounds(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    create(open_storage(uri))
    race(uri, {}, rounds=50)
    assert_whole(reopen(open_storage(uri)), rounds=50)


@pytest.mark.slow
@pytest.mark.s3
def test_six_processes_at_once_on_s3_fifty_rounds(s3_options: dict[str, str]) -> None:
    uri = "s3://lake/race"
    create(open_storage(uri, s3_options))
    race(uri, s3_options, rounds=50)
    assert_whole(reopen(open_storage(uri, s3_options)), rounds=50)


def test_a_long_metagen_commits_although_short_ones_overtake_it() -> None:
    """The long job compares its rows with those of short ones, without a new start."""
    storage = open_storage("memory://long-and-short")
    table = create(storage)
    batches: list[list[Row]] = [[(f"k{key % 7}", key % 11, key) for key in range(40)]]
    table.ingest(*rows(batches[0]))
    plan, rule_outputs = prepare_metagen(table)
    for turn in range(10):
        batches.append(
            [
                (f"k{key % 7}", (key * 3 + turn) % 13, 100 * turn + key if key % 5 else None)
                for key in range(6)
            ]
        )
        table.ingest(*rows(batches[-1]))
        short, short_ruled = prepare_metagen(table, leave=set(plan.segments))
        assert commit_metagen(table.log, short, short_ruled, None).version is not None
    result = commit_metagen(table.log, plan, rule_outputs, None)
    assert result.version == table.snapshot_at().version
    assert result.counts["rows"] == 40
    assert content(table) == latest(
        batches
    )  # row ids follow the ingests, whichever MetaGen came first
    for moment in range(14):
        assert content(table, event_time=moment) == latest(batches, moment)
    assert check_table(table) == []


def test_rows_that_two_metagens_select_are_counted_once() -> None:
    storage = open_storage("memory://same-rows")
    table = create(storage)
    table.ingest(*rows([("a", 1, 1), ("a", 2, 2), ("b", 1, 1)]))
    first, second = prepare_metagen(table), prepare_metagen(table)
    assert commit_metagen(table.log, *first, None).version == 2
    assert commit_metagen(table.log, *second, None).version == 2
    result = commit_metagen(table.log, *second, "late")
    assert (result.version, result.counts["rows"], table.log.head().version) == (2, 0, 2)
    assert table.metagen(token="late") == replace(result, repeated=True)
    assert content(table) == [("a", 2, 2), ("b", 1, 1)]
    assert check_table(table) == []


def test_a_writer_that_slept_until_the_log_below_it_was_gone_loses_cleanly() -> None:
    """A put succeeds far below the head, where no reader looks: its writer notices."""
    inner = open_storage("memory://stalled")
    create(inner, checkpoint_commits=2)
    table = reopen(inner, "awake")
    table.ingest(*rows([("a", 1, 1)]))
    stalling = StallingStore(inner, layout.commit_path(2))
    failures: list[BaseException] = []

    def sleeper() -> None:
        try:
            reopen(stalling, "asleep").ingest(*rows([("a", 9, 9)]))
        except ConflictError as error:
            failures.append(error)

    thread = threading.Thread(target=sleeper)
    thread.start()
    stalling.wait_until_stalled()
    for number in range(2, 9):
        table.ingest(*rows([("a", number, number)]))
    expire_log(inner, below=7)
    stalling.release()
    thread.join()
    assert len(failures) == 1
    assert "too late" in str(failures[0])
    table.metagen()
    assert content(reopen(inner, "reader")) == [("a", 8, 8)]


def expire_log(storage: Storage, below: int) -> None:
    """Delete the log as a retention does; a checkpoint above it stays."""
    storage.delete([layout.commit_path(version) for version in range(below)])
    old = [
        stored.path
        for stored in storage.list(layout.CHECKPOINTS)
        if (layout.checkpoint_version(stored.path) or below) < below
    ]
    storage.delete(old)


def test_of_two_that_create_one_table_at_once_one_loses(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    results: list[str] = []

    def attempt() -> None:
        try:
            create(open_storage(uri))
            results.append("made")
        except ValueError:
            results.append("refused")

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["made"] + ["refused"] * 7
