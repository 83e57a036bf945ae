"""The recorder of traffic: it counts what a stream reads, by hour of the week, into the table.

It writes every hour and at the end; a failure never stops the stream. If a process was killed, the
table's positions show how many messages are not counted yet.
"""

import logging
import time
from collections.abc import Mapping

from opal_lake.errors import OpalError
from opal_lake.log.snapshot import Root
from opal_lake.table import Table
from opal_stream.kafka.applications import Application
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.same_table import check_same
from opal_stream.traffic.documents import TrafficFolder
from opal_stream.traffic.hours import HOUR_MS, MAX_WEEKS, WEEK, Traffic, Volume

EVERY_S = 3600.0  # from the start of the process on: not all write at the turn of an hour
logger = logging.getLogger(__name__)


class TrafficRecorder:
    """The recorder of one process of a stream, whichever partitions it reads."""

    def __init__(self, table: Table, stream: str, *, every_s: float = EVERY_S) -> None:
        self._table = table
        self._stream = stream
        self._every_s = every_s
        self._folder: TrafficFolder | None = None
        self._root: Root | None = None
        self._known: dict[str, Traffic] = {}  # as it was when this process began
        self._counted: dict[str, Traffic] = {}
        self._has_tried = False
        self._due_s = time.monotonic() + every_s

    def flushed(self, consumed: Mapping[Partition, Consumed], topic_ids: Mapping[str, str]) -> None:
        """Count the messages of a flush; write all counts when an hour is over."""
        now_hour = time.time_ns() // 1_000_000 // HOUR_MS
        is_due = time.monotonic() > self._due_s
        if self._folder is None and (is_due or not self._has_tried):
            self._begin()
        if self._folder is not None:
            for partition, counts in consumed.items():
                topic_id = topic_ids.get(partition.topic, "")
                self._count(partition, topic_id, counts, now_hour)
        if is_due:
            self._write()

    def close(self) -> None:
        self._write()

    def _count(
        self, partition: Partition, topic_id: str, consumed: Consumed, now_hour: int
    ) -> None:
        """Add a flush's messages of a partition to the partition's counts in this process."""
        application = Application(stream=self._stream, partition=partition, topic_id=topic_id)
        name = str(application)
        if name not in self._counted:
            self._counted[name] = begin_count(self._known.get(name), consumed, now_hour)
        count_consumed(self._counted[name], consumed, now_hour)

    def _begin(self) -> None:
        """Read the traffic that was recorded before.

        Until this succeeds nothing is counted; `begin_count` adds those messages later.
        """
        self._has_tried = True
        try:
            root = self._table.log.head().root
            folder = TrafficFolder(self._table.storage, root.table_id, self._table.log.ids)
            self._known = folder.read()
            self._folder, self._root = folder, root
        except (OpalError, OSError) as error:
            self._due_s = time.monotonic() + self._every_s
            logger.warning(
                "the traffic recorded before cannot be read; the stream tries again in an hour: %s",
                error,
            )

    def _write(self) -> None:
        self._due_s = time.monotonic() + self._every_s
        if self._folder is None or self._root is None or not self._counted:
            return
        try:
            check_same(self._table.log, self._root)
            self._folder.write(self._counted, time.time_ns() // 1_000_000)
        except (OpalError, OSError) as error:
            logger.warning(
                "the traffic of the last hour could not be recorded; the next hour's write adds "
                "it: %s",
                error,
            )


def begin_count(known: Traffic | None, consumed: Consumed, now_hour: int) -> Traffic:
    """Return the traffic before a flush, to count its messages into.

    Messages between the last count and the flush were not counted: they are spread over the hours
    between both.
    """
    if known is None:
        return Traffic(hour=first_hour_of(consumed, now_hour), position=consumed.low)
    missed = max(0, consumed.low - known.position)
    if missed:
        volume = Volume(missed, missed * mean_size(known))
        spread_evenly(known, volume, known.hour, max(known.hour, now_hour))
    return known


def count_consumed(traffic: Traffic, consumed: Consumed, now_hour: int) -> None:
    """Add the messages of a flush to the hours of their timestamps.

    A stream that catches up brings many hours at once. Messages of unknown size count with the
    mean size.
    """
    size = consumed.bytes or consumed.records * mean_size(traffic)
    first = first_hour_of(consumed, now_hour)
    newest = now_hour
    if consumed.newest_ms >= 0:
        newest = min(now_hour, consumed.newest_ms // HOUR_MS)
    if newest >= first:  # otherwise all messages are older than the hours that are kept
        spread_evenly(traffic, Volume(consumed.records, size), first, newest)
    traffic.position = max(traffic.position, consumed.high)


def first_hour_of(consumed: Consumed, now_hour: int) -> int:
    """Return the hour of the oldest message, within the hours that are kept."""
    oldest = now_hour
    if consumed.oldest_ms >= 0:
        oldest = consumed.oldest_ms // HOUR_MS
    return min(now_hour, max(oldest, now_hour - MAX_WEEKS * WEEK))


def spread_evenly(traffic: Traffic, volume: Volume, first_hour: int, last_hour: int) -> None:
    """Add a volume to hours evenly."""
    share = volume.times(1 / (last_hour - first_hour + 1))
    for hour in range(first_hour, last_hour + 1):
        traffic.observe(hour, share)


def mean_size(traffic: Traffic) -> float:
    """Return the mean size of a message in bytes; 0 if it is unknown."""
    volumes = [traffic.current, *(mean for _, mean in traffic.means.values())]
    sized = [volume for volume in volumes if volume.bytes]
    messages = sum(volume.messages for volume in sized)
    if messages:
        return sum(volume.bytes for volume in sized) / messages
    return 0.0
