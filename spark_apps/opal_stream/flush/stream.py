"""The loop of a stream: fetch, decode and flush, until nothing is left or it is stopped."""

import logging
import time
from dataclasses import dataclass, replace

from opal_lake.table import Table
from opal_stream.errors import KafkaError
from opal_stream.flush.buffer import Buffer
from opal_stream.flush.intake import Intake
from opal_stream.flush.options import StreamOptions, Totals
from opal_stream.flush.positions import StreamPositions
from opal_stream.formats.batch import MessageBatch
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.source import MAX_AT_ONCE, Fetched, Source
from opal_stream.kafka.topics import Partition
from opal_stream.tracking.events import FlushEvents, Tracker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The pace of the loop.

    `poll_s` is the longest wait of a fetch, and `look_s` the time between two checks of the topics.
    A fetch returns at most `max_at_once` messages.
    """

    poll_s: float = 0.1
    look_s: float = 5.0
    max_at_once: int = MAX_AT_ONCE


class Stream:
    """One process that reads partitions into one table.

    `stop` may be called from a signal handler.
    """

    def __init__(
        self,
        table: Table,
        connection: Connection,
        options: StreamOptions,
        tracker: Tracker | None = None,
        *,
        tuning: Tuning | None = None,
    ) -> None:
        self.table = table
        self.options = options
        self._tuning = tuning or Tuning()
        self._tracker = tracker or Tracker()
        self._positions = StreamPositions(table, connection, options, self._tracker)
        self._writer, self.totals = self._positions.writer, self._positions.totals
        self._writer.is_ending = lambda: self._stopping
        self._intake = Intake(
            table, options.formats, options.on_bad_message, self._flush, self._flush_before
        )
        self._source = Source(
            connection,
            buffer_bytes=options.limits.bytes,
            headers=self._intake.decoder.needs_headers,
            max_at_once=self._tuning.max_at_once,
        )
        self._buffer = Buffer(limits=options.limits)
        self._next: dict[Partition, int] = {}  # the next offset to read
        self._targets: dict[Partition, int] = {}  # the offset at which a run until empty ends
        self._ended: dict[Partition, int] = {}  # the offset at which Kafka had no more messages
        self._suspects: set[Partition] = set()
        self._topics_checked_s = time.monotonic()
        self._unreachable_since_s: float | None = None  # None while Kafka answers
        # When the last flush began; None once messages were fetched after it
        self._flush_began_s: float | None = None
        self._stopping = False

    def stop(self) -> None:
        """Flush and end."""
        self._stopping = True

    def run(self) -> Totals:
        """Read until stopped, or until empty: up to the ends that Kafka had at the start."""
        try:
            self._begin()
            while not self._is_over():
                self._turn()
            self._flush()
        finally:
            self._source.close()
            self._tracker.close()
        return self.totals

    def _is_over(self) -> bool:
        """Return whether the run was stopped, or has read everything until empty."""
        if self._stopping:
            return True
        return self.options.until_empty and self._has_caught_up()

    def _begin(self) -> None:
        self._read_also(self._positions.describe(self._source.reach))

    def _read_also(self, partitions: list[Partition]) -> None:
        """Begin to read more partitions."""
        reach = self._source.reach(partitions)
        begins = self._positions.begin(partitions, reach)
        self._targets |= {partition: reach[partition].high for partition in partitions}
        self._next |= begins
        self._source.assign(begins)

    def _turn(self) -> None:
        """Fetch once; then flush, or check the topics, if that is due."""
        now_s = time.monotonic()
        is_held_back = self._is_held_back(now_s)
        wait_s = self._tuning.poll_s
        if not is_held_back:
            wait_s = max(0.0, min(wait_s, self._buffer.wait_s(now_s)))
        fetched = self._fetch(wait_s)
        self._take(fetched)
        if self._buffer.is_due(time.monotonic(), has_more=fetched.is_full) and not is_held_back:
            self._flush()
        elif now_s - self._topics_checked_s > self._tuning.look_s:
            self._check_topics_and_ends()

    def _is_held_back(self, now_s: float) -> bool:
        """Return whether the committer is too far behind.

        Pause or resume fetching accordingly.

        Messages that were fetched before are flushed once the committer has caught up, or at the
        end.
        """
        is_held_back = self._writer.is_held_back(now_s)
        if is_held_back:
            self._source.pause()
        else:
            self._source.resume()
        return is_held_back

    def _fetch(self, timeout_s: float) -> Fetched:
        """Fetch messages. Those of a flush's time count as waiting since its start."""
        if self._flush_began_s is None:
            return self._source.fetch(timeout_s)
        fetched = self._source.fetch(0.0)
        if len(fetched.batch):
            self._buffer.waited_from_s = self._flush_began_s
        self._flush_began_s = None
        return fetched

    def _take(self, fetched: Fetched) -> None:
        """Buffer fetched messages, flush a full buffer, and note ended partitions."""
        for batch, decoded in self._intake.take(fetched.batch):
            self._buffer.add(batch, decoded, time.monotonic())
            for partition, consumed in self._buffer.consumed.items():
                if self._next[partition] != consumed.high:
                    self._ended.pop(partition, None)
                self._next[partition] = consumed.high
            if self._buffer.is_full:
                self._flush()
        self._ended |= fetched.ended
        for partition, offset in fetched.ended.items():
            if partition in self._next:
                position = self._position(partition)
                self._buffer.reach(partition, offset, position, time.monotonic())
                self._next[partition] = max(self._next[partition], offset)
        self._suspects |= fetched.suspect
        if self._suspects:
            self._find_cause(sorted(self._suspects))

    def _flush_before(self, batch: MessageBatch, position: int) -> None:
        """Flush the messages before one that stops the stream.

        A restart begins at that one.
        """
        before = batch.slice(0, position)
        self._buffer.add(before, self._intake.decoder.decode(before), time.monotonic())
        self._flush()

    def _flush(self) -> None:
        if not self._buffer.consumed:
            return
        began_s = time.monotonic()
        result = self._writer.flush(self._buffer, self._check_topics, self._wait)
        self._source.resume()
        if result is None:
            return
        # Copies: the buffer is cleared below
        consumed = {
            partition: replace(counts) for partition, counts in self._buffer.consumed.items()
        }
        self.totals.add_flush(consumed.values(), bad=self._buffer.bad, version=result.version)
        events = FlushEvents(
            consumed=consumed,
            version=result.version,
            took_s=time.monotonic() - began_s,
            bad=self._buffer.bad,
            topic_ids=self._positions.ids,
            event=self._writer.event,
        )
        self._buffer.clear()
        self._flush_began_s = began_s
        self._tracker.flushed(events)
        self._intake.follow(self._writer.spec)
        self._report_ends()

    def _report_ends(self) -> None:
        """Report lag and stalls, and whether the committer holds this process back."""
        gate = self._positions.gate
        if gate is not None:
            self._tracker.gathered(gate.backlog.files, gate.shut_duration_s())
        positions = {partition: self._position(partition) for partition in self._next}
        position_and_end: dict[Partition, tuple[int, int]] = {}
        for partition, end in self._source.ends(positions).items():
            position_and_end[partition] = positions[partition], end
        in_transaction: set[Partition] = set()
        if not self._source.paused:
            # Kafka reported an end before the actual one: an open transaction begins there.
            # Messages that are read but not flushed are lag, too, but wait for no transaction
            for partition, (position, end) in position_and_end.items():
                is_flushed = self._next[partition] == position
                if position < end and is_flushed and self._ended.get(partition) == position:
                    in_transaction.add(partition)
        self._tracker.seen(position_and_end, in_transaction)

    def _position(self, partition: Partition) -> int:
        """Return where the table stands; the next offset to read if it has no position."""
        committed = self._writer.positions[partition]
        if committed is None:
            return self._next[partition]
        return committed

    def _wait(self) -> None:
        """Stop fetching while the store fails, so that the store gets all the time."""
        self._source.pause()
        self._report_ends()

    def _check_topics(self) -> None:
        """Raise if a topic is not the one that was read; begin new partitions."""
        new = self._positions.check_topics()
        self._topics_checked_s = time.monotonic()
        self._unreachable_since_s = None
        if new:
            logger.info("new partitions: %s", ", ".join(map(str, new)))
            self._read_also(new)

    def _check_topics_and_ends(self) -> None:
        """Check topics and ends now and then, also while no message comes.

        New messages may be in new partitions, which only this check finds.
        """
        self._source.ask_ends(self._next)
        self._report_ends()
        try:
            self._check_topics()
        except KafkaError as error:
            self._topics_checked_s = time.monotonic()
            self._tolerate(error)

    def _tolerate(self, error: KafkaError) -> None:
        """Log an error of Kafka.

        Raise it once Kafka has not answered for `broker_timeout_s`.

        librdkafka reconnects on its own.
        """
        now_s = time.monotonic()
        if self._unreachable_since_s is None:
            self._unreachable_since_s = now_s
        if now_s - self._unreachable_since_s > self.options.broker_timeout_s:
            raise error
        logger.warning("%s", error)

    def _find_cause(self, suspect: list[Partition]) -> None:
        """Find out why Kafka lacks an offset that the stream asked for.

        Continue, or raise.

        Either the topic was deleted or created again, or retention was faster than the stream.
        """
        self._flush()
        try:
            self._check_topics()
            reach = self._source.reach(suspect)
        except KafkaError as error:  # the next turn tries again
            self._tolerate(error)
            return
        positions = {partition: self._position(partition) for partition in suspect}
        begins = self._positions.begin_at(positions, reach)
        self._next |= begins
        self._source.seek(begins)
        self._suspects.clear()

    def _has_caught_up(self) -> bool:
        return all(self._next[partition] >= target for partition, target in self._targets.items())
