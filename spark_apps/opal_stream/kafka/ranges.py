"""The offsets of an interval of time.

Consecutive intervals leave no message out: each range of offsets ends where the next one begins.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from opal_stream.errors import GapError
from opal_stream.kafka.connection import TIMEOUT_S, Connection, text_of
from opal_stream.kafka.topics import Partition, Reach, Topics
from opal_stream.operations.reading import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A span of timestamps, in milliseconds since 1970; its end is excluded."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets from `low` up to and without `high`.

    A range is open if no message after the interval has come yet: late messages of the interval
    may still come.
    """

    low: int
    high: int
    is_open: bool = False


def resolve_ranges(
    consumer: Consumer,
    connection: Connection,
    reach: Mapping[Partition, Reach],
    interval: Interval,
    policies: Policies,
) -> dict[Partition, OffsetRange]:
    """Return the offsets of an interval by partition.

    A range begins at the first message of the interval, and ends before the first message after the
    interval. Raises GapError if Kafka may have deleted messages of it, unless `policies` accept
    that.
    """
    topics = Topics(connection)
    starts = first_offsets_since(consumer, connection, reach, interval.start_ms)
    ends = first_offsets_since(consumer, connection, reach, interval.end_ms)
    ranges: dict[Partition, OffsetRange] = {}
    for partition, known in reach.items():
        start, end = starts[partition], ends[partition]
        low = known.high if start is None else start
        # Only if the range begins at Kafka's oldest message, retention can have deleted others
        begins_at_oldest = low == known.low > 0
        if begins_at_oldest and policies.on_gap != "continue":
            is_complete = topics.is_within_retention(partition.topic, interval.start_ms)
            if not is_complete:
                raise GapError(
                    f"{partition}: Kafka has deleted the messages before offset {low}, some of "
                    "which may belong to this interval; to read the others, use on_gap='continue'"
                )
        high = known.high if end is None else end
        ranges[partition] = OffsetRange(low=low, high=max(low, high), is_open=end is None)
    return ranges


def first_offsets_since(
    consumer: Consumer, connection: Connection, partitions: Iterable[Partition], moment_ms: int
) -> dict[Partition, int | None]:
    """Return by partition the first offset at or after a time.

    Return None if no message is so late.
    """
    asked = [
        TopicPartition(partition.topic, partition.number, moment_ms) for partition in partitions
    ]
    try:
        answers = consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
    except KafkaException as error:  # of all partitions together
        names = ", ".join(f"{partition.topic}/{partition.partition}" for partition in asked)
        raise connection.failure(f"{names}: {text_of(error)}") from error
    # Errors first: a partition with an error has the asked time as its offset
    for answer in answers:
        if answer.error is not None:
            raise connection.failure(f"{answer.topic}/{answer.partition}: {text_of(answer.error)}")
    offsets: dict[Partition, int | None] = {}
    for answer in answers:
        partition = Partition(topic=answer.topic, number=answer.partition)
        offsets[partition] = answer.offset if answer.offset >= 0 else None
    return offsets
