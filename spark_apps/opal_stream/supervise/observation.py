"""What a supervisor sees: which partitions there are, where the table stands in each, where Kafka ends, and what follows from two looks."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from opal_lake.table import Table
from opal_stream.flush.options import StreamOptions
from opal_stream.flush.start import never_read
from opal_stream.gathered.backlog import Backlog
from opal_stream.gathered.folder import GatheredFolder
from opal_stream.kafka.applications import Application
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition, Topic, Topics, chosen_partitions, reach_of
from opal_stream.same_table import follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """At one moment. A position is the next offset to read: also where the table has none yet, and behind what was gathered.

    `committed` is where the table itself stands, and None where commits are not gathered. `is_held_back` says that processes wait for the
    committer.
    """

    at_s: float
    topics: tuple[Topic, ...] = ()
    positions: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    committed: Mapping[Partition, int] | None = None
    is_held_back: bool = False

    @property
    def has_gathered(self) -> bool:
        """Whether files wait for the committer."""
        return self.committed is not None and any(
            position > self.committed[part] for part, position in self.positions.items()
        )

    def lag(self, partition: Partition) -> int:
        return max(0, self.ends[partition] - self.positions[partition])


class Observer:
    """Asks Kafka and the table."""

    def __init__(self, table: Table, connection: Connection, options: StreamOptions) -> None:
        self._table = table
        self._connection = connection
        self._options = options
        self._topics = Topics(connection)
        self._consumer = connection.consumer()  # asks for the ends of partitions alone
        self._head = table.log.head()
        self._folder = (
            GatheredFolder(table.storage, self._head.root.table_id)
            if options.commit == "gathered"
            else None
        )

    def look(self) -> Observation:
        topics = self._topics.describe(self._options.topics)
        partitions = chosen_partitions(topics.values(), self._options.partitions)
        reach = reach_of(self._consumer, self._connection, partitions)
        listing = (
            self._folder.look() if self._folder is not None else None
        )  # before the head, as it says
        self._head = follow(self._table.log, self._head)
        stands = self._head.positions if listing is None else listing.ends(self._head.positions)
        new = (
            never_read(topics.values(), stands, self._options.name)
            if self._options.start == "latest"
            else []
        )
        begins = (
            {}
            if listing is None
            else {
                str(application): begin
                for application, begin in listing.begins(self._head.positions).items()
            }
        )

        def positions(known: Mapping[str, int]) -> dict[Partition, int]:
            begin = {
                part: reach[part].high if topics[part.topic] in new else reach[part].low
                for part in partitions
            }
            return {
                part: known.get(str(self._application(part, topics)), begin[part])
                for part in partitions
            }

        return Observation(
            at_s=time.monotonic(),
            topics=tuple(topics.values()),
            positions=positions(stands),
            ends={partition: reach[partition].high for partition in partitions},
            is_held_back=listing is not None and self._is_held_back(),
            committed=None if listing is None else positions({**begins, **self._head.positions}),
        )

    def _is_held_back(self) -> bool:
        return Backlog.read(self._table.storage, self._options.name).is_too_much(
            self._options.gathered_bytes
        )

    def _application(self, partition: Partition, topics: Mapping[str, Topic]) -> Application:
        return Application(
            stream=self._options.name, partition=partition, topic_id=topics[partition.topic].id
        )

    def close(self) -> None:
        self._consumer.close()


@dataclass(slots=True)
class Stalls:
    """Since when each position has not moved although there is more, and nobody waits for the committer."""

    _since: dict[Partition, tuple[int, float]] = field(default_factory=dict)

    def see(self, seen: Observation) -> None:
        before, self._since = self._since, {}
        for partition, position in seen.positions.items():
            stood, since_s = before.get(partition, (-1, seen.at_s))
            self._since[partition] = (
                position,
                since_s
                if stood == position and seen.lag(partition) and not seen.is_held_back
                else seen.at_s,
            )

    def stalled(
        self, share: Collection[Partition], now_s: float, limit_s: float
    ) -> list[Partition]:
        """Those of a share for so long."""
        return sorted(
            part for part in share if now_s - self._since.get(part, (0, now_s))[1] >= limit_s
        )


@dataclass(slots=True)
class CommitStall:
    """Since when no commit has been made although files wait. What cannot be seen is as it was seen last."""

    _committed: Mapping[Partition, int] = field(default_factory=dict)
    _since_s: float = 0.0
    _waits: bool = False

    def see(self, seen: Observation) -> None:
        committed = seen.committed or {}
        if not self._waits or committed != self._committed:
            self._since_s = seen.at_s
        self._committed, self._waits = committed, seen.has_gathered

    def lasts_s(self, now_s: float) -> float:
        return now_s - self._since_s if self._waits else 0.0


def arrivals(before: Observation, now: Observation) -> dict[Partition, float]:
    """Messages a second that came between two looks, by partition."""
    span_s = max(1.0, now.at_s - before.at_s)
    return {
        part: max(0, end - before.ends[part]) / span_s
        for part, end in now.ends.items()
        if part in before.ends
    }
