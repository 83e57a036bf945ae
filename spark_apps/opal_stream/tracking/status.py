"""Where a stream stands, as the table itself knows: positions, rates of its last commits, and with Kafka at hand the lag."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from confluent_kafka import Consumer

from opal_lake.table import Table
from opal_stream.kafka.applications import Application, known_positions
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition, Reach, Topics, reach_of

_COMMITS = 1_000  # that are looked at for rates


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Of one partition. Without Kafka there is no end and no lag; `rate` is messages a second over the last minute of commits."""

    stream: str
    topic: str
    partition: int
    position: int
    end: int | None
    lag: int | None
    rate: float
    committed: str | None
    note: str = ""


def read_status(table: Table, connection: Connection | None, *, window_s: float = 60.0) -> list[PartitionStatus]:
    """One entry for each position that the table has of a stream, by name."""
    known = known_positions(table.log.head().positions)
    rates, moments = _rates(table, window_s)
    ends, ids = _ends(connection, known) if connection is not None else ({}, {})
    entries = []
    for application, position in sorted(known.items(), key=lambda pair: str(pair[0])):
        partition, name = application.partition, str(application)
        is_current = ids.get(partition.topic, application.topic_id) == application.topic_id
        reach = ends.get(partition) if is_current else None
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
                note=_note(position, reach, is_current=is_current),
            )
        )
    return entries


def _note(position: int, reach: Reach | None, *, is_current: bool) -> str:
    if not is_current:
        return "of a topic that was deleted or made anew"
    if reach is not None and position < reach.low:
        return f"{reach.low - position} offsets are lost"
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
    consumer = Consumer({**connection.client(), "group.id": "opal-stream"})
    try:
        wanted = sorted(partitions & {application.partition for application in known})
        return reach_of(consumer, connection, wanted), ids
    finally:
        consumer.close()
