"""Pages of the log: reads through them return the same, in fewer requests."""

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from opal_lake import layout
from opal_lake.errors import FormatError
from opal_lake.log.commit import canonical_json, seal
from opal_lake.log.pages import (
    Page,
    PageRef,
    cover,
    decode_page,
    encode_page,
    list_pages,
    span_of,
    store_page,
)
from opal_lake.log.tuning import Tuning
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.kit.strategies import History, histories
from tests.opal_lake.build import HISTORIES, SEED, play
from tests.opal_lake.hours import Hours
from tests.opal_lake.log.build import Counting
from tests.opal_lake.retention.build import at_hour, batch, grow, history
from tests.opal_lake.shop import copied, create, reopen, rows

LONG = "9000d"
# Pages that few versions fill, and readers that use each of them
MERGED_EARLY = Tuning(page_fan_in=2, page_least_versions=1)


def page_paths(storage: Storage) -> list[str]:
    return [stored.path for stored in storage.list(layout.LOG_PAGES)]


def without_pages(storage: Storage) -> Storage:
    other = copied(storage, MemoryStorage())
    other.delete(page_paths(other))
    return other


def feed(storage: Storage, start: int = 1, end: int | None = None, mode: str = "none") -> pa.Table:
    return at_hour(storage, 10_000).changes(start, end, mode=mode)


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


def assert_same_feeds(storage: Storage, start: int = 1, end: int | None = None) -> None:
    for mode in ("none", "netChanges"):
        expected = feed(without_pages(storage), start, end, mode)
        assert in_order(feed(storage, start, end, mode)).equals(in_order(expected)), (start, end)


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Storage:
    return open_storage(f"memory://pages-{request.node.name}")


def test_changes_of_many_small_commits_read_a_tenth_of_the_files() -> None:
    hours = Hours("memory://pages/requests", {}).upsert(200)
    store = Counting(hours.storage)
    hours.storage = store
    head = hours.table.snapshot_at().version
    store.asked.clear()
    assert hours.table.changes(1).num_rows == 10 + 15 * 199
    assert len(store.asked) <= 60, len(store.asked)
    assert store.below(layout.LOG) <= 10
    assert store.below(layout.SEGMENT_LOGS) <= 4
    store.asked.clear()
    assert len([*hours.table.history()]) == head + 1
    assert len(store.asked) <= 40, len(store.asked)
    store.asked.clear()
    hours.table.changes(head - 9)
    assert store.below(layout.LOG) + store.below(layout.LOG_PAGES) <= 12
    assert check_table(hours.table) == []


def test_pages_add_few_requests_to_writers(storage: Storage) -> None:
    store = Counting(storage)
    create(store, fold_files=0)
    store.asked.clear()
    for hour in range(1, 129):
        at_hour(store, hour).ingest(*rows(batch(hour)), metadata="inline")
    assert store.below(layout.LOG_PAGES) <= 0.6 * 128
    assert sum(verb == "put" and layout.LOG_PAGES in path for verb, path in store.asked) == 128 / 4


def test_sixteen_pages_are_merged_into_one(storage: Storage) -> None:
    history(storage, 72)
    spans = [(ref.first, ref.last) for ref in list_pages(storage)]
    assert spans[:4] == [(69, 72), (65, 68), (1, 64), (57, 60)]
    assert [span_of(version, 4, fan_in=16) for version in (4, 60, 64, 128, 1024, 2048, 4096)] == [
        *(4, 4, 64, 64, 1024, 1024, 1024)
    ]
    at_hour(storage, 72.5).retain(window=LONG)
    spans = [(ref.first, ref.last) for ref in list_pages(storage)]
    assert spans == [(69, 72), (65, 68), (1, 64)]
    assert check_table(at_hour(storage, 73)) == []


