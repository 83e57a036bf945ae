"""Offsets of an interval of time, asked of a real broker."""

import time

import pytest
from confluent_kafka import TopicPartition

from opal_stream.errors import GapError, KafkaError
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.ranges import Interval, OffsetRange, resolve_ranges
from opal_stream.kafka.topics import Partition, Reach
from opal_stream.operations.reading import Policies
from opal_stream.plan.history import read_traffic
from opal_stream.traffic.hours import HOUR_MS
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import new_topic, order


def ranges(
    kafka: Kafka,
    topic: str,
    start: int,
    end: int,
    reach: dict[int, tuple[int, int]],
    on_gap: str = "fail",
) -> list[OffsetRange]:
    connection = Connection(bootstrap_servers=kafka.servers)
    consumer = connection.consumer()
    known = {
        Partition(topic=topic, number=number): Reach(low=low, high=high)
        for number, (low, high) in reach.items()
    }
    try:
        actual = resolve_ranges(
            consumer,
            connection,
            known,
            Interval(start_ms=start, end_ms=end),
            Policies(on_gap=on_gap),
        )
    finally:
        consumer.close()
    return [actual[partition] for partition in sorted(known)]


def test_a_range_ends_where_the_next_one_begins_and_an_open_one_at_the_end_of_the_partition(
    kafka: Kafka,
) -> None:
    topic = new_topic(kafka, 2, retention_ms=str(10**15))
    kafka.produce(topic, [order(n) for n in range(4)], moments_ms=[1000, 2000, 1500, 3000])
    reach = {0: (0, 4), 1: (0, 0)}
    empty = OffsetRange(low=0, high=0, is_open=True)
    assert ranges(kafka, topic, 1000, 2000, reach) == [OffsetRange(low=0, high=1), empty]
    assert ranges(kafka, topic, 2000, 3000, reach) == [OffsetRange(low=1, high=3), empty]
    assert ranges(kafka, topic, 3000, 4000, reach) == [
        OffsetRange(low=3, high=4, is_open=True),
        empty,
    ]
    assert ranges(kafka, topic, 4000, 5000, reach) == [
        OffsetRange(low=4, high=4, is_open=True),
        empty,
    ]


def test_messages_that_kafka_deleted_before_an_interval_are_a_gap(kafka: Kafka) -> None:
    topic = new_topic(kafka, retention_ms="-1")
    kafka.produce(topic, [order(n) for n in range(4)], moments_ms=[1000, 1100, 1200, 2000])
    admin = kafka.admin
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
    deleted.result(30)
    with pytest.raises(GapError, match=f"{topic}/0: Kafka has deleted .* before offset 2"):
        ranges(kafka, topic, 1000, 2000, {0: (2, 4)})
    assert ranges(kafka, topic, 1000, 2000, {0: (2, 4)}, "continue") == [OffsetRange(low=2, high=3)]
    with pytest.raises(GapError, match="before offset 4"):
        ranges(kafka, topic, 3000, 4000, {0: (4, 4)})
    assert ranges(kafka, topic, 2000, 3000, {0: (2, 4)}) == [
        OffsetRange(low=3, high=4, is_open=True)
    ]


@pytest.mark.parametrize("reach", [{7: (0, 4)}, {0: (0, 4), 7: (0, 4)}])
def test_a_partition_that_kafka_does_not_answer_for_is_named(
    kafka: Kafka, reach: dict[int, tuple[int, int]]
) -> None:
    topic = new_topic(kafka, 2)
    with pytest.raises(
        KafkaError, match=rf"Kafka at .* does not answer: {topic}/7: .*Unknown partition"
    ):
        ranges(kafka, topic, 1000, 2000, reach)
    hour, partitions = (
        time.time_ns() // 1_000_000 // HOUR_MS,
        [Partition(topic=topic, number=number) for number in reach],
    )
    with pytest.raises(KafkaError, match=rf"{topic}/7: .*nknown"):
        read_traffic(Connection(bootstrap_servers=kafka.servers), partitions, hour, 1)


def test_messages_younger_than_the_retention_are_not_a_gap(kafka: Kafka) -> None:
    topic = new_topic(kafka, retention_ms=str(10**15))
    kafka.produce(topic, [order(n) for n in range(4)], moments_ms=[1000, 1100, 1200, 2000])
    assert ranges(kafka, topic, 3000, 4000, {0: (4, 4)}) == [
        OffsetRange(low=4, high=4, is_open=True)
    ]
    small = new_topic(kafka, retention_ms=str(10**15), retention_bytes=str(10**9))
    with pytest.raises(GapError, match="before offset 4"):
        ranges(kafka, small, 3000, 4000, {0: (4, 4)})
