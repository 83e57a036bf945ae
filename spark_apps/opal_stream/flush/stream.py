"""The loop: fetch, decode, flush, until there is nothing more or somebody says stop."""

import logging
import time
from dataclasses import replace

from opal_lake.table import Table
from opal_stream.errors import KafkaError
from opal_stream.flush.buffer import Buffer
from opal_stream.flush.intake import Intake
from opal_stream.flush.options import StreamOptions, Totals
from opal_stream.flush.places import Places
from opal_stream.formats.batch import MessageBatch
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.source import Fetched, Source
from opal_stream.kafka.topics import Partition
from opal_stream.tracking.events import FlushEvents, Tracker

_POLL_S, _LOOK_S = 0.1, 5.0
logger = logging.getLogger(__name__)


class Stream:
    """One process, one table, some partitions. `stop` may be called from a signal handler."""

    def __init__(
        self,
        table: Table,
        connection: Connection,
        options: StreamOptions,
        tracker: Tracker | None = None,
    ) -> None:
        self.table = table
        self.options = options
        self._tracker = tracker or Tracker()
        self._places = Places(table, connection, options, self._tracker)
        self._writer, self.totals = self._places.writer, self._places.totals
        self._writer.is_ending = lambda: self._stopping
        self._intake = Intake(
            table, options.formats, options.on_bad_message, self._flush, self._flush_before
        )
        self._source = Source(
            connection,
            buffer_bytes=options.limits.bytes,
            headers=self._intake.decoder.needs_headers,
        )
        self._buffer = Buffer(limits=options.limits)
        self._next: dict[Partition, int] = {}
        self._targets: dict[Partition, int] = {}
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
        """Until it is stopped, or has read what was there when it began."""
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
        self._read_also(self._places.describe(self._source.reach))

    def _read_also(self, partitions: list[Partition]) -> None:
        reach = self._source.reach(partitions)
        begins = self._places.begin(partitions, reach)
        self._targets |= {partition: reach[partition].high for partition in partitions}
        self._next |= begins
        self._source.assign(begins)

    def _turn(self) -> None:
        now_s = time.monotonic()
        is_held_back = self._is_held_back(now_s)
        fetched = self._fetch(
            _POLL_S if is_held_back else max(0.0, min(_POLL_S, self._buffer.wait_s(now_s)))
        )
        self._take(fetched)
        if self._buffer.is_due(time.monotonic(), has_more=fetched.is_full) and not is_held_back:
            self._flush()
        elif now_s - self._looked_s > _LOOK_S:
            self._look_around()

    def _is_held_back(self, now_s: float) -> bool:
        """While the committer is too far behind: nothing is fetched, and what was is flushed behind it, or at the end."""
        is_held_back = self._writer.is_held_back(now_s)
        if is_held_back:
            self._source.pause()
        else:
            self._source.resume()
        return is_held_back

    def _fetch(self, timeout_s: float) -> Fetched:
        """What is there at once after a flush came while it ran, and has waited since."""
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
            for partition, taken in self._buffer.taken.items():
                if self._next[partition] != taken.high:
                    self._ended.pop(partition, None)
                self._next[partition] = taken.high
            if self._buffer.is_full:
                self._flush()
        self._ended |= fetched.ended
        for partition, offset in fetched.ended.items():
            if partition in self._next:
                begin = self._writer.positions[partition]
                self._buffer.reach(
                    partition,
                    offset,
                    self._next[partition] if begin is None else begin,
                    time.monotonic(),
                )
                self._next[partition] = max(self._next[partition], offset)
        self._suspects |= fetched.suspect
        if self._suspects:
            self._look_into(sorted(self._suspects))

    def _flush_before(self, batch: MessageBatch, position: int) -> None:
        """What comes before a message that stops the stream is committed; a restart finds it again."""
        before = batch.slice(0, position)
        self._buffer.add(before, self._intake.decoder.decode(before), time.monotonic())
        self._flush()

    def _flush(self) -> None:
        if not self._buffer.taken:
            return
        began_s = time.monotonic()
        result = self._writer.flush(self._buffer, self._check_topics, self._wait)
        self._source.resume()
        if result is None:
            return
        self.totals.flushes += 1
        self.totals.records += sum(taken.records for taken in self._buffer.taken.values())
        self.totals.bad += self._buffer.bad
        self.totals.version = result.version if result.version is not None else self.totals.version
        taken = {partition: replace(one) for partition, one in self._buffer.taken.items()}
        events = FlushEvents(
            taken=taken,
            version=result.version,
            took_s=time.monotonic() - began_s,
            bad=self._buffer.bad,
            topic_ids=self._places.ids,
            event=self._writer.event,
        )
        self._buffer.clear()
        self._flush_began_s = began_s
        self._tracker.flushed(events)
        self._intake.follow(self._writer.spec)
        self._show_ends()

    def _show_ends(self) -> None:
        """Lag and stalls, for those who watch, and whether the committer holds this process back."""
        if self._places.gate is not None:
            self._tracker.gathered(self._places.gate.backlog.files, self._places.gate.shut_s())
        positions = {
            part: self._next[part] if position is None else position
            for part, position in self._writer.positions.items()
        }
        ends = {
            partition: (positions[partition], end)
            for partition, end in self._source.ends(positions).items()
        }
        # Kafka said that a partition ends where it does not: an open transaction begins there.
        # What was read and is not flushed yet is lag, too, but waits for no transaction.
        in_transaction = {
            partition
            for partition, (position, end) in ends.items()
            if position < end and self._ended.get(partition) == self._next[partition] == position
        }
        self._tracker.seen(ends, () if self._source.paused else in_transaction)

    def _wait(self) -> None:
        """While the store is away: nothing more is fetched, and Kafka is not asked, so that the store gets all the time."""
        self._source.pause()
        self._show_ends()

    def _check_topics(self) -> None:
        """Before each commit: the topics must be those that the messages were read of."""
        new = self._places.check_topics()
        self._looked_s, self._away_s = time.monotonic(), None
        if new:
            logger.info("new partitions: %s", ", ".join(map(str, new)))
            self._read_also(new)

    def _look_around(self) -> None:
        """Now and then, also while nothing comes: it may come in new partitions."""
        self._source.ask_ends(self._writer.positions)
        self._show_ends()
        try:
            self._check_topics()
        except KafkaError as error:
            self._looked_s = time.monotonic()
            self._bear(error)

    def _bear(self, error: KafkaError) -> None:
        """Go on without Kafka for a while: librdkafka goes on by itself when it is back."""
        now_s = time.monotonic()
        self._away_s = now_s if self._away_s is None else self._away_s
        if now_s - self._away_s > self.options.broker_timeout_s:
            raise error
        logger.warning("%s", error)

    def _look_into(self, suspect: list[Partition]) -> None:
        """Kafka has not what was asked for: the topic is gone or another one, or retention was faster than the stream."""
        self._flush()
        try:
            self._check_topics()
            reach = self._source.reach(suspect)
        except KafkaError as error:  # this is looked into when it can be
            self._bear(error)
            return
        positions = {
            part: self._next[part]
            if (position := self._writer.positions[part]) is None
            else position
            for part in suspect
        }
        begins = self._places.begin_at(positions, reach)
        self._next |= begins
        self._source.seek(begins)
        self._suspects.clear()

    def _has_caught_up(self) -> bool:
        return all(self._next[partition] >= target for partition, target in self._targets.items())
