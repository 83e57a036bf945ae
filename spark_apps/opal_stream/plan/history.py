"""Traffic as Kafka itself knows it: how many offsets each hour brought, by the timestamps of messages, as far back as the topic is kept.

Sizes of messages are not known here.
"""

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from opal_lake.traffic.hours import HOUR_MS, WEEK, Traffic, Volume
from opal_stream.kafka.connection import TIMEOUT_S, Connection
from opal_stream.kafka.topics import Partition, reach_of

LOOK_BACK = 2 * WEEK  # hours


def read_traffic(
    connection: Connection, partitions: Sequence[Partition], now_hour: int, hours: int = LOOK_BACK
) -> dict[Partition, Traffic]:
    """Of the hours before this one. The oldest one of a topic may be deleted in part and does not count; new partitions are left out."""
    consumer = Consumer({**connection.client(), "group.id": "opal-stream"})
    try:
        ends = {partition: reach.high for partition, reach in reach_of(consumer, connection, partitions).items()}
        marks = [_offsets_at(consumer, connection, ends, hour) for hour in range(now_hour - hours, now_hour + 1)]
    finally:
        consumer.close()
    return {partition: found for partition in partitions if (found := _traffic([mark[partition] for mark in marks], now_hour - hours))}


def _offsets_at(consumer: Consumer, connection: Connection, ends: dict[Partition, int], hour: int) -> dict[Partition, int]:
    """The first offset of an hour or later; the end where there is none."""
    places = [TopicPartition(partition.topic, partition.number, hour * HOUR_MS) for partition in ends]
    try:
        found = consumer.offsets_for_times(places, timeout=TIMEOUT_S)
    except KafkaException as error:
        raise connection.failure(error) from error
    return {part: place.offset if place.offset >= 0 else ends[part] for part, place in zip(ends, found, strict=True)}


def _traffic(marks: Sequence[int], first_hour: int) -> Traffic | None:
    """From the first hour that begins behind the oldest message: what came before it may be deleted in part."""
    start = next((at for at, mark in enumerate(marks) if mark > marks[0]), None)
    if start is None or start == len(marks) - 1:
        return None
    traffic = Traffic(hour=first_hour + start, position=marks[-1])
    for at in range(start, len(marks) - 1):
        traffic.observe(first_hour + at, Volume(max(0, marks[at + 1] - marks[at])))
    traffic.advance(first_hour + len(marks) - 1)
    return traffic
