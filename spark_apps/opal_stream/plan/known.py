"""The known traffic of partitions: what streams counted, completed by Kafka's history."""

from collections.abc import Iterable, Mapping, Sequence

from opal_lake.table import Table
from opal_stream.kafka.applications import applications_of
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition, Topic
from opal_stream.plan.history import read_traffic
from opal_stream.plan.recorder import mean_size
from opal_stream.traffic.documents import TrafficFolder
from opal_stream.traffic.hours import WEEK, Traffic, Volume


def counted_traffic(table: Table, stream: str, topics: Iterable[Topic]) -> dict[Partition, Traffic]:
    """Return the traffic that a stream counted into the table, by partition.

    A topic that was created again has a new id: the traffic of the old one is left out.
    """
    head = table.log.head()
    by_name = TrafficFolder(table.storage, head.root.table_id, table.log.ids).read()
    counted: dict[Partition, Traffic] = {}
    for topic in topics:
        for application in applications_of(stream, topic):
            traffic = by_name.get(str(application))
            if traffic is not None:
                counted[application.partition] = traffic
    return counted


class KnownTraffic:
    """The counted traffic of partitions, with Kafka's history of uncounted hours.

    Kafka is asked once for each partition.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._history: dict[Partition, Traffic | None] = {}

    def complete(
        self, counted: Mapping[Partition, Traffic], partitions: Sequence[Partition], now_hour: int
    ) -> dict[Partition, Traffic]:
        """Return the traffic of the partitions; those without any are left out."""
        unasked: list[Partition] = []
        for partition in partitions:
            is_short = partition not in counted or len(counted[partition].means) < WEEK
            if is_short and partition not in self._history:
                unasked.append(partition)
        if unasked:
            history = read_traffic(self._connection, unasked, now_hour)
            self._history |= dict.fromkeys(unasked) | history
        known: dict[Partition, Traffic] = {}
        for partition in partitions:
            traffic = _completed(counted.get(partition), self._history.get(partition))
            if traffic is not None:
                known[partition] = traffic
        return known


def _completed(counted: Traffic | None, history: Traffic | None) -> Traffic | None:
    """Return the counted traffic, with the history of hours that were not counted.

    Kafka's history has no sizes: its messages get the mean size of the counted ones.
    """
    if counted is None:
        return history
    if history is None:
        return counted
    size = mean_size(counted)
    means: dict[int, tuple[int, Volume]] = {}
    for slot, (weeks, mean) in history.means.items():
        means[slot] = (weeks, mean._replace(bytes=mean.messages * size))
    return Traffic(
        hour=counted.hour,
        position=counted.position,
        current=counted.current,
        means=means | counted.means,
    )
