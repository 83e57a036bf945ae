"""Traffic as Kafka itself knows it: how many offsets each hour brought, by the timestamps of messages, as far back as the topic is kept.

Sizes of messages are not known here.
"""

from collections.abc import Sequence

from opal_stream.kafka.connection import Connection
from opal_stream.kafka.ranges import first_since
from opal_stream.kafka.topics import Partition, reach_of
from opal_stream.traffic.hours import HOUR_MS, WEEK, Traffic, Volume

LOOK_BACK = 2 * WEEK  # hours


def read_traffic(
    connection: Connection, partitions: Sequence[Partition], now_hour: int, hours: int = LOOK_BACK
) -> dict[Partition, Traffic]:
    """Of the hours before this one. The oldest one of a topic may be deleted in part and does not count; new partitions are left out."""
    consumer = connection.consumer()
    try:
        ends = {
            partition: reach.high
            for partition, reach in reach_of(consumer, connection, partitions).items()
        }
        firsts = [
            first_since(consumer, connection, partitions, hour * HOUR_MS)
            for hour in range(now_hour - hours, now_hour + 1)
        ]
    finally:
        consumer.close()
    marks = {
        partition: [end if (offset := first[partition]) is None else offset for first in firsts]
        for partition, end in ends.items()
    }
    return {
        partition: traffic
        for partition in partitions
        if (traffic := _traffic(marks[partition], now_hour - hours))
    }


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