def test_page_holds_the_exact_bytes_of_its_commits(storage: Storage) -> None:
    history(storage, 64)
    for ref in list_pages(storage):
        page = decode_page(storage.get(ref.path), ref.path)
        assert sorted(page.commits) == [*range(ref.first, ref.last + 1)]
        for version, line in page.commits.items():
            assert line + b"\n" == storage.get(layout.commit_path(version))


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_feeds_through_pages_equal_those_of_the_log_itself(file_format: str) -> None:
    @seed(SEED)
    @settings(
        max_examples=max(1, HISTORIES // 2),
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(history=histories((file_format,)), draw=st.data())
    def run(history: History, draw: st.DataObject) -> None:
        replay = play(history, MERGED_EARLY)
        lost = draw.draw(st.lists(st.integers(0, 200), max_size=3))
        compare_with_log(replay.table, lost, lambda most: draw.draw(st.integers(0, most)))

    run()


def compare_with_log(table: Table, lost: list[int], number: Callable[[int], int]) -> None:
    """Check that without some pages feeds, histories and states stay the same."""
    storage = table.storage
    stored = page_paths(storage)
    storage.delete({stored[position % len(stored)] for position in lost if stored})
    plain = reopen(without_pages(storage))
    paged = reopen(storage, tuning=MERGED_EARLY)
    head = paged.snapshot_at().version
    for _ in range(3):
        start = number(head)
        end = start + number(head - start)
        after, expected = (each.log.commits_after(start - 1, end) for each in (paged, plain))
        assert after == expected
        for mode in ("none", "netChanges"):
            feeds = [in_order(each.changes(start, end, mode=mode)) for each in (paged, plain)]
            assert feeds[0].equals(feeds[1]), (start, end, mode)
        assert paged.snapshot_at(end).root == plain.snapshot_at(end).root
    assert [*paged.history()] == [*plain.history()]
    assert check_table(paged) == []


@pytest.mark.parametrize("mode", ["before", "after", "failed", "done_but_failed"])
def test_log_stays_complete_if_a_writer_dies_before_its_page(mode: Mode) -> None:
    sound = MemoryStorage()
    history(sound, 7, fold_files=0)
    dry = FailingStore(copied(sound, MemoryStorage()))
    grow(dry, range(8, 9))
    calls = [number for number, call in enumerate(dry.trace, 1)]
    near = [number for number in calls if layout.LOG_PAGES in dry.trace[number - 1].path]
    assert near
    for call in range(near[0] - 1, min(near[-1] + 4, len(calls) + 1)):
        storage = copied(sound, MemoryStorage())
        with suppress(Crash):
            grow(FailingStore(storage, call, mode), range(8, 9))
        grow(storage, range(9, 15))
        assert_same_feeds(storage)
        assert_same_feeds(storage, 3, 9)
        assert check_table(at_hour(storage, 20)) == [], call


def test_next_page_holds_the_commits_of_a_page_that_a_dead_writer_left_out(
    storage: Storage,
) -> None:
    history(storage, 7)
    trace = FailingStore(copied(storage, MemoryStorage()))
    grow(trace, range(8, 9))
    put = next(
        number
        for number, call in enumerate(trace.trace, 1)
        if call.verb == "put_if_absent" and call.path.startswith(layout.LOG_PAGES)
    )
    storage = copied(storage, MemoryStorage())
    with pytest.raises(Crash):
        grow(FailingStore(storage, put, "before"), range(8, 9))
    grow(storage, range(9, 13))
    assert [(ref.first, ref.last) for ref in list_pages(storage)] == [(5, 12), (1, 4)]


def test_a_savepoint_between_two_checkpoints_leaves_no_gap(storage: Storage) -> None:
    history(storage, 6)
    at_hour(storage, 6.5).savepoint("s", 6)
    grow(storage, range(8, 14))
    assert [(ref.first, ref.last) for ref in list_pages(storage)] == [(9, 12), (5, 8), (1, 4)]
    assert_same_feeds(storage)


def damage(data: bytes) -> Iterator[bytes]:
    yield b""
    yield data[:-1]
    yield data[:40] + bytes([data[40] ^ 1]) + data[41:]
    yield data + b"\0"


def test_a_damaged_page_is_not_used_and_is_found(storage: Storage) -> None:
    history(storage, 12)
    expected = feed(without_pages(storage))
    (path, *_) = page_paths(storage)
    sound = storage.get(path)
    for data in damage(sound):
        storage.delete([path])
        assert storage.put_if_absent(path, data)
        assert in_order(feed(storage)).equals(in_order(expected))
        findings = check_table(at_hour(storage, 20))
        assert [(finding.invariant, finding.path) for finding in findings] == [("I31", path)], data
        assert "delete it; it is derived" in findings[0].message
    storage.delete([path])
    assert in_order(feed(storage)).equals(in_order(expected))
    assert check_table(at_hour(storage, 20)) == []


def forge(storage: Storage, commits: dict[int, bytes], events: dict[str, bytes]) -> str:
    """Replace the newest page by one with other lines."""
    ref = list_pages(storage)[0]
    page = decode_page(storage.get(ref.path), ref.path)
    storage.delete([ref.path])
    before = {*page_paths(storage)}
    forged = Page(
        table_id=page.table_id,
        first=page.first,
        last=page.last,
        commits={**page.commits, **commits},
        events={**page.events, **events},
    )
    store_page(storage, forged)
    (path,) = {*page_paths(storage)} - before
    return path


def test_a_copy_of_another_write_is_not_used_and_is_found(storage: Storage) -> None:
    other = open_storage("memory://pages-other")
    for store in (storage, other):
        history(store, 12)
    for version in (9, 11):
        line = other.get(layout.commit_path(version)).rstrip(b"\n")
        line = line.replace(b'"write_id":"', b'"write_id":"x')
        body = line[len(b'{"crc32":"00000000","body":') : -1]
        path = forge(storage, {version: seal(body).rstrip(b"\n")}, {})
        assert_same_feeds(storage)
        findings = check_table(at_hour(storage, 20))
        assert {(finding.invariant, finding.path) for finding in findings} == {("I31", path)}


def test_copies_of_events_that_are_not_those_of_the_log_are_found(storage: Storage) -> None:
    history(storage, 12)
    ref = list_pages(storage)[0]
    page = decode_page(storage.get(ref.path), ref.path)
    (log, line), *_ = page.events.items()
    version, path_of_log, crc32, segments, *columns = json.loads(line)
    other_log = [version, path_of_log, crc32 ^ 1, [each + 1 for each in segments], *columns]
    for wrong in (line.replace(b"]]", b",7]]"), canonical_json(other_log)):
        path = forge(storage, {}, {log: wrong})
        assert_same_feeds(storage)
        assert [finding.path for finding in check_table(at_hour(storage, 20))] == [path]


def test_a_page_of_a_lost_end_of_the_log_is_not_used() -> None:
    storage = MemoryStorage()
    history(storage, 9)
    restored = copied(storage, MemoryStorage())
    grow(storage, range(10, 13))
    for hour in range(10, 14):
        # As many events, until the same time, of other rows, in logs of the same names
        values = [(f"k{(hour + more) % 3}", hour, 1) for more in range(3)]
        at_hour(restored, hour, "again").ingest(*rows(values), metadata="inline")
    own = list_pages(restored, 12)[0].path
    lost = list_pages(storage, 12)[0].path
    restored.delete([own])
    assert restored.put_if_absent(lost, storage.get(lost))
    assert_same_feeds(restored)
    assert_same_feeds(restored, 10)
    findings = check_table(at_hour(restored, 25))
    assert {(finding.invariant, finding.path) for finding in findings} == {("I31", lost)}


def test_retention_keeps_no_copy_of_an_expired_commit(storage: Storage) -> None:
    history(storage, 66)
    for hour, oldest in ((66.5, 40), (66.6, 63)):
        window = f"{int(66.5 - oldest)}h"
        result = at_hour(storage, hour).retain(window=window, grace="1h")
        table = at_hour(storage, hour + 0.01)
        oldest = table.snapshot_at().root.oldest_version
        assert result.counts["log_pages"] > 0
        refs = list_pages(storage)
        assert refs
        assert all(ref.first > oldest for ref in refs), refs
        spans = sorted((ref.first, ref.last) for ref in refs)
        assert all(span[1] < other[0] for span, other in pairwise(spans))
        for ref in refs:
            page = decode_page(storage.get(ref.path), ref.path)
            assert min(page.commits) > oldest
            assert len(page.commits) == ref.last - ref.first + 1
        assert_same_feeds(storage, oldest + 1)
        assert check_table(table) == []


def test_a_reader_far_behind_the_log_asks_for_no_expired_commit(storage: Storage) -> None:
    history(storage, 60)
    at_hour(storage, 60.5).retain(window="10h", grace="1h")
    store = Counting(storage)
    table = at_hour(store, 61)
    head = table.snapshot_at()
    store.asked.clear()
    commits = table.log.commits_after(0, head.version)
    versions = [commit.version for commit in commits]
    assert versions == [*range(versions[0], head.version + 1)]
    assert versions[0] <= head.root.oldest_version
    assert len(store.asked) <= 24, store.asked


def test_a_retention_without_expiry_deletes_what_longer_pages_replaced(storage: Storage) -> None:
    history(storage, 66)
    dry = at_hour(storage, 66.5).retain(window=LONG, dry_run=True)
    result = at_hour(storage, 66.5).retain(window=LONG)
    # The 15 pages of four versions each, up to version 60
    assert dry.counts["log_pages"] == result.counts["log_pages"] == 15
    assert [(ref.first, ref.last) for ref in list_pages(storage)] == [(1, 64)]
    assert_same_feeds(storage)


def test_later_merges_bring_no_expired_commit_back(storage: Storage) -> None:
    history(storage, 60)
    at_hour(storage, 60.5).retain(window="10h", grace="1h")
    oldest = at_hour(storage, 61).snapshot_at().root.oldest_version
    grow(storage, range(62, 66))
    (ref, *_) = list_pages(storage)
    assert (ref.first, ref.last) == (oldest + 1, 64)
    assert_same_feeds(storage, oldest + 1)


def ref_of(first: int, last: int, size: int = 1) -> PageRef:
    return PageRef(
        path=layout.log_page_path(first, last, size), first=first, last=last, crc32=size, size=size
    )


@given(
    spans=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20)), max_size=12),
    first=st.integers(1, 40),
    length=st.integers(0, 40),
)
def test_cover_holds_every_version_that_is_in_any_page(
    spans: list[tuple[int, int]], first: int, length: int
) -> None:
    refs = [ref_of(start, start + more, size) for size, (start, more) in enumerate(spans)]
    last = first + length
    wanted = {*range(first, last + 1)}
    had = {version for ref in refs for version in range(ref.first, ref.last + 1)} & wanted
    chosen = cover(refs, first, last)
    covered = {version for ref in chosen for version in range(ref.first, ref.last + 1)} & wanted
    assert covered == had
    assert len({*chosen}) == len(chosen) <= len(refs)


