"""Retention: readable versions stay readable, and what nothing needs is deleted.

No suspended or killed process can do harm.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.errors import (
    CommitUnknownError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    TableExistsError,
)
from opal_lake.log import lists
from opal_lake.operations.ingest import Ingest
from opal_lake.read.read import plan_read, read_rows
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table
from opal_lake.write.ingest_job import IngestRun, commit_ingest, start_ingest
from opal_lake.write.metagen_job import commit_metagen
from tests.kit.check import check_table
from tests.kit.failing_store import Crash, FailingStore, Mode, StallingStore
from tests.opal_lake.compacting import compact
from tests.opal_lake.retention import build
from tests.opal_lake.retention.build import START, batch, paths
from tests.opal_lake.shop import LISTS_IN_FILES, content, copied, create, latest, rows
from tests.opal_lake.writer import prepare_metagen

at_hour = partial(build.at_hour, tuning=LISTS_IN_FILES)
history = partial(build.history, tuning=LISTS_IN_FILES)
grow = partial(build.grow, tuning=LISTS_IN_FILES)


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Storage:
    return open_storage(f"memory://retention-{request.node.name}")


def assert_readable(table: Table, oldest: int, newest: int) -> None:
    """Every version in the window holds what it held, and none before it can be read."""
    for version in range(oldest, newest + 1):
        expected = [batch(hour) for hour in range(1, version + 1)]
        assert content(table, version=version) == latest(expected), version
        for moment in (0, version // 2, version):
            assert content(table, version=version, event_time=moment) == latest(expected, moment), (
                version,
                moment,
            )
    for version in range(oldest):
        with pytest.raises(
            NotFoundError,
            match=rf"version {version} of .* has expired; the readable versions are {oldest} to ",
        ):
            table.snapshot_at(version)


def test_versions_of_the_window_stay_and_the_others_expire(storage: Storage) -> None:
    history(storage, 12)
    table = at_hour(storage, 12.5)
    result = table.retain(window="5h", grace="1h")
    assert (result.version, result.counts["versions"]) == (13, 7)
    assert_readable(table, 7, 12)
    assert [commit.version for commit in table.commits()] == [*range(13, 6, -1)]
    assert check_table(table) == []
    assert paths(storage, layout.LOG)[0] == layout.commit_path(4), (
        "the checkpoint that serves version 7"
    )
    assert paths(storage, layout.CLAIMS)[0] == layout.claim_path(4)


def test_a_window_keeps_the_version_that_was_newest_at_its_begin(storage: Storage) -> None:
    """The version that was the newest then, even if it is far older."""
    history(storage, 3)
    table = at_hour(storage, 500)
    table.retain(window="100h")
    assert table.snapshot_at().root.oldest_version == 3
    assert_readable(table, 3, 3)


def test_the_grace_is_the_least_window(storage: Storage) -> None:
    history(storage, 12)
    table = at_hour(storage, 12.5)
    table.retain(window="1h", grace="5h")
    assert_readable(table, 7, 12)


def test_the_window_of_the_table_counts_when_none_is_given(storage: Storage) -> None:
    table = history(storage, 60, window="2d")
    table.retain()
    assert table.snapshot_at().root.oldest_version == 12


def test_a_retention_with_nothing_to_do_commits_nothing(storage: Storage) -> None:
    table = history(storage, 5)
    assert table.retain(window="30d").version is None
    table.retain(window="2h", grace="1h")
    left = paths(storage)
    again = table.retain(window="2h", grace="1h")
    assert (again.version, dict(again.counts)) == (None, {})
    assert paths(storage) == left


def test_a_longer_window_brings_nothing_back(storage: Storage) -> None:
    table = history(storage, 12)
    table.retain(window="2h", grace="1h")
    table.retain(window="30d", grace="1h")
    assert table.snapshot_at().root.oldest_version == 10


def test_a_dry_run_lists_the_files_that_a_run_deletes_and_changes_nothing(storage: Storage) -> None:
    table = history(storage, 12)
    before = paths(storage)
    result = table.retain(window="3h", grace="1h", dry_run=True, token="t")
    assert paths(storage) == before
    assert {*result.examples[0]} == {"path", "size", "why"}
    done = table.retain(window="3h", grace="1h", token="t")
    assert not done.repeated
    assert dict(done.counts) == dict(result.counts)
    gone = {*before} - {*paths(storage)}
    assert {example["path"] for example in result.examples} == gone
    again = table.retain(window="3h", grace="1h", token="t")
    assert (again.repeated, dict(again.counts)) == (True, dict(done.counts))


def test_traffic_of_streams_that_stopped_before_the_window_is_deleted(storage: Storage) -> None:
    table = history(storage, 5)
    document = layout.traffic_path(1, "orders")
    storage.put_if_absent(document, b"")
    table.retain(window="30d", grace="1h")
    assert document in paths(storage)
    result = table.retain(window="2h", grace="1h")
    assert result.counts["traffic"] == 1
    assert document not in paths(storage)


def test_merged_logs_and_runs_are_deleted_once_no_version_reads_them(storage: Storage) -> None:
    table = history(storage, 20, key_store_fan_in=2)
    before = len(paths(storage, layout.KEY_STORE))
    result = table.retain(window="1h", grace="1h")
    assert result.counts["key_store_runs"] > 10
    assert len(paths(storage, layout.KEY_STORE)) == before - result.counts["key_store_runs"]
    assert_readable(table, 19, 20)
    table.ingest(*rows(batch(21)), metadata="inline")
    assert_readable(table, 19, 20)
    assert content(table) == latest([batch(hour) for hour in range(1, 22)])
    assert check_table(table) == []


def test_a_checkpoint_below_the_oldest_version_may_sum_up_logs_that_are_gone(
    storage: Storage,
) -> None:
    """The log begins with the version.

    The logs of its bitmap base were merged above it, by a job that was killed before it wrote a
    checkpoint.
    """
    history(storage, 12)
    assert compact(at_hour(storage, 12.5)).version == 14
    storage.delete(
        [
            path
            for path in paths(storage, layout.CHECKPOINTS)
            if layout.checkpoint_version(path) == 14
        ]
    )
    at_hour(storage, 13).ingest(*rows(batch(13)), metadata="inline")
    table = at_hour(storage, 14)
    assert table.retain(window="75m", grace="75m").counts["segment_logs"] == 12
    assert table.snapshot_at().root.oldest_version == 14
    assert check_table(table) == []
    storage.delete(
        [
            path
            for path in paths(storage, layout.CHECKPOINTS)
            if (layout.checkpoint_version(path) or 0) > 14
        ]
    )
    assert check_table(table) == []
    [base] = [path for path in paths(storage, layout.BITMAPS) if "/00000000000000000012-" in path]
    data = storage.get(base)
    storage.delete([base])
    storage.put_if_absent(
        base, data[:-1] + bytes([data[-1] ^ 1])
    )  # reads of the newest version go by it
    assert {(finding.invariant, finding.path) for finding in check_table(table)} == {("I8", base)}


def started(table: Table) -> IngestRun:
    run = start_ingest(table, Ingest([]))
    assert isinstance(run, IngestRun)
    return run


def test_a_job_within_its_grace_is_left_alone(storage: Storage) -> None:
    history(storage, 6)
    early = at_hour(storage, 6.1, "early")
    early.ingest(*rows(batch(7)))
    plan, rule_outputs = prepare_metagen(early)
    late = at_hour(storage, 8)
    late.retain(window="2h", grace="2h")
    commit_metagen(early.log, plan, rule_outputs, None)
    assert content(late) == latest([batch(hour) for hour in range(1, 8)])
    assert check_table(late) == []


def test_a_job_that_takes_too_long_is_given_up_and_cannot_commit(storage: Storage) -> None:
    history(storage, 6)
    early = at_hour(storage, 6.1, "early")
    early.ingest(*rows(batch(7)))
    plan, rule_outputs = prepare_metagen(early)
    left = [path for path in paths(storage) if layout.job_number(path) == plan.number]
    assert left
    late = at_hour(storage, 9)
    result = late.retain(window="30d", grace="2h")
    assert result.counts["abandoned"] == 1
    assert plan.number in late.snapshot_at().root.abandoned
    assert not {*left} & {*paths(storage)}
    with pytest.raises(ConflictError, match="retention gave up job"):
        commit_metagen(early.log, plan, rule_outputs, None)
    late.metagen()
    assert content(late) == latest([batch(hour) for hour in range(1, 8)])
    assert check_table(late) == []


def test_a_number_that_was_given_up_is_not_given_out_again(storage: Storage) -> None:
    history(storage, 3)
    dead = started(at_hour(storage, 3.1, "dead")).number
    late = at_hour(storage, 9)
    late.retain(window="1h", grace="1h")
    late.ingest(*rows(batch(4)), metadata="inline")
    assert late.snapshot_at().root.greatest_number == dead + 1
    later = at_hour(storage, 20)
    later.retain(window="1h", grace="1h")
    assert layout.claim_path(dead) not in paths(storage)
    assert started(later).number == dead + 2


def test_a_job_from_below_the_oldest_version_cannot_commit(storage: Storage) -> None:
    """A job may claim its number only now, and the number may have been used long ago."""
    history(storage, 6)
    sleeper = at_hour(storage, 2, "sleeper")
    run = replace(started(sleeper), base=sleeper.log.at(2), number=1)
    at_hour(storage, 20).retain(window="1h", grace="1h")
    with pytest.raises(ConflictError, match="has expired"):
        commit_ingest(sleeper.log, run, [])


def test_a_writer_that_slept_below_the_expired_log_loses(storage: Storage) -> None:
    history(storage, 2)
    stalling = StallingStore(storage, layout.commit_path(3))
    failures: list[BaseException] = []

    def sleeper() -> None:
        try:
            at_hour(stalling, 2.5, "asleep").ingest(*rows([("lost", 1, 1)]))
        except ConflictError as error:
            failures.append(error)

    thread = threading.Thread(target=sleeper)
    thread.start()
    stalling.wait_until_stalled()
    for hour in range(3, 9):
        at_hour(storage, hour, "awake").ingest(*rows(batch(hour)), metadata="inline")
    late = at_hour(storage, 10)
    late.retain(window="1h", grace="1h")
    stalling.release()
    thread.join()
    assert "too late" in str(failures[0])
    assert content(late) == latest([batch(hour) for hour in range(1, 9)])
    assert check_table(late) == []
    at_hour(storage, 20).retain(window="1h", grace="1h")
    assert layout.commit_path(3) not in paths(storage)
    assert "lost" not in str(content(late))


def test_a_table_that_lost_version_0_cannot_be_created_again(storage: Storage) -> None:
    table = history(storage, 6)
    table.retain(window="1h", grace="1h")
    assert layout.commit_path(0) not in paths(storage)
    with pytest.raises(TableExistsError, match="is an Opal table already"):
        create(storage)
    assert layout.commit_path(0) not in paths(storage)


def test_a_token_is_known_after_its_version_has_expired(storage: Storage) -> None:
    table = history(storage, 8)
    table.retain(window="1h", grace="1h")
    again = table.ingest(*rows(batch(2)), metadata="inline", token="t2")
    assert (again.repeated, again.version) == (True, 2)
    assert "expired" in again.notes[0]
    committed = table.ingest(*rows(batch(8)), metadata="inline", token="t8")
    assert (committed.repeated, committed.version, committed.counts["rows"]) == (True, 8, 3)


def test_the_token_of_a_job_that_changed_nothing_is_forgotten_with_the_window(
    storage: Storage,
) -> None:
    history(storage, 4)
    assert not at_hour(storage, 4.1).delete("sku = 'none'", token="d").repeated
    assert at_hour(storage, 4.2).delete("sku = 'none'", token="d").repeated
    at_hour(storage, 8).retain(window="1h", grace="1h")
    assert not at_hour(storage, 8.1).delete("sku = 'none'", token="d").repeated


def test_partition_keys_outlive_the_commits_that_brought_them(storage: Storage) -> None:
    table = history(storage, 8)
    before = [content(table, partition_key=key) for key in ("p0", "p1")]
    table.retain(window="1h", grace="1h")
    assert [content(table, partition_key=key) for key in ("p0", "p1")] == before


def test_time_before_the_oldest_version_is_refused_with_its_number(storage: Storage) -> None:
    table = history(storage, 8)
    table.retain(window="3h", grace="1h")
    assert table.snapshot_at(timestamp="2023-11-15T05:00:00Z").version == 6
    with pytest.raises(NotFoundError, match="its oldest version 5 was committed at"):
        table.snapshot_at(timestamp="2023-11-14T23:30:00Z")


@pytest.mark.parametrize("argument,value", [("window", "soon"), ("grace", "-1d"), ("window", "")])
def test_invalid_spans_are_refused(storage: Storage, argument: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{argument}='{value}' is not a duration"):
        history(storage, 1).retain(**{argument: value})  # type: ignore[arg-type]  # one of two texts


def test_a_damaged_checkpoint_deletes_nothing(storage: Storage) -> None:
    """The log below is what it can be made from again."""
    history(storage, 9)
    section = next(
        path for path in paths(storage, layout.SECTIONS) if "00000008-" in path and "-files" in path
    )
    storage.delete([section])
    before = paths(storage)
    with pytest.raises(FormatError, match="is missing, though the table refers to it"):
        at_hour(storage, 9.2).retain(window="1h", grace="1h")
    assert paths(storage) == before


def test_a_reader_that_began_before_reads_on(storage: Storage) -> None:
    """A reader's lists come from sections that it opens only when it needs them."""
    history(storage, 11)
    snapshots = {version: at_hour(storage, 11.5).snapshot_at(version) for version in range(8, 12)}
    at_hour(storage, 11.5).retain(window="3h", grace="1h")
    for version, snapshot in snapshots.items():
        actual = read_rows(plan_read(snapshot, None), None).to_pylist()
        expected = latest([batch(hour) for hour in range(1, version + 1)])
        assert sorted((row["sku"], row["at"], row["price"]) for row in actual) == expected


