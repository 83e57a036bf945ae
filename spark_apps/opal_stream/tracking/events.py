"""Tracking events, one for each partition of each flush.

They are lines of JSON in a folder, or messages of a Kafka topic.
"""

import json
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from confluent_kafka import Producer

from opal_stream.kafka.connection import Connection
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.tracking.event_files import Event
from opal_stream.tracking.metrics import Metrics
from opal_stream.tracking.outage import Outage

_CLOSE_S = 5.0  # for the last messages of a sink


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushEvents:
    """The result of a flush: a commit ("flush"), or gathered files ("gathered")."""

    consumed: Mapping[Partition, Consumed]
    version: int | None
    took_s: float
    bad: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    event: str = "flush"


class Sink(Protocol):
    """A destination of events; its text names what is written there."""

    def send(self, events: Sequence[Event]) -> None: ...
    def close(self) -> None: ...


class Listener(Protocol):
    """A listener to what was committed."""

    def flushed(
        self, consumed: Mapping[Partition, Consumed], topic_ids: Mapping[str, str]
    ) -> None: ...
    def close(self) -> None: ...


class TopicSink:
    """A topic to write events to, each as a message whose key is its partition."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._producer = Producer({"linger.ms": 50, **connection.client()})
        self._topic = topic

    def __str__(self) -> str:
        return f"tracking events in topic {self._topic}"

    def send(self, events: Sequence[Event]) -> None:
        for event in events:
            key = f"{event['topic']}/{event['partition']}".encode()
            self._producer.produce(self._topic, json.dumps(event).encode(), key=key)
        self._producer.poll(0)

    def close(self) -> None:
        self._producer.flush(_CLOSE_S)


class Reporter(Protocol):
    """A reporter of progress to whoever watches the process."""

    def flushed(self, flush: FlushEvents) -> None: ...
    def gap(self, partition: Partition, offsets: int) -> None: ...


class Tracker:
    """The tracker of a stream: it notifies sinks, metrics, listeners and the watcher.

    The watcher is notified by `reporter`. A failure of a sink never stops the stream.
    """

    def __init__(
        self,
        sinks: Sequence[Sink] = (),
        metrics: Metrics | None = None,
        *,
        table: str = "",
        stream: str = "main",
        listeners: Sequence[Listener] = (),
        reporter: Reporter | None = None,
    ) -> None:
        self._sinks = [(sink, Outage(str(sink))) for sink in sinks]
        self._listeners = list(listeners)
        self._metrics = metrics
        self._reporter = reporter
        self._reached: dict[Partition, int] = {}
        self._origin = {
            "table": table,
            "stream": stream,
            "host": socket.gethostname(),
            "process": os.getpid(),
        }

    def flushed(self, flush: FlushEvents) -> None:
        """Notify the watcher, sinks, metrics and listeners of a flush."""
        # The watcher first: reported totals count even if this process is killed
        if self._reporter is not None:
            self._reporter.flushed(flush)
        now_ms = time.time_ns() // 1_000_000
        events = [
            self._flush_event(flush, partition, consumed, now_ms)
            for partition, consumed in flush.consumed.items()
        ]
        self._send(events)
        if self._metrics is not None:
            self._metrics.flushed(events, flush.took_s, flush.bad)
        for listener in self._listeners:
            listener.flushed(flush.consumed, flush.topic_ids)

    def _flush_event(
        self, flush: FlushEvents, partition: Partition, consumed: Consumed, now_ms: int
    ) -> dict[str, Any]:
        at = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        latency_ms = None if consumed.oldest_ms < 0 else now_ms - consumed.oldest_ms
        return {
            "event": flush.event,
            "at": at,
            **self._origin,
            "topic": partition.topic,
            "partition": partition.number,
            "topic_id": flush.topic_ids.get(partition.topic, ""),
            **self._irregular(partition, consumed),
            "low": consumed.low,
            "high": consumed.high,
            "records": consumed.records,
            "bytes": consumed.bytes,
            "version": flush.version,
            "latency_ms": latency_ms,
            "commit_ms": round(flush.took_s * 1000, 1),
        }

    def _irregular(self, partition: Partition, consumed: Consumed) -> dict[str, int]:
        """Count offsets without a message, and messages that came again.

        Transactions and compacted topics have offsets without a message, too.
        """
        before = self._reached.get(partition, consumed.low)
        self._reached[partition] = consumed.high
        offsets = consumed.high - consumed.low
        skipped = max(0, consumed.low - before) + max(0, offsets - consumed.records)
        return {
            "skipped": skipped,
            "repeated": max(0, before - consumed.low) + max(0, consumed.records - offsets),
        }

    def begin(self, partition: Partition, offset: int, topic_id: str) -> None:
        """Record that a partition begins at an offset, not at its first message.

        Kafka has deleted what came before. That is not a loss: the stream had read nothing of it.
        """
        self._passed("begin", partition, 0, offset, topic_id)

    def gap(self, partition: Partition, low: int, high: int, topic_id: str = "") -> None:
        """Record offsets that Kafka deleted before they were read."""
        self._passed("gap", partition, low, high, topic_id)
        if self._reporter is not None:
            self._reporter.gap(partition, high - low)
        if self._metrics is not None:
            self._metrics.lost(high - low, partition.topic, partition.number)

    def _passed(self, event: str, partition: Partition, low: int, high: int, topic_id: str) -> None:
        """Send an event of offsets that are not read."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        where = {
            "topic": partition.topic,
            "partition": partition.number,
            "low": low,
            "high": high,
            "topic_id": topic_id,
        }
        self._reached[partition] = high
        self._send([{"event": event, "at": at, **self._origin, **where}])

    def gathered(self, files: int, held_back_s: float) -> None:
        """Set how many files wait, and how long they have held this process back."""
        if self._metrics is not None:
            self._metrics.gathered(files, held_back_s)

    def stuck(self, files: int) -> None:
        """Set the number of gathered files that the committer cannot commit."""
        if self._metrics is not None:
            self._metrics.stuck(files)

    def topic_changed(self, topic: str) -> None:
        """Record that the stream stops, because a topic is not the one that was read."""
        if self._metrics is not None:
            self._metrics.topic_changed(topic)

    def seen(
        self,
        ends: Mapping[Partition, tuple[int, int]],
        in_transaction: Collection[Partition] = (),
    ) -> None:
        """Set position and end of each partition, and which wait for a transaction."""
        if self._metrics is None:
            return
        self._metrics.seen(
            {(partition.topic, partition.number): offsets for partition, offsets in ends.items()},
            {(partition.topic, partition.number) for partition in in_transaction},
        )

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for sink, outage in self._sinks:
            with outage.tolerated():
                sink.close()
        if self._metrics is not None:
            self._metrics.close()

    def _send(self, events: Sequence[Event]) -> None:
        for sink, outage in self._sinks:
            with outage.tolerated():
                sink.send(events)
