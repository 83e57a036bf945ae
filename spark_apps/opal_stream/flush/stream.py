"""The loop of a stream: fetch, decode, flush, until nothing is left or somebody stops it."""

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
    """The pace of the loop, in seconds, and the most messages of one fetch."""

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
        self._next: dict[Partition, int] = {}
        self._targets: dict[Partition, int] = {}  # where a run until empty ends
        self._ended: dict[Partition, int] = {}  # where Kafka had nothing more to read
        self._suspects: set[Partition] = set()
        self._looked_s = time.monotonic()
        self._away_s: float | None = None  # since when Kafka does not answer
        self._flush_began_s: float | None = None  # of a flush since which nothing was fetched
        self._stopping = False

    def stop(self) -> None:
        """Flush and end."""
        self._stopping = True

    def run(self) -> Totals:
        """Read until stopped, or until empty: up to the ends that Kafka had at the start."""
        try:
            self._begin()
            while not (self._stopping or (self.options.until_empty and self._has_caught_up())):
                self._turn()
            self._flush()
        finally:
            self._source.close()
            self._tracker.close()
        return self.totals

    def _begin(self) -> None:
        self._read_also(self._positions.describe(self._source.reach))

    def _read_also(self, partitions: list[Partition]) -> None:
        reach = self._source.reach(partitions)
        begins = self._positions.begin(partitions, reach)
        self._targets |= {partition: reach[partition].high for partition in partitions}
        self._next |= begins
        self._source.assign(begins)

    def _turn(self) -> None:
        now_s = time.monotonic()
        is_held_back = self._is_held_back(now_s)
        wait_s = self._tuning.poll_s
        if not is_held_back:
            wait_s = max(0.0, min(wait_s, self._buffer.wait_s(now_s)))
        fetched = self._fetch(wait_s)
        self._take(fetched)
        if self._buffer.is_due(time.monotonic(), has_more=fetched.is_full) and not is_held_back:
            self._flush()
        elif now_s - self._looked_s > self._tuning.look_s:
            self._look_around()

    def _is_held_back(self, now_s: float) -> bool:
        """Return whether the committer is too far behind, and pause or resume fetching.

        What was fetched before is flushed once the committer is closer, or at the end.
        """
        is_held_back = self._writer.is_held_back(now_s)
        if is_held_back:
            self._source.pause()
        else:
            self._source.resume()
        return is_held_back

    def _fetch(self, timeout_s: float) -> Fetched:
        """Fetch messages. Those that came during a flush have waited since its start."""
        if self._flush_began_s is None:
            return self._source.fetch(timeout_s)
        fetched = self._source.fetch(0.0)
        if len(fetched.batch):
            self._buffer.waited_from_s = self._flush_began_s
        self._flush_began_s = None
        return fetched

    def _take(self, fetched: Fetched) -> None:
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
                committed = self._writer.positions[partition]
                position = self._next[partition] if committed is None else committed
                self._buffer.reach(partition, offset, position, time.monotonic())
                self._next[partition] = max(self._next[partition], offset)
        self._suspects |= fetched.suspect
        if self._suspects:
            self._look_into(sorted(self._suspects))

    def _flush_before(self, batch: MessageBatch, position: int) -> None:
        """Flush what precedes a message that stops the stream; a restart begins at it."""
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
            self._tracker.gathered(gate.backlog.files, gate.shut_s())
        positions = {partition: self._position(partition) for partition in self._writer.positions}
        ends = {
            partition: (positions[partition], end)
            for partition, end in self._source.ends(positions).items()
        }
        in_transaction: set[Partition] = set()
        if not self._source.paused:
            # Kafka reported an end before the actual one: an open transaction begins there. What
            # is read and not flushed yet is lag, too, but waits for no transaction
            for partition, (position, end) in ends.items():
                if position >= end:
                    continue
                if self._ended.get(partition) == self._next[partition] == position:
                    in_transaction.add(partition)
        self._tracker.seen(ends, in_transaction)

    def _position(self, partition: Partition) -> int:
        """Return where the table stands, or else the next offset to read."""
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
        self._looked_s, self._away_s = time.monotonic(), None
        if new:
            logger.info("new partitions: %s", ", ".join(map(str, new)))
            self._read_also(new)

    def _look_around(self) -> None:
        """Look at topics and ends now and then, also while no message comes.

        New messages may be in new partitions.
        """
        self._source.ask_ends(self._writer.positions)
        self._report_ends()
        try:
            self._check_topics()
        except KafkaError as error:
            self._looked_s = time.monotonic()
            self._bear(error)

    def _bear(self, error: KafkaError) -> None:
        """Go on without Kafka for a while: librdkafka reconnects on its own."""
        now_s = time.monotonic()
        if self._away_s is None:
            self._away_s = now_s
        if now_s - self._away_s > self.options.broker_timeout_s:
            raise error
        logger.warning("%s", error)

    def _look_into(self, suspect: list[Partition]) -> None:
        """Find out why Kafka lacks what was asked for.

        The topic is gone or another one, or retention was faster than the stream.
        """
        self._flush()
        try:
            self._check_topics()
            reach = self._source.reach(suspect)
        except KafkaError as error:  # the next turn tries again
            self._bear(error)
            return
        positions = {partition: self._position(partition) for partition in suspect}
        begins = self._positions.begin_at(positions, reach)
        self._next |= begins
        self._source.seek(begins)
        self._suspects.clear()

    def _has_caught_up(self) -> bool:
        return all(self._next[partition] >= target for partition, target in self._targets.items())