FIRST_WINDOW, JOBS = "3h", 9
MODES: list[Mode] = ["before", "after", "failed", "done_but_failed"]


def prepared(storage: Storage) -> Storage:
    """Make a table with something of every kind to delete.

    These are expired versions, lists of restores, a dead job's files, replaced runs, a savepoint.
    """
    history(storage, 4, key_store_fan_in=2)
    for version, hour in ((3, 4.2), (4, 4.3)):
        at_hour(storage, hour, "restorer").restore(version=version)
    grow(storage, range(5, JOBS))
    dead = at_hour(storage, 2.5, "dead")
    dead.ingest(*rows(batch(JOBS)))
    prepare_metagen(dead)
    at_hour(storage, 3, "keeper").savepoint("kept", 2)
    at_hour(storage, JOBS, "last").metagen()
    return storage


def check_prepared(storage: Storage, where: object) -> None:
    table = at_hour(storage, JOBS + 1, "reader")
    oldest, newest = table.snapshot_at().root.oldest_version, table.snapshot_at().version
    expected = latest([batch(hour) for hour in range(1, JOBS + 1)])
    assert content(table) == expected, where
    for version in (2, *range(oldest, newest + 1)):
        state = content(table, version=version)
        assert state == content(table, version=version), where
    assert content(table, version=2) == latest([batch(1), batch(2)]), where
    assert check_table(table) == [], where


