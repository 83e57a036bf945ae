"""Where a stream stands, as the table itself knows: positions, rates of its last commits, and with Kafka at hand the lag."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from confluent_kafka import Consumer, TopicPartition

from opal_lake.errors import NotFoundError
from opal_lake.table import Table
from opal_stream.errors import TopicChangedError
from opal_stream.gathered.backlog import Backlog, held_back_text
from opal_stream.gathered.folder import GatheredFolder, Listing
from opal_stream.kafka.applications import (
    Application,
    applications_of,
    begun_topics,
    known_positions,
)
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.offsets import (
    changed_topic,
    changed_topics,
    next_offset,
    plan_begin,
)
from opal_stream.kafka.settings import ISOLATION
from opal_stream.kafka.topics import Partition, Reach, Topic, Topics, chosen_partitions, reach_of
from opal_stream.operations.reading import Policies

_COMMITS = 1_000  # that are looked at for rates
_READ_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Of one partition. `position` is None where no commit has reached it: then it is behind by all that Kafka has.

    Without Kafka there is no end and no lag; `rate` is messages a second over the last minute of commits.

    `waiting_s` is the age of the next message by its own timestamp; it and `has_moved` are None if nobody asked or nothing waits.
    `gathered` offsets behind the position lie in files that no commit holds yet; the lag counts them, and `lost` are those behind them.
    `open_s` is for how long an open transaction has kept all that is behind the position from being read; None where there is none, or
    nobody asked.
    `problems` stop the stream or its committer: by kind of alarm, what is wrong and what to do.
    """

    stream: str
    topic: str
    partition: int
    position: int | None
    end: int | None
    lag: int | None
    rate: float
    committed: str | None
    committed_before: str | None = None  # where `committed` is older than what was looked at
    note: str = ""
    topic_id: str = ""
    lost: int = 0
    waiting_s: float | None = None
    has_moved: bool | None = None
    open_s: float | None = None
    gathered: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kafka:
    """What it says of topics. None is one that is gone; of a topic that it was not asked for, nothing is known."""

    topics: Mapping[str, Topic | None] = field(default_factory=dict)
    reach: Mapping[Partition, Reach] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)

    def end_of(self, partition: Partition, reach: Reach) -> int:
        """Behind open transactions, too."""
        return max(reach.high, self.ends.get(partition, 0))

    def is_current(self, application: Application) -> bool:
        """Whether the topic is still the one that was read."""
        name = application.partition.topic
        topic = self.topics.get(name)
        return name not in self.topics or (topic is not None and topic.id == application.topic_id)

    def changed(self, known: Collection[Application]) -> list[Application]:
        return changed_topics(
            known, {name: topic.id for name, topic in self.topics.items() if topic is not None}
        )

    def reach_of(self, application: Application) -> Reach | None:
        return self.reach.get(application.partition) if self.is_current(application) else None


