"""The status of streams as the table knows it: positions and rates of the last commits.

With a connection to Kafka it also has the lag.
"""

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
    changed_topic_error,
    changed_topics,
    next_offset,
    plan_begin,
)
from opal_stream.kafka.settings import ISOLATION
from opal_stream.kafka.topics import Partition, Reach, Topic, Topics, chosen_partitions, reach_of
from opal_stream.operations.reading import Policies

_COMMITS = 1_000  # the most commits that are read for rates
_READ_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The status of one partition.

    - `position` is None without a commit: then the lag is all messages that Kafka has.
    - `end` and `lag` are None without Kafka.
    - `rate` is messages a second over the last minute of commits.
    - `waiting_s` is the age of the next message by its own timestamp. `waiting_s` and `has_moved`
      are None if no message waits, or without a limit of stalls.
    - `gathered` offsets behind the position lie in files that no commit holds yet; the lag counts
      them. Behind these, Kafka has deleted `lost` offsets unread.
    - `open_s` is for how long an open transaction has kept the messages behind the position from
      being read; None without such a transaction, or without a limit of stalls.
    - `problems` stop the stream or its committer: by kind of alarm, what is wrong and what to do.
    """

    stream: str
    topic: str
    partition: int
    position: int | None
    end: int | None
    lag: int | None
    rate: float
    committed: str | None
    committed_before: str | None = None  # if the last commit is older than those that were read
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
    """Kafka's answers about topics.

    A topic is None if Kafka does not have it. Only topics that Kafka was asked for have an entry.
    """

    topics: Mapping[str, Topic | None] = field(default_factory=dict)
    reach: Mapping[Partition, Reach] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)

    def end_of(self, partition: Partition, reach: Reach) -> int:
        """Return the end of a partition, open transactions included."""
        return max(reach.high, self.ends.get(partition, 0))

    def is_current(self, application: Application) -> bool:
        """Return whether the topic is still the one that was read, as far as is known."""
        name = application.partition.topic
        if name not in self.topics:
            return True
        topic = self.topics[name]
        return topic is not None and topic.id == application.topic_id

    def changed(self, known: Collection[Application]) -> list[Application]:
        """Return the applications whose topic is another one than the one that was read."""
        ids = {name: topic.id for name, topic in self.topics.items() if topic is not None}
        return changed_topics(known, ids)

    def reach_of(self, application: Application) -> Reach | None:
        if self.is_current(application):
            return self.reach.get(application.partition)
        return None


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
    """Return the status of each partition of each topic that a stream has begun.

    With `stall_s` the status says whether a partition has moved within that time. `gathered_bytes`
    is the limit of waiting files at which a stream stops reading. Where `topics` are named, only
    their status for `stream` is returned, whether the stream has begun them or not.
    """
    folder = GatheredFolder(table.storage, table.log.head().root.table_id)
    listing, stuck = folder.look_for_stuck(lambda: table.log.head().positions)
    # After the listing: a file that is committed in between is in the head
    head = table.log.head()
    known = known_positions(head.positions) | listing.begins(head.positions)
    begun = begun_topics(head.positions) | {application.stream_topic for application in known}
    wanted = {(stream, topic) for topic in topics} or begun
    if connection is None:
        kafka = _Kafka()
    else:
        kafka = _ask(connection, wanted & begun, wanted - begun)
    positions = _positions(known, kafka, wanted)
    waiting: dict[Application, float] = {}
    in_transaction: dict[Application, float] = {}
    before: Mapping[str, int] = {}
    if connection is not None and stall_s is not None:
        waiting = _waiting(connection, positions, kafka)
        in_transaction = _in_transaction(connection, positions, kafka)
        if waiting:
            before = _positions_before(table, stall_s)
    streams = {application.stream for application in listing.headers}
    look = _Look(
        listing=listing,
        stuck=stuck,
        changed=kafka.changed(known),
        committed=head.positions,
        ends=listing.ends(head.positions),
        kafka=kafka,
        held_back=_held_back(table, streams, gathered_bytes),
        rates=_read_rates(table, window_s),
        waiting=waiting,
        in_transaction=in_transaction,
        before=before,
        begun_before=begun_topics(before),
    )
    order = sorted(positions, key=lambda application: application.sort_key)
    return [look.entry(application, positions[application]) for application in order]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The answers of the table, of its folder and of Kafka at one moment."""

    listing: Listing
    stuck: Mapping[str, str]
    changed: Collection[Application]
    committed: Mapping[str, int]  # the table's positions
    ends: Mapping[str, int]  # the positions when all gathered files are committed
    kafka: _Kafka
    held_back: Mapping[str, str]
    rates: "_Rates"
    waiting: Mapping[Application, float]
    in_transaction: Mapping[Application, float]
    before: Mapping[str, int]
    begun_before: Collection[tuple[str, str]]

    def entry(self, application: Application, position: int | None) -> PartitionStatus:
        """Return the status of one partition."""
        name, reach = str(application), self.kafka.reach_of(application)
        reached = self.ends.get(name, position)
        end: int | None = None
        lag: int | None = None
        lost = 0
        if reach is not None:
            end = self.kafka.end_of(application.partition, reach)
            begin = reach.low if position is None else position
            lag = max(0, end - begin)
            if reached is not None:
                lost = max(0, reach.low - reached)
        is_older = name in self.committed and name not in self.rates.moments
        has_moved: bool | None = None
        if application in self.waiting:
            has_moved = self._has_moved(application)
        gathered = 0
        if reached is not None and position is not None:
            gathered = reached - position
        return PartitionStatus(
            stream=application.stream,
            topic=application.partition.topic,
            partition=application.partition.number,
            position=position,
            end=end,
            lag=lag,
            rate=self.rates.rates.get(name, 0.0),
            committed=self.rates.moments.get(name),
            committed_before=self.rates.since if is_older else None,
            note=self._note(application, reached, reach, end),
            topic_id=application.topic_id,
            lost=lost,
            waiting_s=self.waiting.get(application),
            has_moved=has_moved,
            open_s=self.in_transaction.get(application),
            gathered=gathered,
            problems=self._problems(application, reached, reach),
        )

    def _note(
        self, application: Application, reached: int | None, reach: Reach | None, end: int | None
    ) -> str:
        is_current = self.kafka.is_current(application)
        notes = (
            _position_note(reached, reach, is_current=is_current),
            self.listing.note(application, self.committed, self.stuck),
            self.held_back.get(application.stream, ""),
            _transaction_note(reached, reach, end),
        )
        return "; ".join(note for note in notes if note)

    def _problems(
        self, application: Application, reached: int | None, reach: Reach | None
    ) -> dict[str, str]:
        """Return what stops a partition, by kind of alarm, in the stream's own words."""
        problems: dict[str, str] = {}
        stream = application.stream
        if reached is not None and (changed := self._topic_problem(application, reached, reach)):
            problems["topic"] = f"{stream} {changed}"
        if held_back := self.held_back.get(stream):
            problems["gathered"] = f"{stream} is {held_back}"
        # A person has to look at stuck files: their alarm replaces that of held back processes
        if note := self.listing.note(application, self.committed, self.stuck):
            cause = self.listing.cause(application, self.stuck)
            problems["gathered"] = f"{stream} {application.partition}: {note}: {cause}"
        return problems

    def _topic_problem(self, application: Application, reached: int, reach: Reach | None) -> str:
        """Return what is wrong with the topic of a partition; empty if nothing is."""
        partition, topic = application.partition, self.kafka.topics.get(application.partition.topic)
        if application in self.changed:
            current_id = "" if topic is None else topic.id
            return str(changed_topic_error(partition, reached, application.topic_id, current_id))
        if topic is None and partition.topic in self.kafka.topics:
            return (
                f"{partition}: Kafka has no topic {partition.topic!r} any more, and the table's "
                f"position in it is offset {reached}; create the topic again, and start the stream "
                "with on_new_topic='continue' (--on-new-topic continue), or without this topic"
            )
        if reach is None:
            return ""
        try:
            plan_begin(application, reached, reach, Policies(on_gap="continue"))
        except TopicChangedError as error:
            return str(error)
        return ""

    def _has_moved(self, application: Application) -> bool:
        """Return whether a partition has moved, or the stream had not begun its topic."""
        if application.stream_topic not in self.begun_before:
            return True
        name = str(application)
        return self.before.get(name) != self.committed.get(name)