def test_name_of_a_page_is_parsed_to_its_versions_and_checksum() -> None:
    path = layout.log_page_path(5, 1028, 0xAB)
    assert layout.log_page_place(path) == (5, 1028, 0xAB)
    assert path > layout.log_pages_start_after(1028) > layout.log_page_path(1, 1029, 0)
    assert layout.log_page_place(path + "x") is None
    assert layout.log_page_place(layout.LOG_PAGES + "readme.txt") is None


def test_page_that_contradicts_its_head_is_damaged() -> None:
    page = Page(table_id="t", first=1, last=3, commits={1: b"{}", 3: b"{}"}, events={})
    data = encode_page(page)
    path = layout.log_page_path(1, 3, zlib.crc32(data))
    assert decode_page(data, path) == page
    assert page.commit(2) is None
    with pytest.raises(Exception, match="other versions than its name"):
        decode_page(data, layout.log_page_path(1, 4, zlib.crc32(data)))


def test_a_table_on_local_files_is_read_through_pages(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "t"))
    history(storage, 20)
    assert_same_feeds(storage)
    assert check_table(at_hour(storage, 21)) == []


def updated_table(uri: str, keys: str, writer: str) -> Storage:
    """Make a table with a commit that inserts three keys, and one for each update."""
    storage = open_storage(uri)
    create(storage, fold_files=0)
    table = reopen(storage, writer)
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]), metadata="inline")
    for at, key in enumerate(keys, 2):
        table.ingest(*rows([(key, at, at)]), metadata="inline")
    return storage