def read_status(
    table: Table,
    connection: Connection | None,
    *,
    window_s: float = 60.0,
    stall_s: float | None = None,
    gathered_bytes: int = 0,
    topics: Sequence[str] = (),
    stream: str = "main",
) -> list[PartitionStatus]:
    """One entry for each partition of each topic that a stream has begun, by name. With `stall_s`, which have moved for so long.

    With `gathered_bytes` of files that wait for the committer its processes read no more. Where `topics` are named it is asked of them and
    of `stream` alone, whether that has begun or not.
    """
    folder = GatheredFolder(table.storage, table.log.head().root.table_id)
    listing, stuck = folder.look_for_stuck(lambda: table.log.head().positions)
    head = table.log.head()
    known = known_positions(head.positions) | listing.begins(head.positions)
    begun = begun_topics(head.positions) | {
        (application.stream, application.partition.topic) for application in known
    }
    wanted = {(stream, topic) for topic in topics} or begun
    kafka = _Kafka() if connection is None else _ask(connection, wanted & begun, wanted - begun)
    positions = _positions(known, kafka, wanted)
    waiting = (
        _waiting(connection, positions, kafka)
        if connection is not None and stall_s is not None
        else {}
    )
    in_transaction = (
        _in_transaction(connection, positions, kafka)
        if connection is not None and stall_s is not None
        else {}
    )
    before = _positions_before(table, stall_s) if waiting and stall_s is not None else {}
    look = _Look(
        listing=listing,
        stuck=stuck,
        changed=kafka.changed(known),
        stands=head.positions,
        ends=listing.ends(head.positions),
        kafka=kafka,
        held_back=_held_back(
            table, {application.stream for application in listing.headers}, gathered_bytes
        ),
        rates=_read_rates(table, window_s),
        waiting=waiting,
        in_transaction=in_transaction,
        before=before,
        begun_before=begun_topics(before),
    )
    return [
        look.entry(application, position)
        for application, position in sorted(positions.items(), key=lambda pair: pair[0].place)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """All that was seen at one moment, and what that says of one partition."""

    listing: Listing
    stuck: Mapping[str, str]
    changed: Collection[Application]
    stands: Mapping[str, int]
    ends: Mapping[str, int]
    kafka: _Kafka
    held_back: Mapping[str, str]
    rates: "_Rates"
    waiting: Mapping[Application, float]
    in_transaction: Mapping[Application, float]
    before: Mapping[str, int]
    begun_before: Collection[tuple[str, str]]

    def entry(self, application: Application, position: int | None) -> PartitionStatus:
        name, reach = str(application), self.kafka.reach_of(application)
        reached = self.ends.get(name, position)
        end = self.kafka.end_of(application.partition, reach) if reach else None
        note = _note(reached, reach, is_current=self.kafka.is_current(application))
        notes = (
            note,
            self.listing.note(application, self.stands, self.stuck),
            self.held_back.get(application.stream),
            _transaction_note(reached, reach, end),
        )
        return PartitionStatus(
            stream=application.stream,
            topic=application.partition.topic,
            partition=application.partition.number,
            position=position,
            end=end,
            lag=max(0, end - (reach.low if position is None else position))
            if reach and end is not None
            else None,
            rate=self.rates.rates.get(name, 0.0),
            committed=self.rates.moments.get(name),
            committed_before=self.rates.since
            if name in self.stands and name not in self.rates.moments
            else None,
            note="; ".join(filter(None, notes)),
            topic_id=application.topic_id,
            lost=max(0, reach.low - reached) if reach and reached is not None else 0,
            waiting_s=self.waiting.get(application),
            has_moved=self._has_moved(application) if application in self.waiting else None,
            open_s=self.in_transaction.get(application),
            gathered=reached - position if reached is not None and position is not None else 0,
            problems=self._problems(application, reached, reach),
        )

    def _problems(
        self, application: Application, reached: int | None, reach: Reach | None
    ) -> dict[str, str]:
        """As the stream itself would say them."""
        found, stream = {}, application.stream
        if reached is not None and (changed := self._topic_problem(application, reached, reach)):
            found["topic"] = f"{stream} {changed}"
        if held_back := self.held_back.get(stream):
            found["gathered"] = f"{stream} is {held_back}"
        if note := self.listing.note(application, self.stands, self.stuck):
            found["gathered"] = (
                f"{stream} {application.partition}: {note}: {self.listing.cause(application, self.stuck)}"
            )
        return found

    def _topic_problem(self, application: Application, reached: int, reach: Reach | None) -> str:
        partition, topic = application.partition, self.kafka.topics.get(application.partition.topic)
        if application in self.changed:
            return str(
                changed_topic(partition, reached, application.topic_id, topic.id if topic else "")
            )
        if topic is None and partition.topic in self.kafka.topics:
            return (
                f"{partition}: Kafka has no topic {partition.topic!r} any more, and the table stands at offset {reached} of it; create it "
                "again, and start the stream with --on-new-topic continue, or ask by --topic for what is still read"
            )
        if reach is not None:
            try:
                plan_begin(application, reached, reach, Policies(on_gap="continue"))
            except TopicChangedError as error:
                return str(error)
        return ""

    def _has_moved(self, application: Application) -> bool:
        """Where the stream had not begun yet, nothing can have stood still."""
        had_begun = (application.stream, application.partition.topic) in self.begun_before
        return not had_begun or self.before.get(str(application)) != self.stands.get(
            str(application)
        )


def _ask(
    connection: Connection, begun: Iterable[tuple[str, str]], new: Iterable[tuple[str, str]]
) -> _Kafka:
    """By streams and topics. A topic that was begun may be gone, a new one has to be there."""
    asked = Topics(connection)
    found: dict[str, Topic | None] = {
        name: asked.describe_if_there(name) for name in sorted({topic for _, topic in begun})
    }
    found |= asked.describe(sorted({topic for _, topic in new}))
    consumer = connection.consumer()
    try:
        there = chosen_partitions([topic for topic in found.values() if topic is not None], ())
        reach = reach_of(consumer, connection, there)
        return _Kafka(topics=found, reach=reach, ends=asked.ends(there))
    finally:
        consumer.close()


def _positions(
    known: Mapping[Application, int], kafka: _Kafka, wanted: Collection[tuple[str, str]]
) -> dict[Application, int | None]:
    """Of these streams and topics; None where nothing was committed."""
    topics = [
        (stream, topic) for stream, name in wanted if (topic := kafka.topics.get(name)) is not None
    ]
    there = [
        application for stream, topic in topics for application in applications_of(stream, topic)
    ]
    return {
        **dict.fromkeys(there),
        **{
            one: position
            for one, position in known.items()
            if (one.stream, one.partition.topic) in wanted
        },
    }


def _held_back(table: Table, streams: Iterable[str], most_bytes: int) -> dict[str, str]:
    """Why the processes of a stream read no more, and what to do."""
    backlogs = {stream: Backlog.read(table.storage, stream) for stream in streams}
    return {
        stream: f"held back: {held_back_text(backlog, most_bytes, table.uri, stream)}"
        for stream, backlog in backlogs.items()
        if backlog.is_too_much(most_bytes)
    }


def _note(reached: int | None, reach: Reach | None, *, is_current: bool) -> str:
    if not is_current:
        return "of a topic that was deleted or made anew"
    if reached is None:
        return "not read yet"
    if reach is not None and reached > reach.high:
        return f"Kafka ends before, at {reach.high}"
    if reach is not None and reached < reach.low:
        return f"{reach.low - reached} offsets are lost"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Messages a second, and when the last commit of each application was, as far as commits since then say."""

    rates: Mapping[str, float]
    moments: Mapping[str, str]
    since: str | None


def _read_rates(table: Table, window_s: float) -> _Rates:
    records: dict[str, int] = {}
    moments: dict[str, str] = {}
    newest_us = oldest_us = None
    for commit in islice(table.commits(), _COMMITS):
        newest_us = commit.timestamp_us if newest_us is None else newest_us
        if newest_us - commit.timestamp_us > window_s * 1e6:
            break
        oldest_us = commit.timestamp_us
        for name, advance in commit.positions.items():
            records[name] = records.get(name, 0) + advance.end - advance.start
            moments.setdefault(name, _moment_text(commit.timestamp_us))
    span_s = max(1.0, ((newest_us or 0) - (oldest_us or 0)) / 1e6)
    since = None if oldest_us is None else _moment_text(oldest_us)
    return _Rates(
        rates={name: round(count / span_s, 1) for name, count in records.items()},
        moments=moments,
        since=since,
    )


def _moment_text(moment_us: int) -> str:
    return datetime.fromtimestamp(moment_us / 1e6, UTC).isoformat(timespec="milliseconds")


def _waiting(
    connection: Connection, positions: Mapping[Application, int | None], kafka: _Kafka
) -> dict[Application, float]:
    """How long the next message of each partition that has one waits."""
    reach = {
        application: reach
        for application in positions
        if (reach := kafka.reach_of(application)) is not None
    }
    begins = {
        application: next_offset(positions[application], reach[application])
        for application in reach
    }
    consumer = connection.consumer()
    try:
        behind = {
            application: begin
            for application, begin in begins.items()
            if begin < reach[application].high
        }
        return {
            application: _age_s(consumer, application.partition, begin)
            for application, begin in behind.items()
        }
    finally:
        consumer.close()


def _in_transaction(
    connection: Connection, positions: Mapping[Application, int | None], kafka: _Kafka
) -> dict[Application, float]:
    """Return the age of the open transactions that partitions wait for, by their first messages."""
    consumer = connection.consumer({ISOLATION: "read_uncommitted"})
    ages: dict[Application, float] = {}
    try:
        for application, position in positions.items():
            reach = kafka.reach_of(application)
            if reach is None or next_offset(position, reach) < reach.high:
                continue  # something can be read first
            if reach.high < kafka.end_of(application.partition, reach):
                ages[application] = _age_s(consumer, application.partition, reach.high)
        return ages
    finally:
        consumer.close()


def _transaction_note(reached: int | None, reach: Reach | None, end: int | None) -> str:
    if (
        reach is None
        or end is None
        or next_offset(reached, reach) < reach.high
        or reach.high >= end
    ):
        return ""
    return f"waits for an open transaction, which {end - reach.high:,} offsets are in or behind"


def _age_s(consumer: Consumer, partition: Partition, offset: int) -> float:
    """0 for a message without a timestamp, or that does not come in time."""
    consumer.assign([TopicPartition(partition.topic, partition.number, offset)])
    message = consumer.poll(_READ_S)
    moment_ms = message.timestamp()[1] if message is not None and message.error() is None else -1
    return max(0.0, time.time() - moment_ms / 1000) if moment_ms >= 0 else 0.0


def _positions_before(table: Table, span_s: float) -> Mapping[str, int]:
    """Those of the version that was the newest so long ago; none if there was no table yet."""
    moment = datetime.fromtimestamp(time.time() - span_s, UTC)
    try:
        return table.snapshot_at(timestamp=moment).positions
    except NotFoundError:
        return {}
