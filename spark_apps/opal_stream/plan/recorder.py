"""Counts what a stream reads, by hour of the week, into the table's own folder. What fails here stops no stream.

It is written every hour and at the end. Of a process that was killed the table's own positions tell how many messages are not counted yet.
"""

import logging
import time
from collections.abc import Mapping

from opal_lake.errors import OpalError
from opal_lake.log.snapshot import Root
from opal_lake.table import Table
from opal_stream.kafka.applications import Application
from opal_stream.kafka.taken import Taken
from opal_stream.kafka.topics import Partition
from opal_stream.same_table import check_same
from opal_stream.traffic.documents import TrafficFolder
from opal_stream.traffic.hours import HOUR_MS, MOST_WEEKS, WEEK, Traffic, Volume

EVERY_S = 3600.0  # from the start of the process on: not all write at the turn of an hour
logger = logging.getLogger(__name__)


class TrafficRecorder:
    """Of one process of a stream, whatever partitions it reads."""

    def __init__(self, table: Table, stream: str) -> None:
        self._table = table
        self._stream = stream
        self._folder: TrafficFolder | None = None
        self._root: Root | None = None
        self._known: dict[str, Traffic] = {}  # as it was when this process began
        self._counted: dict[str, Traffic] = {}
        self._has_tried = False
        self._due_s = time.monotonic() + EVERY_S

    def flushed(self, taken: Mapping[Partition, Taken], topic_ids: Mapping[str, str]) -> None:
        """These were committed."""
        now_hour = time.time_ns() // 1_000_000 // HOUR_MS
        is_due = time.monotonic() > self._due_s
        if self._folder is None and (is_due or not self._has_tried):
            self._begin()
        for partition, one in taken.items() if self._folder is not None else ():
            name = str(
                Application(
                    stream=self._stream,
                    partition=partition,
                    topic_id=topic_ids.get(partition.topic, ""),
                )
            )
            if name not in self._counted:
                self._counted[name] = begin_count(self._known.get(name), one, now_hour)
            count_taken(self._counted[name], one, now_hour)
        if is_due:
            self._write()

    def close(self) -> None:
        self._write()

    def _begin(self) -> None:
        """What is not counted until this works, positions tell later."""
        self._has_tried = True
        try:
            root = self._table.log.head().root
            folder = TrafficFolder(self._table.storage, root.table_id, self._table.log.ids)
            self._known = folder.read()
            self._folder, self._root = folder, root
        except (OpalError, OSError) as error:
            self._due_s = time.monotonic() + EVERY_S
            logger.warning(
                "the traffic so far cannot be read, and is not counted for an hour: %s", error
            )

    def _write(self) -> None:
        self._due_s = time.monotonic() + EVERY_S
        if self._folder is None or self._root is None or not self._counted:
            return
        try:
            check_same(self._table.log, self._root)
            self._folder.write(self._counted, time.time_ns() // 1_000_000)
        except (OpalError, OSError) as error:
            logger.warning("the traffic of the last hour is not kept: %s", error)


def begin_count(known: Traffic | None, taken: Taken, now_hour: int) -> Traffic:
    """What came between the last count and this flush was not counted: it is spread over that time."""
    traffic = known or Traffic(hour=first_hour_of(taken, now_hour), position=taken.low)
    missed = max(0, taken.low - traffic.position)
    if missed:
        spread(
            traffic,
            Volume(missed, missed * size_of(traffic)),
            traffic.hour,
            max(traffic.hour, now_hour),
        )
    return traffic


def count_taken(traffic: Traffic, taken: Taken, now_hour: int) -> None:
    """By the stamps of the messages: a stream that catches up brings many hours at once. Who knows no bytes takes the usual ones."""
    volume = Volume(taken.records, taken.bytes or taken.records * size_of(traffic))
    newest, first = (
        min(now_hour, taken.newest_ms // HOUR_MS) if taken.newest_ms >= 0 else now_hour,
        first_hour_of(taken, now_hour),
    )
    if newest >= first:  # else all of it is older than what is kept
        spread(traffic, volume, first, newest)
    traffic.position = max(traffic.position, taken.high)


def first_hour_of(taken: Taken, now_hour: int) -> int:
    """No stamp is later than now, nor older than what is kept."""
    oldest = taken.oldest_ms // HOUR_MS if taken.oldest_ms >= 0 else now_hour
    return min(now_hour, max(oldest, now_hour - MOST_WEEKS * WEEK))


def spread(traffic: Traffic, volume: Volume, first_hour: int, last_hour: int) -> None:
    """Evenly over these hours."""
    share = volume.times(1 / (last_hour - first_hour + 1))
    for hour in range(first_hour, last_hour + 1):
        traffic.observe(hour, share)


def size_of(traffic: Traffic) -> float:
    """Bytes of its usual message, 0 if nobody knows."""
    volumes = [traffic.current, *(mean for _, mean in traffic.means.values())]
    messages = sum(volume.messages for volume in volumes if volume.bytes)
    return sum(volume.bytes for volume in volumes) / messages if messages else 0.0