def put_pages(source: Storage, target: Storage) -> list[str]:
    """Copy the pages of a table into another one."""
    before = {*page_paths(target)}
    for path in page_paths(source):
        target.put_if_absent(path, source.get(path))
    return sorted({*page_paths(target)} - before)


@pytest.mark.parametrize("has_own", [True, False])
def test_a_page_of_another_table_is_not_used(has_own: bool) -> None:
    other = updated_table(f"memory://pages-foreign-{has_own}", "aaaaaaa", "x")
    storage = updated_table(f"memory://pages-own-{has_own}", "bcccccc", "y")
    own = page_paths(storage)
    foreign = put_pages(other, storage)
    if not has_own:
        storage.delete(own)
    assert foreign
    assert_same_feeds(storage)
    assert_same_feeds(storage, 2)
    assert_same_feeds(storage, 2, 6)
    findings = check_table(reopen(storage, "c"))
    assert sorted(finding.path for finding in findings) == foreign
    assert all("it belongs to table" in finding.message for finding in findings)
    reopen(storage, "r").retain(window=LONG)
    # A retention reads those pages only that share versions with others
    assert {*page_paths(storage)}.isdisjoint(foreign) == has_own
    assert_same_feeds(storage)


def test_a_longer_page_of_another_table_is_not_taken_for_lost_commits() -> None:
    other = updated_table("memory://pages-longer", "a" * 11, "x")
    storage = updated_table("memory://pages-shorter", "a" * 5, "y")
    put_pages(other, storage)
    messages = [finding.message for finding in check_table(reopen(storage, "c"))]
    assert messages
    assert not [message for message in messages if "lost" in message]


