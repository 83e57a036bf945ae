"""The traffic that a stream counts into its table, also when processes die or the store fails."""

import time
from contextlib import suppress
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition, Topic
from opal_stream.plan.known import counted_traffic
from opal_stream.plan.recorder import TrafficRecorder, begin_count, count_consumed
from opal_stream.traffic.hours import DAY, HOUR_MS, MAX_WEEKS, WEEK, Traffic, Volume, hour_of_week
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


def consumed_range(
    low: int, high: int, hour: int = NOW, *, until: int | None = None, size: int = 100
) -> Consumed:
    last = hour if until is None else until
    return Consumed(
        low=low,
        high=high,
        records=high - low,
        bytes=size * (high - low),
        oldest_ms=hour * HOUR_MS,
        newest_ms=last * HOUR_MS + HOUR_MS - 1,
    )


def recorded(table: Table) -> dict[Partition, Traffic]:
    return counted_traffic(table, "main", [TOPIC])


def documents(table: Table) -> int:
    return len([*table.storage.list(layout.TRAFFIC)])


def test_a_process_goes_on_with_what_others_have_counted(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    first = TrafficRecorder(table, "main")
    first.flushed(
        {PART: consumed_range(0, 10), Partition(topic="orders", number=1): consumed_range(0, 5)},
        IDS,
    )
    first.flushed({PART: consumed_range(10, 30)}, IDS)
    assert documents(table) == 0  # seldom
    first.close()
    second = TrafficRecorder(table, "main")
    second.flushed({PART: consumed_range(30, 40)}, IDS)
    second.close()
    actual = recorded(table)
    assert (actual[PART].current, actual[PART].position) == (Volume(40, 4000), 40)
    assert actual[Partition(topic="orders", number=1)].current == Volume(5, 500)
    assert (
        recorded(table).keys()
        == counted_traffic(table, "main", [TOPIC]).keys()
        != counted_traffic(table, "other", [TOPIC]).keys()
    )
    assert documents(table) == 2
    assert check_table(table) == []


def test_traffic_is_written_every_hour(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    recorder = TrafficRecorder(table, "main", every_s=0)
    for at in range(5):
        recorder.flushed({PART: consumed_range(at, at + 1)}, IDS)
    assert (documents(table), recorded(table)[PART].position) == (1, 5)


def test_positions_show_the_messages_that_a_killed_process_did_not_count() -> None:
    known = Traffic(hour=NOW - 4, position=100, current=Volume(100, 10_000))
    traffic = begin_count(known, consumed_range(600, 610), NOW)
    assert (traffic.hour, traffic.current) == (NOW, Volume(100, 10_000))
    assert [traffic.means[hour_of_week(NOW - ago)][1].messages for ago in (4, 3, 2, 1)] == [
        200,
        100,
        100,
        100,
    ]


def test_messages_count_in_the_hours_of_their_stamps() -> None:
    traffic = Traffic(hour=NOW - 10)
    count_consumed(traffic, consumed_range(0, 600, NOW - 10, until=NOW - 5), NOW)
    assert [traffic.means[hour_of_week(NOW - ago)][1] for ago in range(6, 11)] == [
        Volume(100, 10_000)
    ] * 5
    count_consumed(traffic, consumed_range(600, 700, NOW + 10 * DAY), NOW)  # stamps of the future
    assert (traffic.hour, traffic.current.messages) == (NOW, 100)


def test_older_messages_than_are_kept_do_not_count() -> None:
    long_ago = NOW - 2 * MAX_WEEKS * WEEK
    traffic = begin_count(None, consumed_range(0, 1000, long_ago), NOW)
    count_consumed(traffic, consumed_range(0, 1000, long_ago), NOW)
    assert (traffic.position, traffic.current, traffic.means) == (1000, Volume(), {})


def test_messages_without_a_size_count_with_the_usual_size() -> None:
    traffic = Traffic(hour=NOW)
    count_consumed(traffic, consumed_range(0, 10), NOW)
    count_consumed(traffic, Consumed(low=10, high=20, records=10), NOW)
    assert traffic.current == Volume(20, 2000)


@pytest.mark.parametrize("mode", ["failed", "done_but_failed", "before", "after"])
def test_a_store_that_fails_anywhere_stops_nothing_and_a_process_that_dies_harms_nothing(
    mode: Mode,
) -> None:
    inner = MemoryStorage()
    table = create_on(inner, new_spec())
    before = TrafficRecorder(table, "main")
    before.flushed({PART: consumed_range(0, 10)}, IDS)
    before.close()
    position = 10
    for fail_at in range(1, 30):
        store = FailingStore(inner, fail_at, mode)
        recorder = TrafficRecorder(table_on(store), "main")
        with suppress(Crash):
            recorder.flushed({PART: consumed_range(position, position + 1)}, IDS)
            recorder.close()
        position += 1
        again = TrafficRecorder(table, "main")
        again.flushed({PART: consumed_range(position, position + 1)}, IDS)
        again.close()
        position += 1
        assert (
            recorded(table)[PART].current.messages == position
        )  # positions tell what was not counted
        assert documents(table) == 1
        if len(store.trace) < fail_at:
            return
    pytest.fail("there is no end of calls")
