"""The lag of a stream behind Kafka: in messages, and in the age of the oldest unread one."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from opal_lake.table import Table
from opal_stream.errors import UnknownTopicError
from opal_stream.kafka.applications import (
    Application,
    applications_of,
    begun_topics,
    known_positions,
)
from opal_stream.kafka.connection import TIMEOUT_S, Connection
from opal_stream.kafka.offsets import next_offset
from opal_stream.kafka.settings import ISOLATION
from opal_stream.kafka.topics import Partition, Topics, reach_of

_POLL_S = 0.5
_READ_S = TIMEOUT_S / 10  # for the oldest messages of all partitions together


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The lag of all partitions together."""

    messages: int
    delay_s: float
    partitions: int


def read_lag(table: Table, connection: Connection, stream: str, topics: Sequence[str] = ()) -> Lag:
    """Return the lag in the named topics, or in those that the stream has read.

    A partition that the stream has not read yet is behind by all messages that Kafka has.
    """
    positions = table.log.head().positions
    known = known_positions(positions, stream)
    names = sorted({*topics})
    if not topics:
        names = sorted({topic for _, topic in begun_topics(positions, stream)})
    if not names:
        raise UnknownTopicError(f"no stream {stream!r} has written to {table.uri} yet")
    client = Topics(connection)
    applications: dict[Partition, Application] = {}
    for topic in client.describe(names).values():
        for application in applications_of(stream, topic):
            applications[application.partition] = application
    consumer = connection.consumer({"auto.offset.reset": "earliest"})
    uncommitted = connection.consumer(
        {"auto.offset.reset": "earliest", ISOLATION: "read_uncommitted"}
    )
    try:
        reach = reach_of(consumer, connection, applications)
        ends = client.ends(reach)
        behind: dict[Partition, int] = {}
        in_transaction: dict[Partition, int] = {}  # nothing of these can be read yet
        messages = 0
        for partition, offsets in reach.items():
            begin = next_offset(known.get(applications[partition]), offsets)
            end = max(offsets.high, ends.get(partition, 0))
            messages += max(0, end - begin)
            if begin < offsets.high:
                behind[partition] = begin
            elif begin < end:
                in_transaction[partition] = begin
        delay_s = max(
            _delay_s(consumer, connection, behind),
            _delay_s(uncommitted, connection, in_transaction),
        )
        return Lag(messages=messages, delay_s=delay_s, partitions=len(reach))
    finally:
        consumer.close()
        uncommitted.close()


def _delay_s(consumer: Consumer, connection: Connection, behind: Mapping[Partition, int]) -> float:
    """Return the age of the oldest message at or after these offsets.

    0 where only marks of transactions follow: they have no age.
    """
    if not behind:
        return 0.0
    consumer.assign(
        [
            TopicPartition(partition.topic, partition.number, offset)
            for partition, offset in behind.items()
        ]
    )
    oldest_ms: dict[tuple[str | None, int | None], int] = {}
    until_s = time.monotonic() + _READ_S
    while len(oldest_ms) < len(behind) and time.monotonic() < until_s:
        try:
            messages = consumer.consume(100, _POLL_S)
        except KafkaException as error:
            raise connection.failure(error) from error
        for message in messages:
            where = (message.topic(), message.partition())
            if message.error() is None and where not in oldest_ms:
                oldest_ms[where] = message.timestamp()[1]
                # The first message of a partition is enough: the others come sooner
                consumer.pause([TopicPartition(str(where[0]), int(where[1] or 0))])
    moments = [moment for moment in oldest_ms.values() if moment >= 0]
    if not moments:
        return 0.0
    return max(0.0, round(time.time() - min(moments) / 1000, 3))
