"""Events as messages of a topic and in a folder, metrics on a port, and gaps as events."""

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from opal_stream.kafka.connection import Connection
from opal_stream.tracking.event_files import EventReader, FileLimits, FolderSink
from opal_stream.tracking.events import TopicSink, Tracker
from opal_stream.tracking.metrics import Metrics
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import new_topic
from tests.opal_stream.tracking.build import PARTITION, flush


def test_events_go_to_a_topic(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    tracker = Tracker(
        [TopicSink(Connection(bootstrap_servers=kafka.servers), topic)], table="lake/orders"
    )
    tracker.flushed(flush(3))
    tracker.gap(PARTITION, 3, 8)
    tracker.close()
    reader = Consumer({"bootstrap.servers": kafka.servers, "group.id": topic})
    reader.assign([TopicPartition(topic, 0, 0)])
    messages = reader.consume(2, 30)
    reader.close()
    events = [json.loads(message.value() or b"") for message in messages]
    assert [(event["event"], event["low"], event["high"], event["table"]) for event in events] == [
        ("flush", 0, 3, "lake/orders"),
        ("gap", 3, 8, "lake/orders"),
    ]
    assert {message.key() for message in messages} == {b"orders/1"}


def test_metrics_are_served_and_add_up() -> None:
    metrics = Metrics(port=0)
    tracker = Tracker(metrics=metrics)
    tracker.flushed(flush(3))
    tracker.flushed(flush(5))
    tracker.gap(PARTITION, 5, 9)
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = answer.read().decode().splitlines()
    tracker.close()
    labels = '{topic="orders",partition="1"}'
    for line in (
        f"opal_stream_records_total{labels} 8",
        f"opal_stream_bytes_total{labels} 80",
        f"opal_stream_position{labels} 5",
        f"opal_stream_lost_offsets_total{labels} 4",
        "opal_stream_flushes_total 2",
        "opal_stream_bad_messages_total 2",
        "opal_stream_commit_seconds 0.25",
    ):
        assert line in lines, lines
    [latency] = [
        float(line.split()[1])
        for line in lines
        if line.startswith(f"opal_stream_latency_seconds{labels}")
    ]
    assert 2 <= latency < 60


def test_a_missing_events_folder_is_logged_once_and_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "watched"
    tracker = Tracker([FolderSink(str(folder / "events"))], Metrics(path=str(folder / "m.prom")))
    tracker.flushed(flush(1))
    shutil.rmtree(folder)
    tracker.flushed(flush(2))
    assert [event["high"] for event in read_events(folder / "events")] == [
        2
    ]  # one that was deleted is made again
    shutil.rmtree(folder)
    folder.touch()
    for high in (3, 4, 5):
        tracker.flushed(flush(high))
        tracker.seen({PARTITION: (high, 9)})
    tracker.gap(PARTITION, 5, 6)
    assert len(caplog.messages) == 2
    assert "tracking events in" in caplog.messages[0]
    assert "cannot be written; the stream goes on without them" in caplog.messages[1]
    folder.unlink()
    caplog.clear()
    tracker.flushed(flush(7))
    tracker.flushed(flush(8))
    tracker.close()
    assert [event["high"] for event in read_events(folder / "events")] == [7, 8]
    assert (
        'opal_stream_position{topic="orders",partition="1"} 8\n' in (folder / "m.prom").read_text()
    )
    assert [message.split(" are ")[1] for message in caplog.messages] == [
        "written again, after 4 failed writes",
        "written again, after 7 failed writes",
    ]


def test_events_are_written_once_their_folder_can_be_made_though_it_could_not_at_first(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "events"
    folder.touch()
    tracker = Tracker([FolderSink(str(folder))])
    tracker.flushed(flush(1))
    folder.unlink()
    tracker.flushed(flush(2))
    assert [event["high"] for event in read_events(folder)] == [2]


FILLS = """
import resource, sys
from opal_stream.tracking.event_files import EventReader, FileLimits, FolderSink
from opal_stream.tracking.events import Tracker
from tests.opal_stream.tracking.build import flush
tracker = Tracker([FolderSink(sys.argv[1])])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for high in range(1, 7):
    tracker.flushed(flush(high))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
tracker.flushed(flush(7))
tracker.close()
"""


def test_a_disk_that_is_full_cuts_one_line_off_and_no_other(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", FILLS, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        env=environment(),
        check=True,
    )
    reader = EventReader(str(tmp_path))
    highs = [event["high"] for event in reader.read()]
    assert highs == [*range(1, len(highs)), 7]
    assert 1 < len(highs) < 7
    assert reader.broken == 1


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def read_events(folder: Path) -> list[dict[str, Any]]:
    return [*EventReader(str(folder)).read()]


def written(folder: Path, began: datetime, *lines: str) -> Path:
    """Write a file of another process, last written when it began."""
    path = folder / f"other-1-{began:%Y%m%d}-1.jsonl"
    path.write_text("".join(lines))
    os.utime(path, (began.timestamp(), began.timestamp()))
    return path


def line_of(at: datetime, low: int = 0) -> str:
    where = {"stream": "main", "topic": "orders", "topic_id": "t1", "partition": 1}
    return (
        json.dumps(
            {
                "event": "flush",
                "at": at.isoformat(timespec="milliseconds"),
                **where,
                "low": low,
                "high": low + 1,
            }
        )
        + "\n"
    )


def test_only_events_of_the_last_day_are_returned(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    junk = "no event, and no line that anybody should look at\n" * 3
    written(tmp_path, now - timedelta(days=2), junk)
    old = (line_of(now - timedelta(days=2, seconds=-second)) + junk for second in range(2000))
    path = written(
        tmp_path,
        now - timedelta(days=1, hours=1),
        *old,
        *(line_of(now, low) for low in range(1000)),
        '{"cut o',
    )
    os.utime(path)
    (tmp_path / "by-hand.jsonl").write_text("\0\0\n[1]\n\n" + line_of(now, 5000))
    reader = EventReader(str(tmp_path))
    assert sorted(event["low"] for event in reader.read()) == [*range(1000), 5000]
    near_the_begin = 64 * 1024 // len(junk) * 3
    assert 3 <= reader.broken <= 3 + near_the_begin


def test_files_are_of_a_day_and_a_size_and_old_ones_are_deleted(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    old, young = (
        written(tmp_path, now - timedelta(days=8), "x"),
        written(tmp_path, now - timedelta(days=6), "x" * 600),
    )
    (tmp_path / "mine.jsonl").write_text("x")
    os.utime(tmp_path / "mine.jsonl", (1, 1))
    sink = FolderSink(str(tmp_path))
    sink.send([{"n": 1}])
    assert not old.exists()
    assert young.exists()
    path = tmp_path / f"{socket.gethostname()}-{os.getpid()}-{datetime.now(UTC):%Y%m%d}-1.jsonl"
    FolderSink(str(tmp_path)).send([{"n": 2}])
    assert path.read_text() == '{"n": 1}\n{"n": 2}\n'
    sink = FolderSink(str(tmp_path), limits=FileLimits(file_bytes=10, kept_bytes=500))
    of_the_day = written(
        tmp_path, now - timedelta(hours=23), line_of(now - timedelta(hours=23), 7) + "x" * 600
    )
    sink.send([{"n": 3}])
    assert not young.exists()
    assert [event["low"] for event in read_events(tmp_path)] == [
        7
    ]  # `opal stream status` promises the last day
    assert sorted(file.name for file in tmp_path.iterdir() if file != of_the_day) == [
        "mine.jsonl",
        path.name,
        path.name.replace("-1.jsonl", "-2.jsonl"),
    ]
