"""Alarms by status and events, and what `opal stream status` says of them."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from opal_lake.cli import main
from opal_lake.exit_codes import FINDINGS, INPUT, OK
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.tracking.alarms import AlarmLimits, find_alarms
from opal_stream.tracking.event_files import EventReader, FolderSink
from opal_stream.tracking.events import FlushEvents, Tracker
from opal_stream.tracking.metrics import Metrics
from opal_stream.tracking.status import PartitionStatus
from tests.fixtures_cli import metadata, opal_commands
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import new_table, new_topic, order, read

__all__ = ["metadata", "opal_commands"]

PARTITION = Partition(topic="orders", number=1)
ENTRY = PartitionStatus(
    stream="main",
    topic="orders",
    partition=1,
    position=10,
    end=110,
    lag=100,
    rate=0,
    committed=None,
    topic_id="t1",
    waiting_s=90,
    has_moved=False,
)


def read_events(folder: str, now: datetime | None = None) -> list[dict[str, Any]]:
    return [*EventReader(folder, now).read()]


def kinds(
    entry: PartitionStatus, limits: AlarmLimits, events: list[dict[str, Any]] | None = None
) -> list[str]:
    return [alarm.kind for alarm in find_alarms([entry], limits, events or [])]


@pytest.mark.parametrize(
    "entry, limits, expected",
    [
        (ENTRY, AlarmLimits(), []),
        (ENTRY, AlarmLimits(lag=99), ["lag"]),
        (ENTRY, AlarmLimits(lag=100), []),
        (ENTRY, AlarmLimits(stall_s=90), ["stall"]),
        (ENTRY, AlarmLimits(stall_s=91), []),
        (replace(ENTRY, has_moved=True), AlarmLimits(stall_s=1), []),
        (replace(ENTRY, lag=0), AlarmLimits(lag=0, stall_s=1), []),
        (replace(ENTRY, lost=3), AlarmLimits(), ["loss"]),
        (replace(ENTRY, end=None, lag=None), AlarmLimits(lag=0, stall_s=1), []),
    ],
)
def test_a_status_beyond_its_limits_is_an_alarm(
    entry: PartitionStatus, limits: AlarmLimits, expected: list[str]
) -> None:
    assert kinds(entry, limits) == expected


def flush(tracker: Tracker, low: int, high: int, records: int, topic_id: str = "t1") -> None:
    consumed = Consumed(
        low=low, high=high, records=records, bytes=records, oldest_ms=time.time_ns() // 1_000_000
    )
    tracker.flushed(
        FlushEvents(
            consumed={PARTITION: consumed},
            version=1,
            took_s=0.1,
            bad=0,
            topic_ids={"orders": topic_id},
        )
    )


def test_events_show_loss_and_duplicates_of_the_topic_that_is_there_now(tmp_path: Path) -> None:
    metrics = Metrics()
    tracker = Tracker([FolderSink(str(tmp_path))], metrics)
    flush(tracker, 0, 50, 50, "t0")
    tracker.close()
    assert kinds(ENTRY, AlarmLimits(), read_events(str(tmp_path))) == []
    tracker = Tracker([FolderSink(str(tmp_path))], metrics)
    flush(tracker, 0, 10, 10)
    flush(tracker, 12, 20, 7)
    assert kinds(ENTRY, AlarmLimits(), read_events(str(tmp_path))) == []
    tracker.gap(PARTITION, 20, 25, "t1")
    flush(tracker, 25, 30, 5)
    assert kinds(ENTRY, AlarmLimits(), read_events(str(tmp_path))) == ["loss"]
    flush(tracker, 28, 31, 3)
    tracker.close()
    with next(tmp_path.iterdir()).open("a") as file:
        file.write('{"half')
    events = read_events(str(tmp_path))
    assert kinds(ENTRY, AlarmLimits(), events) == ["duplicates", "loss"]
    assert [event["skipped"] for event in events if event["event"] == "flush"] == [0, 0, 3, 0, 0]
    assert [event["repeated"] for event in events if event["event"] == "flush"] == [0, 0, 0, 0, 2]
    assert 'opal_stream_skipped_offsets_total{topic="orders",partition="1"} 3\n' in metrics.text()
    assert 'opal_stream_repeated_messages_total{topic="orders",partition="1"} 2\n' in metrics.text()
    assert read_events(str(tmp_path), datetime(2999, 1, 1, tzinfo=UTC)) == []


def test_two_commits_of_one_range_are_an_alarm_also_of_two_processes(tmp_path: Path) -> None:
    for _ in range(2):
        tracker = Tracker([FolderSink(str(tmp_path))])
        flush(tracker, 5, 9, 4)
        tracker.close()
    [alarm] = find_alarms([ENTRY], AlarmLimits(), read_events(str(tmp_path)))
    assert (alarm.kind, alarm.message) == (
        "duplicates",
        "main orders/1: 4 messages came twice in the last day",
    )


def test_an_event_names_its_partition_its_stream_and_its_process(tmp_path: Path) -> None:
    tracker = Tracker([FolderSink(str(tmp_path))], table="lake/orders")
    flush(tracker, 0, 3, 3)
    tracker.close()
    [event] = read_events(str(tmp_path))
    wanted = {
        "topic",
        "partition",
        "low",
        "high",
        "records",
        "bytes",
        "latency_ms",
        "host",
        "process",
        "table",
        "stream",
        "at",
        "version",
    }
    assert wanted <= {name for name, value in event.items() if value is not None}


def test_stalls_grow_while_nothing_moves_and_end_with_the_lag() -> None:
    metrics = Metrics()

    def stalled() -> float:
        [line] = [
            line
            for line in metrics.text().splitlines()
            if line.startswith("opal_stream_stalled_seconds{")
        ]
        return float(line.split()[1])

    metrics.seen({("orders", 1): (5, 9)})
    time.sleep(0.25)
    metrics.seen({("orders", 1): (5, 10)})
    assert 0.2 <= stalled() < 30
    assert 'opal_stream_lag{topic="orders",partition="1"} 5\n' in metrics.text()
    metrics.seen({("orders", 1): (6, 10)})
    assert stalled() < 0.2
    time.sleep(0.15)
    metrics.seen({("orders", 1): (10, 10)})
    assert stalled() == 0


def test_a_transaction_that_opens_or_ends_at_a_position_does_not_start_its_clock_again() -> None:
    metrics = Metrics()
    labels = '{topic="orders",partition="1"}'

    def seconds(name: str) -> float:
        start = f"opal_stream_{name}_seconds{labels} "
        [line] = [line for line in metrics.text().splitlines() if line.startswith(start)]
        return float(line.removeprefix(start))

    metrics.seen({("orders", 1): (5, 9)})
    time.sleep(0.2)
    metrics.seen({("orders", 1): (5, 9)}, {("orders", 1)})
    assert (seconds("stalled"), seconds("transaction") >= 0.2) == (0, True)
    metrics.seen({("orders", 1): (5, 9)})
    assert (seconds("stalled") >= 0.2, seconds("transaction")) == (True, 0)


@pytest.mark.usefixtures("opal_commands")
def test_the_command_reports_lag_and_stall_and_ends_with_1(
    kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, topic = new_table(tmp_path), new_topic(kafka)
    kafka.produce(topic, [order(1)])
    read(table, kafka, topic)
    time.sleep(1.2)
    kafka.produce(topic, [order(2), order(3)])
    words = ["stream", "status", table.uri, "--bootstrap-servers", kafka.servers]
    assert main([*words, "--alarm-lag", "2", "--alarm-stall", "1h"]) == OK
    capsys.readouterr()
    time.sleep(1.2)
    assert main([*words, "--alarm-lag", "1", "--alarm-stall", "1s"]) == FINDINGS
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert lines[0] == f"lag: main {topic}/0 is 2 messages behind, more than 1"
    assert lines[1].startswith(
        f"stall: main {topic}/0 stays at 1, and its next message has waited for "
    )
    assert main([*words, "--alarm-lag", "1", "--json"]) == FINDINGS
    [entry] = json.loads(capsys.readouterr().out)
    assert [alarm["kind"] for alarm in entry["alarms"]] == ["lag"]
    read(table, kafka, topic)
    assert main([*words, "--alarm-lag", "1", "--alarm-stall", "1s"]) == OK
    assert main(["stream", "status", table.uri, "--alarm-lag", "1"]) == INPUT
    assert main([*words, "--tracking", str(tmp_path / "none")]) == INPUT


@pytest.mark.usefixtures("opal_commands")
def test_the_command_leaves_out_broken_lines_and_says_how_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "events"
    tracker = Tracker([FolderSink(str(folder))])
    flush(tracker, 0, 3, 3)
    tracker.close()
    words = ["stream", "status", new_table(tmp_path).uri, "--tracking", str(folder)]
    assert main(words) == OK
    assert capsys.readouterr().err == ""
    with next(folder.iterdir()).open("a") as file:
        file.write('{"cut o')
    assert main(words) == OK
    assert (
        capsys.readouterr().err
        == f"opal stream status: left out 1 broken line of tracking events in {folder}\n"
    )
