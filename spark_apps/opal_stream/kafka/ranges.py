"""Which offsets lie in an interval of time. From one interval to the next nothing is left out: a range ends where the next one begins."""

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from opal_stream.errors import GapError
from opal_stream.kafka.connection import TIMEOUT_S, Connection
from opal_stream.kafka.offsets import Policies
from opal_stream.kafka.topics import Partition, Reach, Topics


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
    consumer: Consumer, connection: Connection, reach: Mapping[Partition, Reach], interval: Interval, policies: Policies
) -> dict[Partition, OffsetRange]:
    """Each begins at the first message of the interval, and ends before the first one after it."""
    topics = Topics(connection)
    starts = _first_since(consumer, connection, reach, interval.start_ms)
    ends = _first_since(consumer, connection, reach, interval.end_ms)
    ranges = {}
    for partition, known in reach.items():
        start, end = starts[partition], ends[partition]
        low = known.high if start is None else start
        was_deleted = low == known.low > 0 and not topics.is_within_retention(partition.topic, interval.start_ms)
        if was_deleted and policies.on_gap != "continue":
            raise GapError(
                f"{partition}: Kafka has nothing before offset {low} any more, which may have been of this interval; if it was not, or "
                "is to be passed over: --on-gap continue"
            )
        high = known.high if end is None else end
        ranges[partition] = OffsetRange(low=low, high=max(low, high), is_open=end is None)
    return ranges


def _first_since(
    consumer: Consumer, connection: Connection, partitions: Mapping[Partition, Reach], moment_ms: int
) -> dict[Partition, int | None]:
    asked = [TopicPartition(partition.topic, partition.number, moment_ms) for partition in partitions]
    try:
        answers = consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
    except KafkaException as error:
        raise connection.failure(error) from error
    if failed := next((answer.error for answer in answers if answer.error is not None), None):
        raise connection.failure(failed)
    found = {(answer.topic, answer.partition): answer.offset for answer in answers}
    return {partition: offset if (offset := found[partition.topic, partition.number]) >= 0 else None for partition in partitions}
