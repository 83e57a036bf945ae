"""Traffic as Kafka itself knows it: the offsets of each hour, by the timestamps of messages.

The history reaches back as far as Kafka keeps messages. It has no sizes of messages.
"""

from collections.abc import Sequence

from opal_stream.kafka.connection import Connection
from opal_stream.kafka.ranges import first_offsets_since
from opal_stream.kafka.topics import Partition, reach_of
from opal_stream.traffic.hours import HOUR_MS, WEEK, Traffic, Volume

LOOK_BACK = 2 * WEEK  # hours


def read_traffic(
    connection: Connection, partitions: Sequence[Partition], now_hour: int, hours: int = LOOK_BACK
) -> dict[Partition, Traffic]:
    """Return the traffic of the `hours` before `now_hour`, by partition.

    Kafka's retention may have deleted a part of the oldest hour: that hour does not count.
    Partitions without another hour are left out.
    """
    first_hour = now_hour - hours
    consumer = connection.consumer()
    try:
        reach = reach_of(consumer, connection, partitions)
        firsts = [
            first_offsets_since(consumer, connection, partitions, hour * HOUR_MS)
            for hour in range(first_hour, now_hour + 1)
        ]
    finally:
        consumer.close()
    known: dict[Partition, Traffic] = {}
    for partition in partitions:
        end = reach[partition].high
        offsets = [first[partition] for first in firsts]
        marks = [end if offset is None else offset for offset in offsets]
        traffic = _traffic(marks, first_hour)
        if traffic is not None:
            known[partition] = traffic
    return known


def _traffic(marks: Sequence[int], first_hour: int) -> Traffic | None:
    """Return the traffic between the marks, the offsets at which hours begin.

    Return None if no hour is complete.
    """
    last = len(marks) - 1
    # The first hour that begins behind the oldest message: the hour of that message is incomplete
    start = next((number for number, mark in enumerate(marks) if mark > marks[0]), None)
    if start is None or start == last:
        return None
    traffic = Traffic(hour=first_hour + start, position=marks[-1])
    for number in range(start, last):
        # Timestamps may fall, and then an hour seems to begin before the one before it
        messages = max(0, marks[number + 1] - marks[number])
        traffic.observe(first_hour + number, Volume(messages))
    traffic.advance(first_hour + last)
    return traffic
