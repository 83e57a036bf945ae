"""Requests of jobs to a store: their number does not grow with the age of a table."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.errors import FormatError
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.compacting import compact
from tests.opal_lake.hours import Hours, upserted
from tests.opal_lake.retention.build import at_hour, history, paths
from tests.opal_lake.shop import create, rows
from tests.s3_requests import Requests, counted

Start = Callable[[int], Hours]
LONG = "9000d"


@pytest.fixture
def start(s3_options: dict[str, str], request: pytest.FixtureRequest) -> Start:
    """Return a function that makes a table after so many upserts."""
    return lambda commits: upserted(
        f"s3://lake/requests/{request.node.name}-{commits}", s3_options, commits
    )


def asked(options: dict[str, str], hours: Hours, job: Callable[[Table], object]) -> Requests:
    table = hours.table
    with counted(options, hours.storage.uri) as requests:
        job(table)
    return requests


@pytest.mark.s3
def test_a_retention_with_nothing_to_do_reads_only_later_commits(
    start: Start, s3_options: dict[str, str]
) -> None:
    def retain(table: Table) -> None:
        assert dict(table.retain(window=LONG).counts) == {}

    young, old = start(9), start(25)  # nine behind a checkpoint both
    for hours, commits in ((young, 9), (old, 25)):
        first = asked(s3_options, hours, retain)
        assert first.verbs["GET"] <= commits + commits // 4 + 10, first
        repeated = [path for path in first.repeated if "/log/" in path]
        assert [path for path in repeated if int(path[-7:-5]) % 16] == [], (
            first
        )  # those vouch for others, by a byte each
    again = asked(s3_options, old, retain)
    assert again.verbs["GET"] <= 14 >= asked(s3_options, young, retain).verbs["GET"], again
    assert again.total <= 26, again
    later = asked(s3_options, old.upsert(3), retain)
    assert later.verbs["GET"] <= again.verbs["GET"] + 3, later
    assert not later.verbs["PUT"] + later.verbs["DELETE"], later


@pytest.mark.s3
def test_requests_of_a_retention_grow_with_deleted_files_only(
    start: Start, s3_options: dict[str, str]
) -> None:
    hours = start(25)
    hours.table.retain(window=LONG)
    time.sleep(1.1)  # the store's times are whole seconds
    some = asked(s3_options, hours, lambda table: table.retain(window="0s", grace="0s"))
    assert hours.table.snapshot_at().root.oldest_version >= 24
    assert some.verbs["DELETE"] <= 6, some
    assert some.verbs["GET"] <= 40, (
        some
    )  # what is between two checkpoints, twice: below the oldest version and below the head
    assert check_table(hours.table) == []


@pytest.mark.s3
def test_rewrites_read_the_log_once_and_each_file_once(
    start: Start, s3_options: dict[str, str]
) -> None:
    hours = start(22)
    first = asked(s3_options, hours, compact)
    assert first.total <= 58, (
        first
    )  # 21 requests read the segment logs of all upserts but the first one
    assert not {path for path in first.repeated if "/data/" in path}, first
    repeated = [path for path in first.repeated if "/segment_logs/" in path]
    assert len(repeated) <= 3, first  # for the page of the log that a commit of the job ends
    again = asked(s3_options, hours, compact)
    assert again.total <= 8, again
    assert check_table(hours.table) == []


@pytest.mark.s3
def test_a_history_reads_a_commit_once(start: Start, s3_options: dict[str, str]) -> None:
    requests = asked(s3_options, start(18), lambda table: [*table.commits(10)])
    assert requests.total <= 10 + 8, requests
    assert len(requests.repeated) <= 1, (
        requests
    )  # a byte of one more vouches for the end of the log


@pytest.mark.s3
def test_a_restore_reads_bitmap_bases_and_not_every_segment_log(
    start: Start, s3_options: dict[str, str]
) -> None:
    def restore(table: Table) -> None:
        table.restore(version=table.snapshot_at().version - 3)

    young, old = start(21), start(69)  # five behind a checkpoint both
    few = asked(s3_options, young, restore)
    many = asked(s3_options, old, restore)
    assert many.total <= few.total + 4, many
    assert many.parts["GET", "_opal/segment_logs"] <= 16, many
    after = asked(s3_options, old, lambda table: table.read())
    assert after.parts["GET", "_opal/segment_logs"] <= 4, after
    assert check_table(old.table) == []


def digests(storage: Storage) -> list[str]:
    return paths(storage, layout.DIGESTS)


def put_anew(storage: Storage, path: str, data: bytes) -> None:
    storage.delete([path])
    assert storage.put_if_absent(path, data)


def test_a_digest_that_is_damaged_or_of_another_log_is_not_believed(tmp_path: Path) -> None:
    storage, other = open_storage(str(tmp_path / "t")), open_storage(str(tmp_path / "other"))
    history(storage, 20)
    create(other)
    for hour in range(1, 20):
        at_hour(other, hour, "other").ingest(*rows([(f"o{hour}", hour, 1)]), metadata="inline")
    for store in (storage, other):
        at_hour(store, 20.5).retain(window=LONG)
    (path,), (strange,) = digests(storage), digests(other)
    sound = storage.get(path)
    for name, data in (
        (path, sound[:-1]),
        (path, b""),
        (strange, other.get(strange)),
        (layout.digest_path(9, 0), b"x"),
    ):
        storage.delete([path])
        put_anew(storage, name, data)
        result = at_hour(storage, 20.6).retain(window=LONG)
        assert dict(result.counts) == {}
        assert digests(storage) == [path]
        assert storage.get(path) == sound
        assert check_table(at_hour(storage, 21)) == []


def test_a_digest_is_not_believed_when_the_log_lost_its_end_and_went_on(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "t"))
    history(storage, 19, checkpoint_commits=100)
    at_hour(storage, 20.5).retain(window=LONG)
    storage.delete([layout.commit_path(19), layout.commit_path(18)])
    for hour in (21, 22, 23):
        at_hour(storage, hour, "again").ingest(*rows([(f"new{hour}", hour, 1)]), metadata="inline")
    at_hour(storage, 24).retain(window="2h", grace="1h")
    table = at_hour(storage, 25)
    assert check_table(table) == []
    assert table.read().num_rows


def test_a_commit_that_is_gone_keeps_retention_from_deleting_its_files(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "t"))
    history(storage, 12)
    storage.delete([layout.commit_path(6)])
    before = paths(storage)
    with pytest.raises(
        FormatError,
        match=(
            r"0006\.json is missing, though the table refers to it; "
            "the files that this version needs are unknown"
        ),
    ):
        at_hour(storage, 12.5).retain(window="8h", grace="1h")
    assert [
        path for path in paths(storage) if "/log/" not in path and "/checkpoints/" not in path
    ] == [path for path in before if "/log/" not in path and "/checkpoints/" not in path]
