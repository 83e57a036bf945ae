"""A run that reads the messages of an interval of time once, such as the job of a day.

It neither reads nor moves positions of a stream, so that intervals may be read in any order. A
commit is identified by the offsets of its messages. Commits are cut by the number and size of
messages, never by time. So a repeated run cuts the same commits, and finds them in the table.
"""

import hashlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from opal_lake.errors import InvalidInputError
from opal_lake.table import Table
from opal_stream.errors import KafkaError, StoppedError
from opal_stream.flush.buffer import Buffer
from opal_stream.flush.intake import Intake
from opal_stream.flush.options import StreamOptions, Totals
from opal_stream.flush.writer import Writer
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import row_form_of
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.ranges import Interval, OffsetRange, resolve_ranges
from opal_stream.kafka.source import Source
from opal_stream.kafka.topics import Partition, Topics, chosen_partitions
from opal_stream.tracking.events import FlushEvents, Tracker

_POLL_S = 0.5
_REPORT_S = 30.0  # between two log lines of a run that waits
logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class IntervalTotals(Totals):
    """The totals of an interval.

    - `ranges` are the first offset of each partition, and the offset after its last one.
    - `open` are the partitions without a message after the interval: late ones may still come.
    """

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)


class IntervalRun:
    """A run that reads an interval, one partition after the other.

    `partition_key` is the name by which consumers find its rows.
    """

    def __init__(
        self,
        table: Table,
        connection: Connection,
        options: StreamOptions,
        interval: Interval,
        *,
        partition_key: str | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        if interval.end_ms <= interval.start_ms:
            raise InvalidInputError(
                "the interval ends before it begins: pass an end_timestamp later than "
                "start_timestamp"
            )
        if interval.end_ms > time.time() * 1000:
            raise InvalidInputError(
                "the interval is not over, and a repeat would read more of it: "
                "run this after end_timestamp"
            )
        self.table = table
        self.options = options
        self.totals = IntervalTotals()
        self._interval = interval
        self._key = partition_key
        self._tracker = tracker or Tracker()
        self._connection = connection
        self._intake = Intake(table, options.formats, options.on_bad_message, _nothing, _nothing)
        self._source = Source(
            connection,
            buffer_bytes=options.limits.bytes,
            headers=self._intake.decoder.needs_headers,
        )
        self._buffer = Buffer(limits=options.limits)
        self._writer = Writer(
            table=table,
            on_bad_message=options.on_bad_message,
            row_form=row_form_of(options.formats),
            give_up_s=options.give_up_s,
            broker_timeout_s=options.broker_timeout_s,
        )
        self._ids: dict[str, str] = {}
        # The messages and bytes of the next commit. The buffer counts rows instead: but a message
        # without a row must count, too, so that a repeated run cuts at the same offset
        self._messages = self._message_bytes = 0
        self._stopping = False

    def stop(self) -> None:
        """End immediately. The next run reads uncommitted messages again."""
        self._stopping = True

    def run(self) -> IntervalTotals:
        try:
            ranges = self._resolve()
            for partition, offsets in sorted(ranges.items()):
                if offsets.low < offsets.high:
                    self._read(partition, offsets)
            self._flush()
        finally:
            self._source.close()
            self._tracker.close()
        return self.totals

    def _resolve(self) -> dict[Partition, OffsetRange]:
        """Return the offsets of the interval by partition, and note them in the totals."""
        topics = Topics(self._connection).describe(self.options.topics)
        self._ids = {name: topic.id for name, topic in topics.items()}
        partitions = chosen_partitions(topics.values(), self.options.partitions)
        reach = self._source.reach(partitions)
        ranges = resolve_ranges(
            self._source.consumer,
            self._connection,
            reach,
            self._interval,
            self.options.policies,
        )
        for partition, offsets in sorted(ranges.items()):
            self.totals.ranges[str(partition)] = (offsets.low, offsets.high)
            if offsets.is_open:
                self.totals.open.append(str(partition))
        return ranges

    def _read(self, partition: Partition, offsets: OffsetRange) -> None:
        for batch in self._batches(partition, offsets):
            unread = batch
            while len(unread):
                count = self._count_that_fits(unread)
                self._take(unread.slice(0, count))
                unread = unread.slice(count)

    def _batches(self, partition: Partition, offsets: OffsetRange) -> Iterator[MessageBatch]:
        """Yield the messages of a range in batches.

        Offsets at its end may be marks of transactions: then Kafka gives no message for them, but
        reports that the partition has ended.
        """
        self._source.assign({partition: offsets.low})
        heard_s = time.monotonic()
        reported_s = 0.0
        is_over = False
        while not is_over:
            if self._stopping:
                raise StoppedError(
                    f"{partition}: the run was stopped before the interval was read; run it again: "
                    "it reads the rest, and commits no message twice"
                )
            fetched = self._source.fetch(_POLL_S)
            silent_s = time.monotonic() - heard_s
            if silent_s > reported_s + _REPORT_S:
                reported_s = silent_s
                logger.warning(
                    "%s: Kafka has sent no message for %.0f s; waiting", partition, silent_s
                )
            if fetched.suspect or silent_s > self.options.broker_timeout_s:
                raise KafkaError(
                    f"{partition}: Kafka does not send the messages that it had from offset "
                    f"{offsets.low} on; run the interval again"
                )
            inside = sum(offset < offsets.high for offset in fetched.batch.offsets)
            has_partition_ended = fetched.ended.get(partition, -1) >= offsets.high
            is_over = has_partition_ended or _reaches(fetched.batch, inside, offsets.high)
            yield fetched.batch.slice(0, inside)
            if len(fetched.batch):
                reported_s = 0.0
                # After the yield: the caller's commit may have taken longer
                heard_s = time.monotonic()
        self._source.drop(partition)

    def _count_that_fits(self, batch: MessageBatch) -> int:
        """Return how many messages of a batch fill up the next commit, at least one."""
        limits = self.options.limits
        messages, size = self._messages, self._message_bytes
        for position, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            messages += 1
            size += len(key or b"") + len(value or b"")
            if messages >= limits.rows or size >= limits.bytes:
                return position + 1
        return len(batch)

    def _take(self, batch: MessageBatch) -> None:
        for part, decoded in self._intake.take(batch):
            self._buffer.add(part, decoded, time.monotonic())
        self._messages += len(batch)
        for key, value in zip(batch.keys, batch.values, strict=True):
            self._message_bytes += len(key or b"") + len(value or b"")
        limits = self.options.limits
        if self._messages >= limits.rows or self._message_bytes >= limits.bytes:
            self._flush()

    def _flush(self) -> None:
        if not self._buffer.consumed:
            return
        began_s = time.monotonic()
        result = self._writer.flush_once(self._buffer, self._token(), self._key, self._source.pause)
        self._source.resume()
        if result.version is not None:
            self.totals.version = result.version
        if result.repeated:
            logger.warning(
                "version %s has these offsets already; nothing was committed again", result.version
            )
        else:
            consumed, bad = dict(self._buffer.consumed), self._buffer.bad
            self.totals.add_flush(consumed.values(), bad=bad, version=result.version)
            self._tracker.flushed(
                FlushEvents(
                    consumed=consumed,
                    version=result.version,
                    took_s=time.monotonic() - began_s,
                    bad=bad,
                )
            )
        self._buffer.clear()
        self._messages = self._message_bytes = 0
        self._intake.follow(self._writer.spec)

    def _token(self) -> str:
        """Return the token of the commit: a hash of its offsets and of the partition key."""
        ranges: list[str] = []
        for partition, consumed in sorted(self._buffer.consumed.items()):
            topic_id = self._ids[partition.topic]
            name = f"{partition.topic}@{topic_id}/{partition.number}"
            ranges.append(f"{name}:{consumed.low}-{consumed.high}")
        # The exact text counts: a repeated run of a later release must find its commits
        text = repr((self._key, ranges))
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"kafka:{self.options.name}/{digest[:32]}"


def _reaches(batch: MessageBatch, inside: int, end: int) -> bool:
    """Return whether a batch reaches the end of a range.

    The first `inside` messages of the batch belong to the range.
    """
    if inside < len(batch):
        return True
    return inside > 0 and batch.offsets[inside - 1] == end - 1


def _nothing(*_: object) -> None:
    """Do nothing where a new schema begins: do not cut the commit there.

    A repeated run knows the schema from the start, and would not cut there.
    """
