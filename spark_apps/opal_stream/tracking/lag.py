"""How far a stream is behind Kafka: in messages, and in the age of the oldest one that it has not read."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from opal_lake.table import Table
from opal_stream.errors import UnknownTopicError
from opal_stream.kafka.applications import applications_of, begun_topics, known_positions
from opal_stream.kafka.connection import TIMEOUT_S, Connection
from opal_stream.kafka.offsets import next_offset
from opal_stream.kafka.settings import ISOLATION
from opal_stream.kafka.topics import Partition, Topics, reach_of

_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Of all partitions together."""

    messages: int
    delay_s: float
    partitions: int


def read_lag(table: Table, connection: Connection, stream: str, topics: Sequence[str] = ()) -> Lag:
    """Of the topics that are named, or of those that the stream has read. A partition that it has not read yet is behind by all it has."""
    positions = table.log.head().positions
    known = known_positions(positions, stream)
    names = sorted({*topics} or {topic for _, topic in begun_topics(positions, stream)})
    if not names:
        raise UnknownTopicError(f"no stream {stream!r} has written to {table.uri} yet")
    asked = Topics(connection)
    described = asked.describe(names)
    applications = {
        one.partition: one for topic in described.values() for one in applications_of(stream, topic)
    }
    consumer = connection.consumer({"auto.offset.reset": "earliest"})
    uncommitted = connection.consumer(
        {"auto.offset.reset": "earliest", ISOLATION: "read_uncommitted"}
    )
    try:
        reach = reach_of(consumer, connection, applications)
        ends = asked.ends(reach)
        behind: dict[Partition, int] = {}
        in_transaction: dict[Partition, int] = {}  # which nothing can be read of yet
        messages = 0
        for partition, kept in reach.items():
            begin = next_offset(known.get(applications[partition]), kept)
            end = max(kept.high, ends.get(partition, 0))
            messages += max(0, end - begin)
            if begin < kept.high:
                behind[partition] = begin
            elif begin < end:
                in_transaction[partition] = begin
        delays_s = (
            _delay_s(consumer, connection, behind),
            _delay_s(uncommitted, connection, in_transaction),
        )
        return Lag(messages=messages, delay_s=max(delays_s), partitions=len(reach))
    finally:
        consumer.close()
        uncommitted.close()


def _delay_s(consumer: Consumer, connection: Connection, behind: Mapping[Partition, int]) -> float:
    """By the stamps of the messages themselves. Behind may be marks of transactions alone: they have no age."""
    if not behind:
        return 0.0
    consumer.assign(
        [
            TopicPartition(partition.topic, partition.number, offset)
            for partition, offset in behind.items()
        ]
    )
    oldest_ms: dict[tuple[str | None, int | None], int] = {}
    until_s = time.monotonic() + TIMEOUT_S / 10
    while len(oldest_ms) < len(behind) and time.monotonic() < until_s:
        try:
            messages = consumer.consume(100, _POLL_S)
        except KafkaException as error:
            raise connection.failure(error) from error
        for message in messages:
            where = (message.topic(), message.partition())
            if message.error() is None and where not in oldest_ms:
                oldest_ms[where] = message.timestamp()[1]
                consumer.pause([TopicPartition(str(where[0]), int(where[1] or 0))])
    moments = [moment for moment in oldest_ms.values() if moment >= 0]
    return max(0.0, round(time.time() - min(moments) / 1000, 3)) if moments else 0.0