def _ask(
    connection: Connection, begun: Iterable[tuple[str, str]], new: Iterable[tuple[str, str]]
) -> _Kafka:
    """Ask Kafka for the topics of streams.

    A begun topic may be gone; UnknownTopicError for a new one that Kafka does not have.
    """
    client = Topics(connection)
    begun_names = sorted({name for _, name in begun})
    new_names = sorted({name for _, name in new})
    topics = {name: client.describe_if_exists(name) for name in begun_names}
    topics |= client.describe(new_names)
    consumer = connection.consumer()
    try:
        existing = [topic for topic in topics.values() if topic is not None]
        partitions = chosen_partitions(existing, ())
        reach = reach_of(consumer, connection, partitions)
        return _Kafka(topics=topics, reach=reach, ends=client.ends(partitions))
    finally:
        consumer.close()


def _positions(
    known: Mapping[Application, int], kafka: _Kafka, wanted: Collection[tuple[str, str]]
) -> dict[Application, int | None]:
    """Return the positions of the wanted topics; None where nothing was committed."""
    positions: dict[Application, int | None] = {}
    for stream, name in wanted:
        topic = kafka.topics.get(name)
        if topic is not None:
            positions |= dict.fromkeys(applications_of(stream, topic))
    for application, position in known.items():
        if application.stream_topic in wanted:
            positions[application] = position
    return positions