def test_damaged_wide_page_is_not_used_and_retention_deletes_it(storage: Storage) -> None:
    history(storage, 62)
    before = page_paths(storage)
    counted = Counting(storage)
    feed(counted)
    bad = layout.log_page_path(1, 62, 0xABCDEF)
    assert storage.put_if_absent(bad, b"")
    again = Counting(storage)
    feed(again)
    assert len(again.asked) <= len(counted.asked) + 2
    assert at_hour(storage, 62.5).retain(window=LONG).counts["log_pages"] == 1
    assert page_paths(storage) == before


def test_retention_keeps_the_copies_that_a_wider_page_lacks(storage: Storage) -> None:
    history(storage, 66)
    (wide,) = [ref for ref in list_pages(storage) if ref.last - ref.first > 4]
    page = decode_page(storage.get(wide.path), wide.path)
    storage.delete([wide.path])
    commits = {version: line for version, line in page.commits.items() if version != 30}
    store_page(storage, replace(page, commits=commits))
    at_hour(storage, 66.5).retain(window=LONG)
    spans = [(ref.first, ref.last) for ref in list_pages(storage)]
    assert spans == [(1, 64), (29, 32)]


def test_a_writer_that_cannot_fill_a_merge_stores_its_own_span(storage: Storage) -> None:
    history(storage, 63)
    lost = [ref.path for ref in list_pages(storage) if 20 < ref.last < 40]
    storage.delete(lost)
    grow(storage, range(64, 65), tuning=Tuning(page_max_filled=4))
    newest = list_pages(storage)[0]
    assert (newest.first, newest.last) == (61, 64)


def test_history_with_a_damaged_commit_reads_each_commit_a_few_times(
    storage: Storage,
) -> None:
    history(storage, 120)
    path = layout.commit_path(8)
    data = storage.get(path)
    storage.delete([path, *page_paths(storage)])
    storage.put_if_absent(path, data[:-3] + b"x\n")
    store = Counting(storage)
    with pytest.raises(FormatError):
        [*at_hour(store, 121).history()]
    assert store.below(layout.LOG) <= 4 * 121


def test_a_narrow_range_is_not_read_from_a_wide_page(storage: Storage) -> None:
    history(storage, 66)
    at_hour(storage, 66.5).retain(window=LONG)
    store = Counting(storage)
    for cost, pages_read in ((1 << 20, 1), (16, 0)):
        log = at_hour(store, 67, tuning=Tuning(page_commit_bytes=cost)).log
        store.asked.clear()
        assert len(log.commits_after(20, 24)) == 4
        asked = [path for verb, path in store.asked if verb == "get"]
        assert sum(path.startswith(layout.LOG_PAGES) for path in asked) == pages_read
