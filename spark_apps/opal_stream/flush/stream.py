"""The loop: fetch, decode, flush, until there is nothing more or somebody says stop."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from opal_lake.errors import InvalidInputError
from opal_lake.table import Table
from opal_stream.errors import KafkaError
from opal_stream.flush.buffer import Buffer, FlushLimits
from opal_stream.flush.intake import Intake
from opal_stream.flush.writer import Writer
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import FormatOptions
from opal_stream.kafka.applications import Application, check_stream, known_positions
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.offsets import Policies, changed_topic, check_topic_ids, plan_begin
from opal_stream.kafka.source import Fetched, Source
from opal_stream.kafka.topics import Partition, Reach, Topic, Topics, chosen_partitions
from opal_stream.tracking.events import FlushEvents, Tracker

_POLL_S, _LOOK_S = 0.1, 5.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What to read, and how. Without `partitions` all of the topics, also such as come to be."""

    topics: Sequence[str]
    name: str = "main"
    partitions: Sequence[int] = ()
    formats: FormatOptions = field(default_factory=FormatOptions)
    limits: FlushLimits = field(default_factory=FlushLimits)
    policies: Policies = field(default_factory=Policies)
    on_bad_message: str = "fail"
    start: str = "earliest"
    until_empty: bool = False
    give_up_s: float = 60.0

    def __post_init__(self) -> None:
        check_stream(self.name)
        if not self.topics:
            raise InvalidInputError("a stream reads at least one topic: --topic orders")
        known = {"on_bad_message": ("fail", "quarantine"), "start": ("earliest", "latest")}
        values = {"on_bad_message": self.on_bad_message, "start": self.start}
        values |= {"on_gap": self.policies.on_gap, "on_new_topic": self.policies.on_new_topic}
        for option, value in values.items():
            if value not in known.get(option, ("fail", "continue")):
                raise InvalidInputError(f"{option}={value!r} is unknown; use one of {', '.join(known.get(option, ('fail', 'continue')))}")


@dataclass(slots=True, kw_only=True)
class Totals:
    """What a run did."""

    records: int = 0
    bad: int = 0
    flushes: int = 0
    version: int | None = None
    missing: int = 0


