"""The offsets of an interval of time.

Consecutive intervals leave nothing out: the range of one ends where that of the next begins.
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

    A range is open where no message came after the interval yet: late ones may still belong to it.
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

    A range begins at the first message of the interval and ends before the first one after it.
    """
    topics = Topics(connection)
    starts = first_offsets_since(consumer, connection, reach, interval.start_ms)
    ends = first_offsets_since(consumer, connection, reach, interval.end_ms)
    ranges: dict[Partition, OffsetRange] = {}
    for partition, known in reach.items():
        start, end = starts[partition], ends[partition]
        low = known.high if start is None else start
        # Only a range at the oldest message can have lost some to retention
        was_deleted = low == known.low > 0 and not topics.is_within_retention(
            partition.topic, interval.start_ms
        )
        if was_deleted and policies.on_gap != "continue":
            raise GapError(
                f"{partition}: Kafka has nothing before offset {low} any more, which may have "
                "been of this interval; to read what is left, use --on-gap continue"
            )
        high = known.high if end is None else end
        ranges[partition] = OffsetRange(low=low, high=max(low, high), is_open=end is None)
    return ranges


def first_offsets_since(
    consumer: Consumer, connection: Connection, partitions: Iterable[Partition], moment_ms: int
) -> dict[Partition, int | None]:
    """Return the first offset at or after a time, or None, by partition."""
    asked = [
        TopicPartition(partition.topic, partition.number, moment_ms) for partition in partitions
    ]
    try:
        answers = consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
    except KafkaException as error:  # for all of them
        names = ", ".join(f"{partition.topic}/{partition.partition}" for partition in asked)
        raise connection.failure(f"{names}: {text_of(error)}") from error
    # All errors come first: a partition that failed has the time as its offset
    for answer in answers:
        if answer.error is not None:
            raise connection.failure(f"{answer.topic}/{answer.partition}: {text_of(answer.error)}")
    offsets: dict[Partition, int | None] = {}
    for answer in answers:
        partition = Partition(topic=answer.topic, number=answer.partition)
        offsets[partition] = answer.offset if answer.offset >= 0 else None
    return offsets
