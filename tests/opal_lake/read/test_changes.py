"""The change feed at its edges; test_histories.py compares random histories with a model."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from opal_lake import layout
from opal_lake.data.segment import LogFile
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import ExpiredError, FormatError, InvalidInputError, NotFoundError
from opal_lake.events.segment_log import Events, RowIds, concat_events, read_events
from opal_lake.log import pages
from opal_lake.operations.read import Changes
from opal_lake.read import changes
from opal_lake.read.change_range import version_range
from opal_lake.read.changed_rows import read_changes
from opal_lake.read.changes import FeedLimits, plan_changes
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table, create_on, table_on
from tests.kit.failing_store import FailingStore, StallingStore
from tests.opal_lake import shop
from tests.opal_lake.compacting import compact
from tests.opal_lake.retention import build
from tests.opal_lake.retention.build import START, batch
from tests.opal_lake.shop import LISTS_IN_FILES, Row, content, latest, rows

create = partial(shop.create, tuning=LISTS_IN_FILES)
reopen = partial(shop.reopen, tuning=LISTS_IN_FILES)
at_hour = partial(build.at_hour, tuning=LISTS_IN_FILES)
history = partial(build.history, tuning=LISTS_IN_FILES)


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Storage:
    return open_storage(f"memory://changes-{request.node.name}")


def changes_of(table: Table, *args: object, **options: object) -> list[tuple[int, str, str, int]]:
    feed = table.changes(*args, **options).to_pylist()  # type: ignore[arg-type]  # as tests name them
    return [(row["_commit_version"], row["_change_type"], row["sku"], row["price"]) for row in feed]


def applied(table: Table, earlier: int, later: int) -> list[object]:
    """Return the rows of a version, with all later changes applied."""
    state = {row["sku"]: row for row in table.read(version=earlier).to_pylist()}
    for row in table.changes(earlier + 1, later).to_pylist():
        state.pop(row["sku"], None)
        if row["_change_type"] in ("insert", "update_postimage"):
            state[row["sku"]] = {name: row[name] for name in ("sku", "at", "price")}
    return sorted((row["sku"], row["at"], row["price"]) for row in state.values())


def test_a_feed_turns_an_earlier_version_into_the_later_one(storage: Storage) -> None:
    table = history(storage, 9)
    for earlier in range(9):
        for later in range(earlier + 1, 10):
            assert applied(table, earlier, later) == latest(
                [batch(hour) for hour in range(1, later + 1)]
            )


def test_rows_that_a_major_compaction_dropped_since_are_in_the_feed(storage: Storage) -> None:
    table = history(storage, 9)
    before = changes_of(table, 0)
    compact(table, floor=9)
    assert sum(file.rows for file in table.snapshot_at().files.values()) < 27
    again = at_hour(storage, 10)
    again.ingest(*rows(batch(10)), metadata="inline")
    assert changes_of(again, 0, 9) == before
    newest = again.snapshot_at().version
    assert changes_of(again, 10) == changes_of(again, newest)
    assert changes_of(again, 0) == before + changes_of(again, newest)
    spans = plan_changes(again.log, version_range(again.log, 5)).spans
    assert [span.snapshot.version for span in spans] == [9, newest]


def test_error_names_the_oldest_version_with_readable_changes(storage: Storage) -> None:
    history(storage, 12)
    table = at_hour(storage, 12.5)
    known = changes_of(table, 8)
    table.savepoint("kept", 3)
    table.retain(window="5h", grace="1h")
    oldest = table.snapshot_at().root.oldest_version
    assert oldest == 7
    assert changes_of(table, 8) == known
    for start in (0, 3, 7, "kept"):
        with pytest.raises(
            NotFoundError,
            match=rf"begin with version {oldest + 1}, the oldest one with readable changes\. The",
        ):
            table.changes(start)
    with pytest.raises(
        NotFoundError,
        match=f"have expired; give a start after .*, the commit time of version {oldest}, the",
    ):
        table.changes(datetime.fromtimestamp(START / 1e6, UTC))


def test_a_feed_may_begin_at_expired_versions_that_changed_nothing(storage: Storage) -> None:
    table = history(storage, 3)
    for hour in range(4, 9):
        at_hour(storage, hour).set_properties({"window": f"{hour}d"})
    known, table = changes_of(table, 4), at_hour(storage, 9)
    table.retain(window="2h", grace="1h")
    assert table.snapshot_at().root.oldest_version > 5
    assert changes_of(table, 5) == changes_of(table, 4) == known == []
    with pytest.raises(NotFoundError, match="the changes of version 3 have expired"):
        table.changes(3)


def test_a_new_table_has_no_changes(storage: Storage) -> None:
    table = create(storage)
    for start in (0, 1, "latest"):
        feed = table.changes(start)
        assert feed.num_rows == 0
        assert feed.schema == pa.schema(
            [
                ("sku", pa.string()),
                ("at", pa.int64()),
                ("price", pa.int32()),
                ("_change_type", pa.string()),
                ("_commit_version", pa.int64()),
                ("_commit_timestamp", pa.timestamp("us", "UTC")),
            ]
        )
    with pytest.raises(NotFoundError, match="has no version 2 yet; the newest is 0"):
        table.changes(2)


def test_pending_rows_change_nothing_until_their_metagen(storage: Storage) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1)]))
    table.ingest(*rows([("a", 2, 2), ("b", 2, None)]))
    assert changes_of(table, 0) == []
    table.metagen()
    assert changes_of(table, 0) == [(3, "insert", "a", 2)]


def test_rows_ingested_again_with_equal_values_are_updates(storage: Storage) -> None:
    table = create(storage)
    for _ in range(2):
        table.ingest(*rows([("a", 1, 1)]), metadata="inline")
    pair = [(2, "update_preimage", "a", 1), (2, "update_postimage", "a", 1)]
    assert (
        changes_of(table, 2)
        == changes_of(table, 2, mode="dropCarryovers")
        == changes_of(table, 2, mode="netChanges")
        == pair
    )


def test_feed_has_the_commit_times(storage: Storage) -> None:
    table = history(storage, 3)
    times = {
        row["_commit_version"]: row["_commit_timestamp"] for row in table.changes(1).to_pylist()
    }
    commits = {commit.version: commit.timestamp_us for commit in table.commits()}
    assert {version: round(time.timestamp() * 1e6) for version, time in times.items()} == {
        v: commits[v] for v in (1, 2, 3)
    }
    assert changes_of(table, times[2], times[2]) == changes_of(table, 2, 2)
    assert changes_of(table, times[2].isoformat(), times[3].isoformat()) == changes_of(table, 2, 3)


def test_a_column_with_the_name_of_a_feed_column_is_refused(storage: Storage) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("_CHANGE_type", pa.string())])
    table = create_on(storage, plan_spec(schema, TableLayout(keys=["id"], delta="at")))
    table.ingest(pa.table([[1], [1], ["mine"]], schema=schema), metadata="inline")
    with pytest.raises(
        InvalidInputError,
        match="column _CHANGE_type of the table has the name of a column of a change feed",
    ):
        table.changes(0)
    assert table.changes(0, columns=["id"]).column("_change_type").to_pylist() == ["insert"]
    table.alter([{"rename": "_CHANGE_type", "to": "kind"}])
    assert table.changes(0, 1).column("kind").to_pylist() == ["mine"]


def test_keys_need_not_be_among_the_columns(storage: Storage) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 1, 1), ("b", 1, 2)]), metadata="inline")
    table.ingest(*rows([("a", 2, 3)]), metadata="inline")
    feed = table.changes(2, columns=["price"]).drop_columns(["_commit_timestamp"]).to_pylist()
    assert feed == [
        {"price": 1, "_change_type": "update_preimage", "_commit_version": 2},
        {"price": 3, "_change_type": "update_postimage", "_commit_version": 2},
    ]
    with pytest.raises(InvalidInputError, match="'cost'"):
        table.changes(2, columns=["cost"])


def test_a_key_with_the_name_of_a_feed_column_is_refused(storage: Storage) -> None:
    schema = pa.schema([("_Commit_Version", pa.int64()), ("at", pa.int64())])
    table = create_on(storage, plan_spec(schema, TableLayout(keys=["_Commit_Version"], delta="at")))
    for read in (lambda: table.changes(0), lambda: table.changes(0, columns=["at"])):
        with pytest.raises(
            InvalidInputError,
            match="the key column _Commit_Version has the name of a column of a change feed",
        ):
            read()


def test_a_range_without_a_change_is_empty(storage: Storage) -> None:
    table = create(storage)
    assert version_range(table.log, 0, 0).earlier is None
    assert table.changes(0, 0).num_rows == 0


def test_savepoints_and_times_without_a_commit_in_between_are_an_empty_range(
    storage: Storage,
) -> None:
    table = history(storage, 3)
    for name in ("monday", "tuesday"):
        table.savepoint(name, 3)
    third = datetime.fromtimestamp(table.log.read_commit(3).timestamp_us / 1e6, UTC)
    just_after, later = third + timedelta(microseconds=1), third + timedelta(microseconds=2)
    head, long_ago = table.snapshot_at().version, datetime(2001, 1, 1, tzinfo=UTC)
    for bounds in (("monday", "tuesday"), ("monday", 3), (just_after, later), ("latest", head)):
        assert table.changes(*bounds).num_rows == 0, bounds
    for bounds in (("monday", 2), (4, 3), (just_after, 2), (later, just_after), (later, long_ago)):
        with pytest.raises(
            InvalidInputError, match="ends before it begins; give an earlier start, or a later end"
        ):
            table.changes(*bounds)


def test_a_wrong_bound_or_version_is_refused_with_the_next_step(storage: Storage) -> None:
    table = history(storage, 3)
    with pytest.raises(InvalidInputError, match="leave end out to read up to the newest version"):
        table.changes(1, "latest")
    for version in (True, False):
        with pytest.raises(InvalidInputError, match=f"version={version} is no(t a)? version"):
            table.restore(version=version)


def test_a_feed_of_deleted_commits_raises_expired_error(storage: Storage) -> None:
    table = history(storage, 9)
    versions = version_range(table.log, 2)
    at_hour(storage, 400).retain(window="1h", grace="1h")
    with pytest.raises(ExpiredError, match="expired"):
        plan_changes(table.log, versions)


def test_an_event_of_a_row_that_was_dropped_with_its_segment_is_no_change(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = history(storage, 4)
    before = changes_of(table, 2)
    read = read_events

    def with_one_more(store: Storage, log: LogFile, *, with_next: bool) -> Events:
        gone = Events(
            segment=np.array([999 << 32]), offset=np.array([0], np.int32), until=np.array([1])
        )
        events = read(store, log, with_next=with_next)
        assert events.next_rows is not None
        return concat_events(
            [events, replace(gone, next_rows=events.next_rows.take(np.array([0])))]
        )

    monkeypatch.setattr(pages, "read_events", with_one_more)
    assert changes_of(table, 2) == before


def test_many_rows_of_a_key_in_one_commit_are_one_change(storage: Storage) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 1, 10), ("b", 1, 20), ("c", 1, 30)]), metadata="inline")
    many = [("a", at, at) for at in range(2, 70)]
    gone = [
        ("b", 2, 21),
        ("b", 3, None),
        ("c", 2, None),
        ("c", 3, 33),
        ("d", 1, None),
        ("e", 1, 1),
        ("e", 2, None),
    ]
    back = [("f", 2, None), ("f", 3, 6)]
    table.ingest(*rows([*many, *gone, *back]), metadata="inline")
    plan = plan_changes(table.log, version_range(table.log, 2))
    assert plan.has_pairs
    assert sorted(changes_of(table, 2), key=lambda row: row[2:]) == [
        (2, "update_preimage", "a", 10),
        (2, "update_postimage", "a", 69),
        (2, "delete", "b", 20),
        (2, "update_preimage", "c", 30),
        (2, "update_postimage", "c", 33),
        (2, "insert", "f", 6),
    ]


def test_a_net_feed_follows_a_row_through_versions_unless_its_key_was_deleted(
    storage: Storage,
) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1)]), metadata="inline")
    for at in (2, 3, 4):
        table.ingest(*rows([("a", at, at), ("c", at, at)]), metadata="inline")
    versions = version_range(table.log, 2)
    assert plan_changes(table.log, versions, is_net=True).has_pairs
    expected = [
        (2, "update_preimage", "a", 1),
        (4, "update_postimage", "a", 4),
        (4, "insert", "c", 4),
    ]
    assert changes_of(table, 2, mode="netChanges") == expected
    table.ingest(*rows([("a", 5, None)]), metadata="inline")
    table.ingest(*rows([("a", 6, 6)]), metadata="inline")
    assert not plan_changes(table.log, version_range(table.log, 2), is_net=True).has_pairs
    expected = [
        (4, "insert", "c", 4),
        (2, "update_preimage", "a", 1),
        (6, "update_postimage", "a", 6),
    ]
    assert changes_of(table, 2, mode="netChanges") == expected
    assert changes_of(table, 2, 4, mode="netChanges") == [
        (2, "update_preimage", "a", 1),
        (4, "update_postimage", "a", 4),
        (4, "insert", "c", 4),
    ]


def test_a_net_feed_keeps_the_rows_of_an_update_together(
    storage: Storage,
) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]), metadata="inline")
    for put in ([("b", 2, 2)], [("a", 2, 2)], [("c", 2, 2)], [("b", 3, 3)]):
        table.ingest(*rows(put), metadata="inline")
    assert changes_of(table, 2, mode="netChanges") == [
        (3, "update_preimage", "a", 1),
        (3, "update_postimage", "a", 2),
        (4, "update_preimage", "c", 1),
        (4, "update_postimage", "c", 2),
        (2, "update_preimage", "b", 1),
        (5, "update_postimage", "b", 3),
    ]


def test_a_restore_that_changes_nothing_visible_may_have_a_segment_begin_again(
    storage: Storage,
) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 5, 50)]), metadata="batch")
    table.ingest(*rows([("a", 1, 10)]), metadata="inline")
    table.metagen()
    table.ingest(*rows([("a", 9, None)]), metadata="inline")
    table.restore(version=1)
    table.ingest(*rows([("a", 2, 11)]), metadata="inline")
    table.metagen()
    assert changes_of(table, 2) == [
        (2, "insert", "a", 10),
        (3, "update_preimage", "a", 10),
        (3, "update_postimage", "a", 50),
        (4, "delete", "a", 50),
        (6, "insert", "a", 11),
        (7, "update_preimage", "a", 11),
        (7, "update_postimage", "a", 50),
    ]
    assert changes_of(table, 2, mode="netChanges") == [(7, "insert", "a", 50)]


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_feed_may_be_of_columns_that_the_old_rows_lack(
    file_format: str, storage: Storage
) -> None:
    table = create(storage, file_format=file_format)
    table.ingest(*rows([("a", 1, 10), ("b", 1, 11)]), metadata="inline")
    table.add_columns({"more": "string"})
    newer = pa.table({"sku": ["a"], "at": [2], "price": pa.array([20], pa.int32()), "more": ["m"]})
    table.ingest(newer, [False], metadata="inline")
    kinds = ["update_preimage", "update_postimage"]
    for columns in (["more"], ["sku", "more"], ["sku"], ["more", "price"]):
        feed = table.changes(3, columns=columns)
        assert feed["_change_type"].to_pylist() == kinds
        expected = {"sku": ["a", "a"], "more": [None, "m"], "price": [10, 20]}
        assert feed.select(columns).to_pydict() == {name: expected[name] for name in columns}
        assert table.changes(0, columns=columns).num_rows == 4


def test_events_written_after_a_lost_race_name_the_next_rows(
    storage: Storage,
) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1)]), metadata="inline")
    stall = StallingStore(storage, "_opal/log/")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(
            lambda: reopen(stall, "slow").ingest(
                *rows([("a", 3, 3), ("b", 2, 2)]), metadata="inline"
            )
        )
        stall.wait_until_stalled()
        table.ingest(*rows([("a", 2, 20), ("b", 3, 30)]), metadata="inline")
        stall.release()
        slow.result()
    logs = table.log.read_commit(3).actions.add_logs
    assert any("redo" in log.path for log in logs)
    events = [read_events(storage, log, with_next=True) for log in logs]
    assert all(part.next_rows is not None for part in events)
    assert plan_changes(table.log, version_range(table.log, 3)).has_pairs
    assert changes_of(table, 3) == [
        (3, "update_preimage", "a", 20),
        (3, "update_postimage", "a", 3),
    ]


@pytest.mark.parametrize(
    "ids, says",
    [
        (
            [(5 << 32, 0)],
            "row 0 of segment 4294967296 was replaced by a row of another version",
        ),
        ([(2 << 32, 1), (2 << 32, 0)], "rows replaced each other in a circle"),
        ([(2 << 32, 5)], "1 changed rows were replaced by rows that no data file holds"),
    ],
)
def test_wrong_next_rows_raise_a_format_error(
    ids: list[tuple[int, int]], says: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 1, 1)]), metadata="inline")
    table.ingest(*rows([("a", 2, 2), ("a", 3, 3)]), metadata="inline")
    read = read_events

    def forged(store: Storage, log: LogFile, *, with_next: bool) -> Events:
        events = read(store, log, with_next=with_next)
        assert events.next_rows is not None
        segment, offset = (
            np.array(column)
            for column in zip(*[*ids, *ids_of(events.next_rows)[len(ids) :]], strict=True)
        )
        return replace(events, next_rows=RowIds(segment=segment, offset=offset.astype(np.int32)))

    monkeypatch.setattr(pages, "read_events", forged)
    with pytest.raises(FormatError, match=re.escape(says)):
        table.changes(2)


def ids_of(rows: RowIds) -> list[tuple[int, int]]:
    return [*zip(rows.segment.tolist(), rows.offset.tolist(), strict=True)]


@pytest.mark.parametrize(
    "before, between, new, expected_then",
    [
        ([("a", 10, 1)], [("a", 20, None)], [("a", 5000, 7)], [("insert", 7)]),
        (
            [("a", 10, 1)],
            [("a", 20, 2)],
            [("a", 5000, 7)],
            [("update_preimage", 2), ("update_postimage", 7)],
        ),
        ([("a", 10, 1)], [("a", 20, 2)], [("a", 15, 7)], []),
        ([("a", 10, 1)], [("a", 20, None)], [("a", 15, 7)], []),
    ],
)
@pytest.mark.parametrize("by_keys", [False, True])
def test_a_dropped_row_that_a_running_job_ends_again_is_in_no_feed(
    before: list[Row],
    between: list[Row],
    new: list[Row],
    expected_then: list[tuple[str, int]],
    by_keys: bool,
    storage: Storage,
) -> None:
    """The job began before another one ended the row, and a compaction dropped it."""
    table = create(storage)
    table.ingest(*rows([*before, ("z", 1000, 0)]), metadata="inline")
    stall = StallingStore(storage, "_opal/log/")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lambda: reopen(stall, "slow").ingest(*rows(new), metadata="inline"))
        stall.wait_until_stalled()
        table.ingest(*rows(between), metadata="inline")
        reopen(storage, "compacting").compact(mode="major", look_back=100)
        stall.release()
        version = slow.result().version
    assert version is not None
    assert table.snapshot_at(version - 1).root.floor == 900
    assert sum(file.rows for file in table.snapshot_at(version - 1).files.values()) < 3
    for mode, is_net in (("none", False), ("netChanges", True)):
        assert [
            (kind, price) for _, kind, _, price in changes_of(table, version, version, mode=mode)
        ] == expected_then
        plan = plan_changes(table.log, version_range(table.log, version, version), is_net=is_net)
        assert plan.may_lack
        if by_keys:
            feed = read_changes(replace(plan, has_pairs=False), Changes(1, mode=mode)).to_pylist()
            assert [(row["_change_type"], row["price"]) for row in feed] == expected_then
    for earlier in range(version):
        assert applied(table, earlier, version) == content(table)


def test_a_late_row_changes_the_history_and_not_the_current_view(storage: Storage) -> None:
    table = create(storage)
    table.ingest(*rows([("ax", 5, 50)]), metadata="inline")
    table.ingest(*rows([("ax", 3, 30)]), metadata="inline")
    table.ingest(*rows([("ax", 4, None)]), metadata="inline")
    assert table.changes(2).num_rows == 0
    names = ("_commit_version", "_change_type", "price", "valid_from", "valid_until", "deleted")
    feed = table.changes(1, axis="event_time").select(names).to_pydict()
    assert [*zip(*feed.values(), strict=True)] == [
        (1, "insert", 50, 5, None, False),
        (2, "insert", 30, 3, 5, False),
        (3, "update_preimage", 30, 3, 5, False),
        (3, "update_postimage", 30, 3, 4, True),
    ]
    in_sum = table.changes(1, axis="event_time", mode="netChanges", columns=["price"]).to_pylist()
    assert [(row["_change_type"], row["price"], row["valid_until"]) for row in in_sum] == [
        ("insert", 50, None),
        ("insert", 30, 4),
    ]
    with pytest.raises(
        InvalidInputError, match="axis='time' is unknown; use one of commit, event_time"
    ):
        table.changes(1, axis="time")
    with pytest.raises(
        InvalidInputError, match="compute_updates='false' is a text, neither true nor false"
    ):
        table.changes(1, compute_updates="false")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(
        InvalidInputError,
        match="columns is a list with 1, which is a whole number; give a list, each a text",
    ):
        table.changes(1, columns=[1])  # type: ignore[list-item]  # wrong on purpose


def test_a_feed_of_the_history_does_not_read_the_lists_of_the_table_for_each_version(
    storage: Storage,
) -> None:
    table = history(storage, 30)
    read = FailingStore(storage)
    assert table_on(read, table.log.clock).changes(17, axis="event_time").num_rows > 0
    of_files = Counter(
        call.path
        for call in read.trace
        if call.path.startswith(layout.SECTIONS) and "-files" in call.path
    )
    assert of_files.total() > 0
    assert max(of_files.values()) <= 2, (
        "of the state before the feed, and of the first one after it"
    )


def test_a_feed_is_within_limits_of_its_rows_its_files_and_the_bytes_that_are_read(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 1, 10), ("b", 1, 20)]), metadata="inline")
    table.ingest(*rows([("a", 5, 11)]), metadata="inline")
    plan = plan_changes(table.log, version_range(table.log, 2))
    (span,) = plan.spans
    assert (span.concerned_rows, len(span.files)) == (2, 2)
    bytes_read = sum(span.bytes_read(file) for file in span.files)
    assert bytes_read == sum(file.size for file in span.files), (
        "a page cannot be larger than its file"
    )
    whole = sum(file.size for file in span.files if span.is_whole(file))
    assert 0 < whole < bytes_read
    limits = FeedLimits(rows=2, files=2, bytes=whole, local_bytes=bytes_read)
    assert plan.is_within(limits)
    assert not plan.is_within(replace(limits, rows=1))
    assert not plan.is_within(replace(limits, files=1))
    assert not plan.is_within(replace(limits, bytes=whole - 1))
    assert not plan.is_within(replace(limits, local_bytes=bytes_read - 1))
    no_changes = plan_changes(table.log, version_range(table.log, "latest"))
    assert no_changes.is_within(FeedLimits(rows=0, files=0, bytes=0, local_bytes=0))
    monkeypatch.setattr(changes, "is_local", lambda uri: False)
    assert not plan.is_within(limits)
    assert plan.is_within(replace(limits, bytes=bytes_read, local_bytes=0))
