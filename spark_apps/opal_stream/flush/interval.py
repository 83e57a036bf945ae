"""What an interval of time holds, once: for a job that runs for a day, and that may run for it again.

Positions of a stream are neither asked nor moved, so that intervals may be read in any order. A commit is known by the offsets that it
holds. It is cut by numbers and sizes of messages, never by time: a run that is repeated makes the same commits, and finds them there.
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
_TELL_S = 30.0  # between two lines that it waits
logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class IntervalTotals(Totals):
    """With the offsets that were read. Open partitions had no message after the interval yet."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)


class IntervalRun:
    """Partition after partition. `partition_key` is what consumers know the rows by."""

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
                "the interval ends before it begins: --end-timestamp is to be later than --start-timestamp"
            )
        if interval.end_ms > time.time() * 1000:
            raise InvalidInputError(
                "the interval is not over, and a repeat would read more of it: run this after --end-timestamp"
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
        self._held = self._held_bytes = 0
        self._stopping = False

    def stop(self) -> None:
        """End at once. What is not committed is read again by the next run."""
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
        topics = Topics(self._connection).describe(self.options.topics)
        self._ids = {name: topic.id for name, topic in topics.items()}
        reach = self._source.reach(chosen_partitions(topics.values(), self.options.partitions))
        ranges = resolve_ranges(
            self._source.consumer, self._connection, reach, self._interval, self.options.policies
        )
        self.totals.ranges = {
            str(partition): (offsets.low, offsets.high)
            for partition, offsets in sorted(ranges.items())
        }
        self.totals.open = [
            str(partition) for partition, offsets in sorted(ranges.items()) if offsets.is_open
        ]
        return ranges

    def _read(self, partition: Partition, offsets: OffsetRange) -> None:
        for batch in self._batches(partition, offsets):
            rest = batch
            while len(rest):
                fits = self._fitting(rest)
                self._take(rest.slice(0, fits))
                rest = rest.slice(fits)

    def _batches(self, partition: Partition, offsets: OffsetRange) -> Iterator[MessageBatch]:
        """The messages of a range. At its end may be marks of transactions, which are no messages."""
        self._source.assign({partition: offsets.low})
        heard_s = time.monotonic()
        told_s = 0.0
        is_over = False
        while not is_over:
            if self._stopping:
                raise StoppedError(
                    f"{partition}: stopped before the interval was read; run it again, what is committed is not read twice"
                )
            fetched = self._source.fetch(_POLL_S)
            silent_s = time.monotonic() - heard_s
            if silent_s > told_s + _TELL_S:
                told_s = silent_s
                logger.warning(
                    "%s: Kafka has given nothing for %.0f s; waiting", partition, silent_s
                )
            if fetched.suspect or silent_s > self.options.broker_timeout_s:
                raise KafkaError(
                    f"{partition}: Kafka does not give what it had at offset {offsets.low}; run this again"
                )
            inside = sum(offset < offsets.high for offset in fetched.batch.offsets)
            is_over = (
                inside < len(fetched.batch) or fetched.ended.get(partition, -1) >= offsets.high
            )
            is_over = is_over or (
                inside > 0 and fetched.batch.offsets[inside - 1] == offsets.high - 1
            )
            yield fetched.batch.slice(0, inside)
            if len(fetched.batch):
                told_s = 0.0
                heard_s = time.monotonic()  # behind a commit, which may have taken longer
        self._source.drop(partition)

    def _fitting(self, batch: MessageBatch) -> int:
        """How many of the messages the commit still takes, at least one."""
        held, size = self._held, self._held_bytes
        for position, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            held, size = held + 1, size + len(key or b"") + len(value or b"")
            if held >= self.options.limits.rows or size >= self.options.limits.bytes:
                return position + 1
        return len(batch)

    def _take(self, batch: MessageBatch) -> None:
        for part, decoded in self._intake.take(batch):
            self._buffer.add(part, decoded, time.monotonic())
        self._held += len(batch)
        self._held_bytes += sum(
            len(key or b"") + len(value or b"")
            for key, value in zip(batch.keys, batch.values, strict=True)
        )
        if self._held >= self.options.limits.rows or self._held_bytes >= self.options.limits.bytes:
            self._flush()

    def _flush(self) -> None:
        if not self._buffer.taken:
            return
        began_s = time.monotonic()
        result = self._writer.flush_once(self._buffer, self._token(), self._key, self._source.pause)
        self._source.resume()
        self.totals.version = result.version if result.version is not None else self.totals.version
        if result.repeated:
            logger.warning("version %s holds these offsets already", result.version)
        else:
            self.totals.flushes += 1
            self.totals.records += sum(taken.records for taken in self._buffer.taken.values())
            self.totals.bad += self._buffer.bad
            taken = dict(self._buffer.taken)
            self._tracker.flushed(
                FlushEvents(
                    taken=taken,
                    version=result.version,
                    took_s=time.monotonic() - began_s,
                    bad=self._buffer.bad,
                )
            )
        self._buffer.clear()
        self._held = self._held_bytes = 0
        self._intake.follow(self._writer.spec)

    def _token(self) -> str:
        """What the commit holds, and for whom."""
        parts = [
            f"{partition.topic}@{self._ids[partition.topic]}/{partition.number}:{taken.low}-{taken.high}"
            for partition, taken in sorted(self._buffer.taken.items())
        ]
        return f"kafka:{self.options.name}/{hashlib.sha256(repr((self._key, parts)).encode()).hexdigest()[:32]}"


def _nothing(*_: object) -> None:
    """An interval is not cut where a new schema begins: a repeat, which knows it by then, would not be."""
