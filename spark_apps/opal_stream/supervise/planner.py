"""Which process reads what: by what is predicted, what came since the last plan if that is more, and what waits."""

import logging
import time
from collections.abc import Mapping

from opal_lake.errors import OpalError
from opal_lake.table import Table
from opal_stream.flush.options import StreamOptions
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition
from opal_stream.plan.known import KnownTraffic, counted_traffic
from opal_stream.plan.load import predict_rates, weigh
from opal_stream.plan.spread import Shares, Spread, plan_spread, processes_for
from opal_stream.supervise.observation import Observation, arrivals
from opal_stream.traffic.hours import HOUR_MS, Traffic, Volume

CATCH_UP_S = 3600.0  # what waits counts as if it were to be read within so long
SHRINK_AT = 0.7  # of the capacity: fewer processes must carry it with room to spare
logger = logging.getLogger(__name__)


class Planner:
    """Of one stream; either the number of processes is given, or what each can carry."""

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
        """From the current shares only what makes them even moves. A stream that ends when all is read goes by what waits alone."""
        now_hour = time.time_ns() // 1_000_000 // HOUR_MS
        partitions = sorted(seen.ends)
        traffic = self._known.complete(self._counted(seen), partitions, now_hour)
        came = {} if self._before is None else arrivals(self._before, seen)
        predicted = predict_rates(traffic, partitions, now_hour, 1)
        loads = weigh(
            {
                part: self._rate(predicted[part], came.get(part, 0.0), seen.lag(part))
                for part in partitions
            }
        )
        self._before = seen
        return plan_spread(loads, self._count(loads, len(current)), current)

    def _counted(self, seen: Observation) -> dict[Partition, Traffic]:
        try:
            return counted_traffic(self._table, self._options.name, seen.topics)
        except (OpalError, OSError) as error:
            logger.warning(
                "the traffic that was counted cannot be read, and Kafka's history is taken: %s",
                error,
            )
            return {}

    def _rate(self, predicted: Volume, came: float, lag: int) -> Volume:
        size = predicted.bytes / predicted.messages if predicted.messages else 0.0
        flow = 0.0 if self._options.until_empty else max(predicted.messages, came)
        messages = flow + lag / CATCH_UP_S
        return Volume(messages, messages * size)

    def _count(self, loads: Mapping[Partition, float], current: int) -> int:
        if self._processes:
            return self._processes
        needed = processes_for(loads, self._capacity)
        if needed >= current:
            return needed
        return min(current, processes_for(loads, SHRINK_AT * self._capacity))
