"""Which offsets lie in an interval of time. From one interval to the next nothing is left out: a range ends where the next one begins."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from opal_stream.errors import GapError
from opal_stream.kafka.connection import TIMEOUT_S, Connection, text_of
from opal_stream.kafka.topics import Partition, Reach, Topics
from opal_stream.operations.reading import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Milliseconds since 1970, as the messages are stamped: from `start_ms` on, up to and without `end_ms`."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """From `low` up to and without `high`. It is open where no message came after the interval yet: late ones may still be of it."""

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
    """Each begins at the first message of the interval, and ends before the first one after it."""
    topics = Topics(connection)
    starts = first_since(consumer, connection, reach, interval.start_ms)
    ends = first_since(consumer, connection, reach, interval.end_ms)
    ranges = {}
    for partition, known in reach.items():
        start, end = starts[partition], ends[partition]
        low = known.high if start is None else start
        was_deleted = low == known.low > 0 and not topics.is_within_retention(
            partition.topic, interval.start_ms
        )
        if was_deleted and policies.on_gap != "continue":
            raise GapError(
                f"{partition}: Kafka has nothing before offset {low} any more, which may have been of this interval; if it was not, or "
                "is to be passed over: --on-gap continue"
            )
        high = known.high if end is None else end
        ranges[partition] = OffsetRange(low=low, high=max(low, high), is_open=end is None)
    return ranges


def first_since(
    consumer: Consumer, connection: Connection, partitions: Iterable[Partition], moment_ms: int
) -> dict[Partition, int | None]:
    """Of each partition the first offset of then or later; None where there is no message of it yet."""
    asked = [
        TopicPartition(partition.topic, partition.number, moment_ms) for partition in partitions
    ]
    try:
        answers = consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
    except KafkaException as error:  # of all of them
        names = ", ".join(f"{one.topic}/{one.partition}" for one in asked)
        raise connection.failure(f"{names}: {text_of(error)}") from error
    for answer in answers:  # one that failed has the time as its offset
        if answer.error is not None:
            raise connection.failure(f"{answer.topic}/{answer.partition}: {text_of(answer.error)}")
    return {
        Partition(topic=answer.topic, number=answer.partition): answer.offset
        if answer.offset >= 0
        else None
        for answer in answers
    }
