"""Events as messages of a topic, metrics on a port, and gaps as events."""

import json
import time
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from opal_stream.kafka.connection import Connection
from opal_stream.kafka.taken import Taken
from opal_stream.kafka.topics import Partition
from opal_stream.tracking.events import FlushEvents, FolderSink, TopicSink, Tracker
from opal_stream.tracking.metrics import Metrics
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import new_topic

PARTITION = Partition(topic="orders", number=1)


def flush(high: int) -> FlushEvents:
    moment_ms = time.time_ns() // 1_000_000 - 2_000
    taken = Taken(low=0, high=high, records=high, bytes=10 * high, oldest_ms=moment_ms, newest_ms=moment_ms)
    return FlushEvents(taken={PARTITION: taken}, version=4, took_s=0.25, bad=1)


def test_events_go_to_a_topic(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    tracker = Tracker([TopicSink(Connection(bootstrap_servers=kafka.servers), topic)], table="lake/orders")
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
    [latency] = [float(line.split()[1]) for line in lines if line.startswith(f"opal_stream_latency_seconds{labels}")]
    assert 2 <= latency < 60


def test_a_sink_that_fails_stops_nothing(tmp_path: Path) -> None:
    sink = FolderSink(str(tmp_path))
    sink.close()
    Tracker([sink]).flushed(flush(1))
