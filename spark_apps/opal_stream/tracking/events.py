"""Tracking events: one for each partition of each flush, as lines of JSON in a folder or as messages of a Kafka topic."""

import json
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from confluent_kafka import Producer

from opal_stream.kafka.connection import Connection
from opal_stream.kafka.taken import Taken
from opal_stream.kafka.topics import Partition
from opal_stream.tracking.event_files import Event
from opal_stream.tracking.metrics import Metrics
from opal_stream.tracking.outage import Outage

_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushEvents:
    """What a flush did: a commit ("flush"), or a file for the committer ("gathered")."""

    taken: Mapping[Partition, Taken]
    version: int | None
    took_s: float
    bad: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    event: str = "flush"


class Sink(Protocol):
    """Where events go; as text, what is written there."""

    def send(self, events: Sequence[Event]) -> None: ...
    def close(self) -> None: ...


class Listener(Protocol):
    """Who wants to know what was committed, for itself."""

    def flushed(self, taken: Mapping[Partition, Taken], topic_ids: Mapping[str, str]) -> None: ...
    def close(self) -> None: ...


class TopicSink:
    """A message for each event, by its partition."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._producer = Producer({"linger.ms": 50, **connection.client()})
        self._topic = topic

    def __str__(self) -> str:
        return f"tracking events in topic {self._topic}"

    def send(self, events: Sequence[Event]) -> None:
        for event in events:
            self._producer.produce(
                self._topic,
                json.dumps(event).encode(),
                key=f"{event['topic']}/{event['partition']}".encode(),
            )
        self._producer.poll(0)

    def close(self) -> None:
        self._producer.flush(_CLOSE_S)


class Teller(Protocol):
    """Tells whoever watches what was done so far."""

    def flushed(self, flush: FlushEvents) -> None: ...
    def gap(self, partition: Partition, offsets: int) -> None: ...


class Tracker:
    """Tells sinks, metrics, listeners and whoever watches (`tell`). What fails here stops no stream."""

    def __init__(
        self,
        sinks: Sequence[Sink] = (),
        metrics: Metrics | None = None,
        *,
        table: str = "",
        stream: str = "main",
        listeners: Sequence[Listener] = (),
        tell: Teller | None = None,
    ) -> None:
        self._sinks = [(sink, Outage(str(sink))) for sink in sinks]
        self._listeners = list(listeners)
        self._metrics = metrics
        self._tell = tell
        self._reached: dict[Partition, int] = {}
        self._who = {
            "table": table,
            "stream": stream,
            "host": socket.gethostname(),
            "process": os.getpid(),
        }

    def flushed(self, flush: FlushEvents) -> None:
        if self._tell is not None:
            self._tell.flushed(flush)
        now_ms = time.time_ns() // 1_000_000
        at = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        events = [
            {
                "event": flush.event,
                "at": at,
                **self._who,
                "topic": partition.topic,
                "partition": partition.number,
            }
            | {"topic_id": flush.topic_ids.get(partition.topic, ""), **self._odd(partition, taken)}
            | {
                "low": taken.low,
                "high": taken.high,
                "records": taken.records,
                "bytes": taken.bytes,
                "version": flush.version,
            }
            | {
                "latency_ms": now_ms - taken.oldest_ms if taken.oldest_ms >= 0 else None,
                "commit_ms": round(flush.took_s * 1000, 1),
            }
            for partition, taken in flush.taken.items()
        ]
        self._send(events)
        if self._metrics is not None:
            self._metrics.flushed(events, flush.took_s, flush.bad)
        for listener in self._listeners:
            listener.flushed(flush.taken, flush.topic_ids)

    def _odd(self, partition: Partition, taken: Taken) -> dict[str, int]:
        """Offsets without a message, and messages that came again. Transactions and compacted topics have empty offsets, too."""
        before = self._reached.get(partition, taken.low)
        self._reached[partition] = taken.high
        offsets = taken.high - taken.low
        skipped = max(0, taken.low - before) + max(0, offsets - taken.records)
        return {
            "skipped": skipped,
            "repeated": max(0, before - taken.low) + max(0, taken.records - offsets),
        }

    def begin(self, partition: Partition, offset: int, topic_id: str) -> None:
        """A first start, of a partition of which Kafka has deleted what came before the offset. That is no loss."""
        self._passed("begin", partition, 0, offset, topic_id)

    def gap(self, partition: Partition, low: int, high: int, topic_id: str = "") -> None:
        self._passed("gap", partition, low, high, topic_id)
        if self._tell is not None:
            self._tell.gap(partition, high - low)
        if self._metrics is not None:
            self._metrics.lost(high - low, partition.topic, partition.number)

    def _passed(self, event: str, partition: Partition, low: int, high: int, topic_id: str) -> None:
        """Offsets that are read no more."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        where = {
            "topic": partition.topic,
            "partition": partition.number,
            "low": low,
            "high": high,
            "topic_id": topic_id,
        }
        self._reached[partition] = high
        self._send([{"event": event, "at": at, **self._who, **where}])

    def gathered(self, files: int, held_back_s: float) -> None:
        """How many files wait for the committer, and for how long this process has read nothing because of that."""
        if self._metrics is not None:
            self._metrics.gathered(files, held_back_s)

    def stuck(self, files: int) -> None:
        """How many gathered files the committer cannot commit."""
        if self._metrics is not None:
            self._metrics.stuck(files)

    def topic_changed(self, topic: str) -> None:
        """The stream stops, because the topic is not the one that was read any more."""
        if self._metrics is not None:
            self._metrics.topic_changed(topic)

    def seen(
        self,
        ends: Mapping[Partition, tuple[int, int]],
        in_transaction: Collection[Partition] = (),
    ) -> None:
        """Where the table stands in each partition, where Kafka ends, and what waits for a transaction."""
        if self._metrics is not None:
            self._metrics.seen(
                {(partition.topic, partition.number): found for partition, found in ends.items()},
                {(partition.topic, partition.number) for partition in in_transaction},
            )

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for sink, outage in self._sinks:
            with outage.bridged():
                sink.close()
        if self._metrics is not None:
            self._metrics.close()

    def _send(self, events: Sequence[Event]) -> None:
        for sink, outage in self._sinks:
            with outage.bridged():
                sink.send(events)