def _held_back(table: Table, streams: Iterable[str], max_bytes: int) -> dict[str, str]:
    """Return, by stream, why its processes stopped reading, and what to do."""
    held_back: dict[str, str] = {}
    for stream in streams:
        backlog = Backlog.read(table.storage, stream)
        if backlog.is_too_much(max_bytes):
            text = held_back_text(backlog, max_bytes, table.uri, stream)
            held_back[stream] = f"held back: {text}"
    return held_back


def _position_note(reached: int | None, reach: Reach | None, *, is_current: bool) -> str:
    if not is_current:
        return "of a topic that was deleted or created again"
    if reached is None:
        return "not read yet"
    if reach is not None and reached > reach.high:
        return f"Kafka ends at {reach.high}, before the position"
    if reach is not None and reached < reach.low:
        return f"{reach.low - reached} offsets are lost"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Messages a second, and the time of the last commit, by application.

    Only commits after `since` were looked at.
    """

    rates: Mapping[str, float]
    moments: Mapping[str, str]
    since: str | None


def _read_rates(table: Table, window_s: float) -> _Rates:
    records: dict[str, int] = {}
    moments: dict[str, str] = {}
    newest_us = oldest_us = None
    for commit in islice(table.commits(), _COMMITS):  # the newest first
        if newest_us is None:
            newest_us = commit.timestamp_us
        if newest_us - commit.timestamp_us > window_s * 1e6:
            break
        oldest_us = commit.timestamp_us
        for name, advance in commit.positions.items():
            records[name] = records.get(name, 0) + advance.end - advance.start
            moments.setdefault(name, _moment_text(commit.timestamp_us))
    # At least a second: one commit alone spans 0
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
    """Return how long the next message of each partition waits, in seconds."""
    ages: dict[Application, float] = {}
    consumer = connection.consumer()
    try:
        for application, position in positions.items():
            reach = kafka.reach_of(application)
            if reach is None:
                continue
            begin = next_offset(position, reach)
            if begin < reach.high:
                ages[application] = _age_s(consumer, application.partition, begin)
        return ages
    finally:
        consumer.close()


def _in_transaction(
    connection: Connection, positions: Mapping[Application, int | None], kafka: _Kafka
) -> dict[Application, float]:
    """Return the age of the open transaction that each partition waits for."""
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
    if reach is None or end is None:
        return ""
    has_readable = next_offset(reached, reach) < reach.high
    if has_readable or reach.high >= end:
        return ""
    return f"waits for an open transaction, which {end - reach.high:,} offsets are in or behind"


def _age_s(consumer: Consumer, partition: Partition, offset: int) -> float:
    """Return the age of a message; 0 without a timestamp, or if it does not come."""
    consumer.assign([TopicPartition(partition.topic, partition.number, offset)])
    message = consumer.poll(_READ_S)
    if message is None or message.error() is not None:
        return 0.0
    moment_ms = message.timestamp()[1]
    if moment_ms >= 0:
        return max(0.0, time.time() - moment_ms / 1000)
    return 0.0


def _positions_before(table: Table, span_s: float) -> Mapping[str, int]:
    """Return the positions that the table had `span_s` ago; none if it was missing."""
    moment = datetime.fromtimestamp(time.time() - span_s, UTC)
    try:
        return table.snapshot_at(timestamp=moment).positions
    except NotFoundError:
        return {}
