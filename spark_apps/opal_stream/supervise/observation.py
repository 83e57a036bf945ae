"""Observations of a supervisor, each at one moment, and what follows from two of them."""

import time
from collections.abc import Collection, Iterable, Mapping
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
    """The state of a stream's partitions at one moment.

    - `positions` are the next offsets to read, behind gathered files. A partition that was never
      read has the offset at which the stream would begin.
    - `ends` are the next offsets that Kafka gives out.
    - `committed` are the positions of the table itself; None if commits are not gathered.
    - `is_held_back` means that processes wait for the committer.
    """

    at_s: float
    topics: tuple[Topic, ...] = ()
    positions: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    committed: Mapping[Partition, int] | None = None
    is_held_back: bool = False

    @property
    def has_gathered(self) -> bool:
        """True while files wait for the committer."""
        committed = self.committed
        if committed is None:
            return False
        return any(position > committed[part] for part, position in self.positions.items())

    def lag(self, partition: Partition) -> int:
        return max(0, self.ends[partition] - self.positions[partition])


class Observer:
    """A reader of Kafka's ends and of the table's positions."""

    def __init__(self, table: Table, connection: Connection, options: StreamOptions) -> None:
        self._table = table
        self._connection = connection
        self._options = options
        self._topics = Topics(connection)
        self._consumer = connection.consumer()  # only asks for the ends of partitions
        self._head = table.log.head()
        self._folder: GatheredFolder | None = None
        if options.commit == "gathered":
            self._folder = GatheredFolder(table.storage, self._head.root.table_id)

    def look(self) -> Observation:
        """Return the current observation."""
        topics = self._topics.describe(self._options.topics)
        partitions = chosen_partitions(topics.values(), self._options.partitions)
        reach = reach_of(self._consumer, self._connection, partitions)
        # The folder before the head: a file that is committed in between is in the head
        listing = None if self._folder is None else self._folder.look()
        self._head = follow(self._table.log, self._head)
        committed = self._head.positions
        reached = committed if listing is None else listing.ends(committed)
        # Where a partition begins that has no position yet
        begins = {partition: reach[partition].low for partition in partitions}
        if self._options.start == "latest":
            new = {topic.name for topic in self._never_read(topics.values(), reached)}
            for partition in partitions:
                if partition.topic in new:
                    begins[partition] = reach[partition].high
        names = {partition: str(self._application(partition, topics)) for partition in partitions}
        observed_committed: dict[Partition, int] | None = None
        if listing is not None:
            gathered = listing.begins(committed)
            known = {str(application): begin for application, begin in gathered.items()}
            known |= committed
            observed_committed = {
                partition: known.get(name, begins[partition]) for partition, name in names.items()
            }
        return Observation(
            at_s=time.monotonic(),
            topics=tuple(topics.values()),
            positions={
                partition: reached.get(name, begins[partition]) for partition, name in names.items()
            },
            ends={partition: reach[partition].high for partition in partitions},
            is_held_back=listing is not None and self._is_held_back(),
            committed=observed_committed,
        )

    def _never_read(self, topics: Iterable[Topic], positions: Mapping[str, int]) -> list[Topic]:
        return never_read(topics, positions, self._options.name)

    def _is_held_back(self) -> bool:
        backlog = Backlog.read(self._table.storage, self._options.name)
        return backlog.is_too_much(self._options.gathered_bytes)

    def _application(self, partition: Partition, topics: Mapping[str, Topic]) -> Application:
        return Application(
            stream=self._options.name, partition=partition, topic_id=topics[partition.topic].id
        )

    def close(self) -> None:
        self._consumer.close()


@dataclass(slots=True)
class Stalls:
    """The time since when each position has not moved although messages wait.

    A partition that waits for the committer does not stall.
    """

    _since: dict[Partition, tuple[int, float]] = field(default_factory=dict)

    def see(self, seen: Observation) -> None:
        before, self._since = self._since, {}
        for partition, position in seen.positions.items():
            last_position, since_s = before.get(partition, (-1, seen.at_s))
            stands = last_position == position and seen.lag(partition) > 0
            if not stands or seen.is_held_back:
                since_s = seen.at_s
            self._since[partition] = (position, since_s)

    def stalled(
        self, share: Collection[Partition], now_s: float, limit_s: float
    ) -> list[Partition]:
        """Return the partitions of a share that have stalled for `limit_s`."""
        stalled: list[Partition] = []
        for partition in share:
            _, since_s = self._since.get(partition, (0, now_s))
            if now_s - since_s >= limit_s:
                stalled.append(partition)
        return sorted(stalled)


@dataclass(slots=True)
class CommitStall:
    """The time since when no commit has been made although files wait.

    While nothing can be observed, the last observation counts.
    """

    _committed: Mapping[Partition, int] = field(default_factory=dict)
    _since_s: float = 0.0
    _waits: bool = False

    def see(self, seen: Observation) -> None:
        committed = seen.committed or {}
        if not self._waits or committed != self._committed:
            self._since_s = seen.at_s
        self._committed, self._waits = committed, seen.has_gathered

    def duration_s(self, now_s: float) -> float:
        if self._waits:
            return now_s - self._since_s
        return 0.0


def arrival_rates(before: Observation, now: Observation) -> dict[Partition, float]:
    """Return the messages a second that came between two observations, by partition."""
    span_s = max(1.0, now.at_s - before.at_s)
    rates: dict[Partition, float] = {}
    for partition, end in now.ends.items():
        if partition in before.ends:
            # An end may fall, after an unclean election
            rates[partition] = max(0, end - before.ends[partition]) / span_s
    return rates