def walk(fresh: Callable[[], Storage], mode: Mode, stride: int = 1) -> int:
    """Fail at each call of a retention in turn; how many there are."""

    def job(target: Storage, start: int) -> None:
        at_hour(target, JOBS + 1, f"cleaner-{start}").retain(
            window=FIRST_WINDOW, grace="1h", token="retain"
        )

    begun = prepared(fresh())
    sound = copied(begun, fresh())
    dry = FailingStore(sound)
    job(dry, 0)
    left = [
        layout.LOG,
        layout.DATA,
        layout.KEY_STORE,
        layout.SEGMENT_LOGS,
        layout.CLAIMS,
        layout.SIDE,
    ]
    expected = {prefix: paths(sound, prefix) for prefix in left}
    for fail_at in range(1, len(dry.trace) + 1, stride):
        storage = copied(begun, fresh())
        store = FailingStore(storage, fail_at, mode)
        for start, target in enumerate([store, storage, storage], 1):
            for key in lists._side_files:
                lists._side_files.forget(key)  # another process knows none
            try:
                job(target, start)
            except (Crash, StorageError, CommitUnknownError, ConflictError):
                check_prepared(storage, (mode, fail_at, dry.trace[fail_at - 1], "left behind"))
                continue
            break
        where = (mode, fail_at, dry.trace[fail_at - 1])
        check_prepared(storage, where)
        assert {prefix: paths(storage, prefix) for prefix in left} == expected, where
    return len(dry.trace)


