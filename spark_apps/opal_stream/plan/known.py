"""What is known of the traffic of partitions: what streams counted into the table, and Kafka's history of hours that they have not seen."""

from collections.abc import Iterable, Mapping, Sequence

from opal_lake.table import Table
from opal_stream.kafka.applications import applications_of
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition, Topic
from opal_stream.plan.history import read_traffic
from opal_stream.plan.recorder import size_of
from opal_stream.traffic.documents import TrafficFolder
from opal_stream.traffic.hours import WEEK, Traffic


def counted_traffic(table: Table, stream: str, topics: Iterable[Topic]) -> dict[Partition, Traffic]:
    """By a stream, of the topics as they are: of one that was made anew nothing is known."""
    head = table.log.head()
    counted = TrafficFolder(table.storage, head.root.table_id, table.log.ids).read()
    names = {
        application.partition: str(application)
        for topic in topics
        for application in applications_of(stream, topic)
    }
    return {partition: counted[name] for partition, name in names.items() if name in counted}


class KnownTraffic:
    """Completes what was counted. Kafka is asked once for each partition of which less than a week was."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._history: dict[Partition, Traffic | None] = {}

    def complete(
        self, counted: Mapping[Partition, Traffic], partitions: Sequence[Partition], now_hour: int
    ) -> dict[Partition, Traffic]:
        """Without those of which nobody knows anything."""
        short = [
            partition
            for partition in partitions
            if partition not in counted or len(counted[partition].means) < WEEK
        ]
        if asked := [partition for partition in short if partition not in self._history]:
            self._history |= dict.fromkeys(asked) | read_traffic(self._connection, asked, now_hour)
        filled = {
            partition: _filled(counted.get(partition), self._history.get(partition))
            for partition in partitions
        }
        return {partition: traffic for partition, traffic in filled.items() if traffic is not None}


def _filled(counted: Traffic | None, history: Traffic | None) -> Traffic | None:
    """Kafka tells no sizes: they are as those that were counted."""
    if counted is None or history is None:
        return counted or history
    size = size_of(counted)
    means = {
        slot: (weeks, mean._replace(bytes=mean.messages * size))
        for slot, (weeks, mean) in history.means.items()
    }
    return Traffic(
        hour=counted.hour,
        position=counted.position,
        current=counted.current,
        means=means | counted.means,
    )
