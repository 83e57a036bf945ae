"""What a stream counts into its table, hour by hour, and what becomes of it when processes die or the store fails."""

import time
from contextlib import suppress
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from opal_stream.kafka.taken import Taken
from opal_stream.kafka.topics import Partition, Topic
from opal_stream.plan import recorder
from opal_stream.plan.known import counted_traffic
from opal_stream.plan.recorder import TrafficRecorder, begin_count, count_taken
from opal_stream.traffic.hours import DAY, HOUR_MS, MOST_WEEKS, WEEK, Traffic, Volume, hour_of_week
from tests.kit.check import check_table
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.opal_stream.orders import new_spec, new_table

NOW_NS = time.time_ns()
NOW = NOW_NS // 1_000_000 // HOUR_MS
PART = Partition(topic="orders", number=0)
TOPIC = Topic(name="orders", id="id", partitions=(0, 1))
IDS = {"orders": "id"}


@pytest.fixture(autouse=True)
def _within_one_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW_NS)


def taken(
    low: int, high: int, hour: int = NOW, *, until: int | None = None, size: int = 100
) -> Taken:
    last = hour if until is None else until
    return Taken(
        low=low,
        high=high,
        records=high - low,
        bytes=size * (high - low),
        oldest_ms=hour * HOUR_MS,
        newest_ms=last * HOUR_MS + HOUR_MS - 1,
    )


def kept(table: Table) -> dict[Partition, Traffic]:
    return counted_traffic(table, "main", [TOPIC])


def documents(table: Table) -> int:
    return len([*table.storage.list(layout.TRAFFIC)])


def test_a_process_goes_on_with_what_others_have_counted(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    first = TrafficRecorder(table, "main")
    first.flushed({PART: taken(0, 10), Partition(topic="orders", number=1): taken(0, 5)}, IDS)
    first.flushed({PART: taken(10, 30)}, IDS)
    assert documents(table) == 0  # seldom
    first.close()
    second = TrafficRecorder(table, "main")
    second.flushed({PART: taken(30, 40)}, IDS)
    second.close()
    found = kept(table)
    assert (found[PART].current, found[PART].position) == (Volume(40, 4000), 40)
    assert found[Partition(topic="orders", number=1)].current == Volume(5, 500)
    assert (
        kept(table).keys()
        == counted_traffic(table, "main", [TOPIC]).keys()
        != counted_traffic(table, "other", [TOPIC]).keys()
    )
    assert documents(table) == 2
    assert check_table(table) == []


def test_it_is_written_every_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    monkeypatch.setattr(recorder, "EVERY_S", 0)
    one = TrafficRecorder(table, "main")
    for at in range(5):
        one.flushed({PART: taken(at, at + 1)}, IDS)
    assert (documents(table), kept(table)[PART].position) == (1, 5)


def test_what_a_killed_process_had_not_written_is_told_by_positions() -> None:
    known = Traffic(hour=NOW - 4, position=100, current=Volume(100, 10_000))
    traffic = begin_count(known, taken(600, 610), NOW)
    assert (traffic.hour, traffic.current) == (NOW, Volume(100, 10_000))
    assert [traffic.means[hour_of_week(NOW - ago)][1].messages for ago in (4, 3, 2, 1)] == [
        200,
        100,
        100,
        100,
    ]


def test_messages_count_in_the_hours_of_their_stamps() -> None:
    traffic = Traffic(hour=NOW - 10)
    count_taken(traffic, taken(0, 600, NOW - 10, until=NOW - 5), NOW)
    assert [traffic.means[hour_of_week(NOW - ago)][1] for ago in range(6, 11)] == [
        Volume(100, 10_000)
    ] * 5
    count_taken(traffic, taken(600, 700, NOW + 10 * DAY), NOW)  # stamps of the future
    assert (traffic.hour, traffic.current.messages) == (NOW, 100)


def test_older_messages_than_are_kept_do_not_count() -> None:
    long_ago = NOW - 2 * MOST_WEEKS * WEEK
    traffic = begin_count(None, taken(0, 1000, long_ago), NOW)
    count_taken(traffic, taken(0, 1000, long_ago), NOW)
    assert (traffic.position, traffic.current, traffic.means) == (1000, Volume(), {})


def test_who_knows_no_bytes_takes_the_usual_ones() -> None:
    traffic = Traffic(hour=NOW)
    count_taken(traffic, taken(0, 10), NOW)
    count_taken(traffic, Taken(low=10, high=20, records=10), NOW)
    assert traffic.current == Volume(20, 2000)


@pytest.mark.parametrize("mode", ["failed", "done_but_failed", "before", "after"])
def test_a_store_that_fails_anywhere_stops_nothing_and_a_process_that_dies_harms_nothing(
    mode: Mode,
) -> None:
    inner = MemoryStorage()
    table = create_on(inner, new_spec())
    before = TrafficRecorder(table, "main")
    before.flushed({PART: taken(0, 10)}, IDS)
    before.close()
    position = 10
    for fail_at in range(1, 30):
        store = FailingStore(inner, fail_at, mode)
        one = TrafficRecorder(table_on(store), "main")
        with suppress(Crash):
            one.flushed({PART: taken(position, position + 1)}, IDS)
            one.close()
        position += 1
        again = TrafficRecorder(table, "main")
        again.flushed({PART: taken(position, position + 1)}, IDS)
        again.close()
        position += 1
        assert kept(table)[PART].current.messages == position  # positions tell what was not counted
        assert documents(table) == 1
        if len(store.trace) < fail_at:
            return
    pytest.fail("there is no end of calls")