@pytest.mark.slow_but_one
@pytest.mark.parametrize("mode", MODES)
def test_a_failure_at_any_call_costs_nothing_but_a_rerun(
    mode: Mode, request: pytest.FixtureRequest
) -> None:
    numbers = iter(range(10_000))
    assert (
        walk(
            lambda: open_storage(f"memory://retention-{request.node.name}-{next(numbers)}"),
            mode,
            stride=17,
        )
        > 50
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["before", "done_but_failed"])
def test_a_failure_on_local_files_costs_nothing_but_a_rerun(mode: Mode, tmp_path: Path) -> None:
    numbers = iter(range(10_000))
    walk(lambda: open_storage(str(tmp_path / f"table-{next(numbers)}")), mode, stride=9)


@pytest.mark.slow
@pytest.mark.s3
def test_retention_on_s3(s3_options: dict[str, str]) -> None:
    storage = prepared(open_storage("s3://lake/retention", s3_options))
    at_hour(storage, JOBS + 1).retain(window=FIRST_WINDOW, grace="1h")
    check_prepared(storage, "s3")


@pytest.mark.parametrize("inside", ["data/orders", "data/a=1", "_opal/key_store/orders"])
def test_files_of_a_table_inside_this_one_are_never_deleted(tmp_path: Path, inside: str) -> None:
    """No table is created so any more; those that exist keep their rows."""
    outer, inner = open_storage(str(tmp_path)), open_storage(f"{tmp_path}-inner")
    history(outer, hours=2)
    other = history(inner, hours=3)
    shown, files = content(other), {entry.path for entry in inner.list("")}
    (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
    Path(f"{tmp_path}-inner").rename(tmp_path / inside)
    for folder, _, names in os.walk(tmp_path / inside):
        for name in names:
            os.utime(Path(folder) / name, (START / 1_000_000 - 1, START / 1_000_000 - 1))
    stray = tmp_path / "data" / "0000000001-00000000-stray.parquet"
    stray.touch()
    os.utime(stray, (START / 1_000_000 - 1, START / 1_000_000 - 1))
    result = at_hour(outer, 100_000).retain(window="1h", grace="1h")
    assert result.counts["data_files"] == 1
    assert not stray.exists()
    moved = open_storage(f"{tmp_path}/{inside}")
    assert {entry.path for entry in moved.list("")} == files
    assert content(at_hour(moved, 4)) == shown