class Stream:
    """One process, one table, some partitions. `stop` may be called from a signal handler."""

    def __init__(self, table: Table, connection: Connection, options: StreamOptions, tracker: Tracker | None = None) -> None:
        self.table = table
        self.options = options
        self.totals = Totals()
        self._tracker = tracker or Tracker()
        self._intake = Intake(table, options.formats, options.on_bad_message, self._flush, self._flush_before)
        self._source = Source(connection, buffer_bytes=options.limits.bytes, headers=self._intake.decoder.needs_headers)
        self._topics = Topics(connection)
        self._ids: dict[str, str] = {}
        self._buffer = Buffer(limits=options.limits)
        self._writer = Writer(table=table, on_bad_message=options.on_bad_message, give_up_s=options.give_up_s)
        self._next: dict[Partition, int] = {}
        self._targets: dict[Partition, int] = {}
        self._suspects: set[Partition] = set()
        self._looked_s = time.monotonic()
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
        topics = self._topics.describe(self.options.topics)
        self._ids = {name: topic.id for name, topic in topics.items()}
        known = known_positions(self.table.log.head().positions, self.options.name)
        check_topic_ids(known, self._ids, self.options.policies)
        self._read_also(chosen_partitions(topics.values(), self.options.partitions))

    def _read_also(self, partitions: list[Partition]) -> None:
        positions = self.table.log.head().positions
        reach = self._source.reach(partitions)
        begins: dict[Partition, int] = {}
        for partition in partitions:
            application = Application(stream=self.options.name, partition=partition, topic_id=self._ids[partition.topic])
            position = positions.get(str(application))
            begins[partition] = self._begin_at(application, position, reach[partition])
            self._writer.applications[partition] = application
            self._writer.positions[partition] = position
            self._targets[partition] = reach[partition].high
        self._next |= begins
        self._source.assign(begins)

    def _begin_at(self, application: Application, position: int | None, reach: Reach) -> int:
        latest = self.options.start == "latest"
        begin = plan_begin(application, position, reach, self.options.policies, from_latest=latest)
        if begin.missing:
            self.totals.missing += begin.missing
            self._tracker.gap(application.partition, position or 0, begin.offset, application.topic_id)
            logger.warning("%s: %d offsets from %s on are lost", application.partition, begin.missing, position)
        return begin.offset

    def _turn(self) -> None:
        now_s = time.monotonic()
        fetched = self._source.fetch(max(0.0, min(_POLL_S, self._buffer.wait_s(now_s))))
        self._take(fetched)
        if self._buffer.is_due(time.monotonic()):
            self._flush()
        elif now_s - self._looked_s > _LOOK_S:
            self._look_around()

    def _take(self, fetched: Fetched) -> None:
        for batch, decoded in self._intake.take(fetched.batch):
            self._buffer.add(batch, decoded, time.monotonic())
            for partition, taken in self._buffer.taken.items():
                self._next[partition] = taken.high
            if self._buffer.is_full:
                self._flush()
        for partition, offset in fetched.ended.items():
            if partition in self._next:
                begin = self._writer.positions[partition]
                self._buffer.reach(partition, offset, self._next[partition] if begin is None else begin, time.monotonic())
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
            taken=taken, version=result.version, took_s=time.monotonic() - began_s, bad=self._buffer.bad, topic_ids=self._ids
        )
        self._buffer.clear()
        self._tracker.flushed(events)
        self._intake.follow(self._writer.spec)
        self._show_ends()

    def _show_ends(self) -> None:
        """Lag and stalls, for those who watch."""
        places = {part: self._next[part] if position is None else position for part, position in self._writer.positions.items()}
        self._tracker.seen({partition: (places[partition], end) for partition, end in self._source.ends(places).items()})

    def _wait(self) -> None:
        """While the store is away: nothing more is fetched."""
        self._source.pause()
        self._show_ends()

    def _check_topics(self) -> None:
        """Before each commit: the topics must be those that the messages were read of."""
        topics = self._topics.describe(self.options.topics)
        self._looked_s = time.monotonic()
        for name, topic in topics.items():
            if topic.id != self._ids[name]:
                partition = next(part for part in self._next if part.topic == name)
                raise changed_topic(partition, self._writer.positions[partition] or 0, self._ids[name], topic.id)
        self._look_for_partitions(topics)

    def _look_around(self) -> None:
        """Now and then, also while nothing comes: it may come in new partitions."""
        self._show_ends()
        try:
            self._check_topics()
        except KafkaError as error:
            self._looked_s = time.monotonic()
            logger.warning("%s", error)

    def _look_for_partitions(self, topics: dict[str, Topic]) -> None:
        if not self.options.partitions and (new := sorted(set(chosen_partitions(topics.values(), ())) - set(self._next))):
            logger.info("new partitions: %s", ", ".join(map(str, new)))
            self._read_also(new)

    def _look_into(self, suspect: list[Partition]) -> None:
        """Kafka has not what was asked for: the topic is gone or another one, or retention was faster than the stream."""
        self._flush()
        try:
            self._check_topics()
            reach = self._source.reach(suspect)
        except KafkaError as error:  # a broker restarts: librdkafka goes on by itself, and this is looked into when it can be
            logger.warning("%s", error)
            return
        begins = {}
        for partition in suspect:
            position = self._writer.positions[partition]
            at = self._next[partition] if position is None else position
            begins[partition] = self._begin_at(self._writer.applications[partition], at, reach[partition])
        self._next |= begins
        self._source.seek(begins)
        self._suspects.clear()

    def _has_caught_up(self) -> bool:
        return all(self._next[partition] >= target for partition, target in self._targets.items())
