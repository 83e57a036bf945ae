"""The planner: which process reads what, by predicted traffic, arrivals and lag."""

import logging
import time
from collections.abc import Mapping

from opal_lake.errors import OpalError
from opal_lake.table import Table
from opal_stream.flush.options import StreamOptions
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition
from opal_stream.plan.known import KnownTraffic, counted_traffic
from opal_stream.plan.load import predict_rates, weighted_loads
from opal_stream.plan.spread import Shares, Spread, plan_spread, processes_for
from opal_stream.supervise.observation import Observation, arrival_rates
from opal_stream.traffic.hours import HOUR_MS, Traffic, Volume

CATCH_UP_S = 3600.0  # waiting messages count as if they were to be read within this time
SHRINK_AT = 0.7  # of the capacity: fewer processes must carry the load with room to spare
logger = logging.getLogger(__name__)


class Planner:
    """The planner of one stream.

    Either the number of `processes` is given, or the `capacity` of each, in messages a second.
    """

    def __init__(
        self,
        table: Table,
        connection: Connection,
        options: StreamOptions,
        *,
        processes: int = 0,
        capacity: float = 0,
    ) -> None:
        self._table = table
        self._connection = connection
        self._options = options
        self._processes = processes
        self._capacity = capacity
        self._known = KnownTraffic(connection)
        self._before: Observation | None = None

    def plan(self, seen: Observation, current: Shares = ()) -> Spread:
        """Return a spread of the partitions; few of them leave their `current` process.

        A stream that runs until empty is planned by its lag alone.
        """
        now_hour = time.time_ns() // 1_000_000 // HOUR_MS
        partitions = sorted(seen.ends)
        traffic = self._known.complete(self._counted(seen), partitions, now_hour)
        arrived: dict[Partition, float] = {}
        if self._before is not None:
            arrived = arrival_rates(self._before, seen)
        predicted = predict_rates(traffic, partitions, now_hour, 1)
        rates: dict[Partition, Volume] = {}
        for partition in partitions:
            arrival = arrived.get(partition, 0.0)
            rates[partition] = self._rate(predicted[partition], arrival, seen.lag(partition))
        loads = weighted_loads(rates)
        self._before = seen
        return plan_spread(loads, self._count(loads, len(current)), current)

    def _counted(self, seen: Observation) -> dict[Partition, Traffic]:
        try:
            return counted_traffic(self._table, self._options.name, seen.topics)
        except (OpalError, OSError) as error:
            logger.warning(
                "the recorded traffic cannot be read; the plan uses Kafka's history instead: %s",
                error,
            )
            return {}

    def _rate(self, predicted: Volume, arrival: float, lag: int) -> Volume:
        """Return the volume a second to plan a partition with: new messages, and its lag."""
        size = 0.0  # bytes of a message
        if predicted.messages:
            size = predicted.bytes / predicted.messages
        new_messages = 0.0
        if not self._options.until_empty:
            new_messages = max(predicted.messages, arrival)
        messages = new_messages + lag / CATCH_UP_S
        return Volume(messages, messages * size)

    def _count(self, loads: Mapping[Partition, float], current: int) -> int:
        """Return the number of processes. It grows immediately, and shrinks with a margin."""
        if self._processes:
            return self._processes
        needed = processes_for(loads, self._capacity)
        if needed >= current:
            return needed
        return min(current, processes_for(loads, SHRINK_AT * self._capacity))
