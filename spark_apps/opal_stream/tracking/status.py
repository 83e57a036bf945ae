"""Where a stream stands, as the table itself knows: positions, rates of its last commits, and with Kafka at hand the lag."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from confluent_kafka import Consumer, TopicPartition

from opal_lake.errors import NotFoundError
from opal_lake.table import Table
from opal_stream.gathered.backlog import Backlog, held_back_text
from opal_stream.gathered.folder import GatheredFolder
from opal_stream.kafka.applications import Application, known_positions
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition, Reach, Topics, reach_of

_COMMITS = 1_000  # that are looked at for rates
_READ_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Of one partition. Without Kafka there is no end and no lag; `rate` is messages a second over the last minute of commits.

    `waiting_s` is the age of the next message by its own timestamp; it and `has_moved` are None if nobody asked or nothing waits.
    `gathered` offsets behind the position lie in files that no commit holds yet; the lag counts them, and `lost` are those behind them.
    """

    stream: str
    topic: str
    partition: int
    position: int
    end: int | None
    lag: int | None
    rate: float
    committed: str | None
    note: str = ""
    topic_id: str = ""
    lost: int = 0
    waiting_s: float | None = None
    has_moved: bool | None = None
    gathered: int = 0


def read_status(
    table: Table, connection: Connection | None, *, window_s: float = 60.0, stall_s: float | None = None, gathered_bytes: int = 0
) -> list[PartitionStatus]:
    """One entry for each position that the table has of a stream or is to get, by name. With `stall_s`, which have moved for so long.

    With `gathered_bytes` of files that wait for the committer its processes read no more.
    """
    listing, head = GatheredFolder(table.storage, table.log.head().root.table_id).look(), table.log.head()
    known = known_positions(head.positions) | listing.begins(head.positions)
    held_back = _held_back(table, {application.stream for application in listing.headers}, gathered_bytes)
    ends_gathered = listing.ends(head.positions)
    rates, moments = _rates(table, window_s)
    ends, ids = _ends(connection, known) if connection is not None else ({}, {})
    waiting = _waiting(connection, known, ends, ids) if connection is not None and stall_s is not None else {}
    before = _positions_before(table, stall_s) if waiting and stall_s is not None else {}
    entries = []
    for application, position in sorted(known.items(), key=lambda pair: str(pair[0])):
        partition, name = application.partition, str(application)
        is_current = ids.get(partition.topic, application.topic_id) == application.topic_id
        reach, reached = ends.get(partition) if is_current else None, ends_gathered.get(name, position)
        notes = _note(reached, reach, is_current=is_current), listing.note(application, head.positions), held_back.get(application.stream)
        entries.append(
            PartitionStatus(
                stream=application.stream,
                topic=partition.topic,
                partition=partition.number,
                position=position,
                end=reach.high if reach else None,
                lag=max(0, reach.high - position) if reach else None,
                rate=rates.get(name, 0.0),
                committed=moments.get(name),
                note="; ".join(filter(None, notes)),
                topic_id=application.topic_id,
                lost=max(0, reach.low - reached) if reach else 0,
                waiting_s=waiting.get(application),
                has_moved=before.get(name) != position if application in waiting else None,
                gathered=reached - position,
            )
        )
    return entries


def _held_back(table: Table, streams: Iterable[str], most_bytes: int) -> dict[str, str]:
    """Why the processes of a stream read no more, and what to do."""
    backlogs = {stream: Backlog.read(table.storage, stream) for stream in streams}
    return {
        stream: f"held back: {held_back_text(backlog, most_bytes, table.uri, stream)}"
        for stream, backlog in backlogs.items()
        if backlog.is_too_much(most_bytes)
    }


def _note(reached: int, reach: Reach | None, *, is_current: bool) -> str:
    if not is_current:
        return "of a topic that was deleted or made anew"
    if reach is not None and reached < reach.low:
        return f"{reach.low - reached} offsets are lost"
    return ""


def _rates(table: Table, window_s: float) -> tuple[dict[str, float], dict[str, str]]:
    """Messages a second, and when the last commit of each application was."""
    records: dict[str, int] = {}
    moments: dict[str, str] = {}
    newest_us = oldest_us = None
    for commit in islice(table.history(), _COMMITS):
        newest_us = commit.timestamp_us if newest_us is None else newest_us
        if newest_us - commit.timestamp_us > window_s * 1e6:
            break
        oldest_us = commit.timestamp_us
        for name, advance in commit.positions.items():
            records[name] = records.get(name, 0) + advance.end - advance.start
            moments.setdefault(name, datetime.fromtimestamp(commit.timestamp_us / 1e6, UTC).isoformat(timespec="milliseconds"))
    span_s = max(1.0, ((newest_us or 0) - (oldest_us or 0)) / 1e6)
    return {name: round(count / span_s, 1) for name, count in records.items()}, moments


def _ends(connection: Connection, known: Mapping[Application, int]) -> tuple[dict[Partition, Reach], dict[str, str]]:
    """What Kafka has; topics that are gone are left out."""
    topics, ids = Topics(connection), {}
    partitions: set[Partition] = set()
    for name in {application.partition.topic for application in known}:
        described = topics.describe_if_there(name)
        ids[name] = described.id if described else ""
        partitions |= {Partition(topic=name, number=number) for number in described.partitions} if described else set()
    consumer = connection.consumer()
    try:
        wanted = sorted(partitions & {application.partition for application in known})
        return reach_of(consumer, connection, wanted), ids
    finally:
        consumer.close()


def _waiting(
    connection: Connection, known: Mapping[Application, int], ends: Mapping[Partition, Reach], ids: Mapping[str, str]
) -> dict[Application, float]:
    """How long the next message of each partition that has one waits."""
    behind = {
        application: max(position, reach.low)
        for application, position in known.items()
        if ids.get(application.partition.topic) == application.topic_id
        and (reach := ends.get(application.partition)) is not None
        and position < reach.high > reach.low
    }
    consumer = connection.consumer()
    try:
        return {application: _age_s(consumer, application.partition, offset) for application, offset in behind.items()}
    finally:
        consumer.close()


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
