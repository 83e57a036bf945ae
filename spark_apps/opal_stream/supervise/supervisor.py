"""A stream of several processes: planned by load, watched, planned again, and ended together.

Every few seconds the supervisor reads the positions of the table and of Kafka. It plans again after
`replan_s`, and immediately when there are new partitions. A process that fails or hangs is started
again (`process.py`). A failure that a restart cannot remedy ends all processes, and its message is
the stream's. Where commits are gathered, the committer is one more child (`committer.py`), unless
it runs elsewhere.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from opal_lake.errors import InvalidInputError, OpalError
from opal_lake.table import Table
from opal_stream.errors import TableReplacedError
from opal_stream.flush.options import StreamOptions, Totals
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition
from opal_stream.plan.spread import Spread
from opal_stream.supervise.child import failure_of
from opal_stream.supervise.committer import COMMITTER, CommandLine, WatchedCommitter
from opal_stream.supervise.fleet import Fleet, partition_names
from opal_stream.supervise.metrics import FleetMetrics, Own
from opal_stream.supervise.observation import CommitStall, Observation, Observer, Stalls
from opal_stream.supervise.planner import Planner
from opal_stream.supervise.process import RESTART_PAUSE_S, RESTARTS
from opal_stream.timeouts import drain_s

LOOK_S = 5.0
# Returns the command line of a process that reads these partitions
ShareCommandLine = Callable[[Collection[Partition]], list[str]]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The number of processes, or what each can carry, in messages a second."""

    processes: int = 0
    capacity: int = 0
    replan_s: float = 600.0
    stall_s: float = 300.0
    restarts: int = RESTARTS
    look_s: float = LOOK_S

    def __post_init__(self) -> None:
        if bool(self.processes) == bool(self.capacity):
            raise InvalidInputError("several processes: give one of processes=N and capacity=N")


class Supervisor:
    """The supervisor of a stream's processes.

    `command` returns the command line of a process that reads some partitions. `committer` returns
    that of the committer that runs next to the processes, if one does. `stop` may be called from a
    signal handler.
    """

    def __init__(
        self,
        table: Table,
        connection: Connection,
        options: StreamOptions,
        fleet_options: FleetOptions,
        command: ShareCommandLine,
        *,
        metrics: FleetMetrics,
        committer: CommandLine | None = None,
        planner: Planner | None = None,
    ) -> None:
        self._table = table
        self._connection = connection
        self._options = options
        self._fleet_options = fleet_options
        self._metrics = metrics
        end_s = drain_s(options.give_up_s)
        self._fleet = Fleet(
            lambda number, share: [*command(share), *metrics.flags(number)],
            restarts=fleet_options.restarts,
            drain_s=end_s,
        )
        self._planner = planner or Planner(
            table,
            connection,
            options,
            processes=fleet_options.processes,
            capacity=fleet_options.capacity,
        )
        self._committer: WatchedCommitter | None = None
        if committer is not None:
            self._committer = WatchedCommitter(
                committer,
                lambda: metrics.flags(COMMITTER),
                restarts=fleet_options.restarts,
                drain_s=end_s,
            )
        self._stalls, self._commit_stall = Stalls(), CommitStall()
        self._spread: Spread | None = None
        self._planned_s = 0.0
        self._stopping = False
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Let all processes flush, and end."""
        self._stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has just ended on its own
                self._loop.call_soon_threadsafe(self._woken.set)

    def run(self) -> Totals:
        """Run until stopped, or until empty: up to the ends that Kafka had at the start."""
        return asyncio.run(self._run())

    async def _run(self) -> Totals:
        self._loop = asyncio.get_running_loop()
        observer = await asyncio.to_thread(Observer, self._table, self._connection, self._options)
        try:
            await self._plan(await asyncio.to_thread(observer.look))
            if self._committer is not None:
                self._committer.start()
            while not self._stopping and (self._fleet.children or not self._options.until_empty):
                await self._wait()
                await self._collect()
                if not self._stopping:
                    await self._look(observer)
            await self._end()
        finally:
            # The committer after the processes: it commits what they flush at last
            await self._fleet.end(self._fleet.children.values())
            if self._committer is not None:
                await self._committer.end()
            self._report(is_over=True)
            observer.close()
            self._metrics.close()
        return self._totals()

    def _totals(self) -> Totals:
        """Return the totals of the commits, and the lost offsets, which only readers see."""
        read = self._fleet.done.totals()
        if self._committer is None:
            return read
        return replace(self._committer.done.totals(), missing=read.missing)

    async def _wait(self) -> None:
        """Wait for the next look, for `stop`, or for a process that ends."""
        woken = asyncio.ensure_future(self._woken.wait())
        tasks: list[asyncio.Task[Any]] = [woken]
        tasks += [child.watching for child in self._fleet.children.values()]
        if self._committer is not None:
            tasks += self._committer.watching
        look_s = self._fleet_options.look_s
        await asyncio.wait(tasks, timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
        woken.cancel()

    async def _collect(self) -> None:
        if self._committer is not None:
            await self._committer.look()
        for child, outcome in self._fleet.collect():
            if outcome.failure is not None:
                raise failure_of(child, outcome)
            if not self._options.until_empty and not self._stopping:
                logger.warning("%s has ended unasked; it is started again", child.name)
                await asyncio.sleep(RESTART_PAUSE_S)
                await self._fleet.restart(child)

    async def _look(self, observer: Observer) -> None:
        """Observe all positions, plan again if that is due, and restart stalled processes.

        A failed look is only logged: the processes go on, and the next look may succeed.
        """
        try:
            seen = await asyncio.to_thread(observer.look)
            if not self._options.until_empty and self._is_plan_due(seen):
                await self._plan(seen)
        except TableReplacedError:  # final, though it is an OpalError
            raise
        except OpalError as error:
            logger.warning("%s", error)
            self._report()
            return
        self._stalls.see(seen)
        self._commit_stall.see(seen)
        await self._restart_stalled(seen)
        self._report()

    def _is_plan_due(self, seen: Observation) -> bool:
        planned = set().union(*self._fleet.shares)
        has_new_partitions = not seen.ends.keys() <= planned
        age_s = time.monotonic() - self._planned_s
        return has_new_partitions or age_s >= self._fleet_options.replan_s

    async def _plan(self, seen: Observation) -> None:
        spread = await asyncio.to_thread(self._planner.plan, seen, self._fleet.shares)
        self._planned_s = time.monotonic()
        for number in spread.changed:
            share = partition_names(spread.shares[number]) or "nothing"
            logger.info(
                "process %d reads %s, about %.1f messages/s", number, share, spread.loads[number]
            )
        self._spread = spread
        if not self._stopping:
            await self._fleet.take(spread.shares)
        self._report()

    async def _restart_stalled(self, seen: Observation) -> None:
        limit_s = self._fleet_options.stall_s + self._options.limits.interval_s
        for child in [*self._fleet.children.values()]:
            stalled = self._stalls.stalled(child.share, seen.at_s, limit_s)
            # A process that was just started gets its time, too
            if stalled and child.process.up_s >= limit_s:
                logger.warning(
                    "%s: %s has not moved for %g s though messages wait; the process is started "
                    "again",
                    child.name,
                    stalled[0],
                    limit_s,
                )
                await self._fleet.restart(child)
        if self._committer is None:
            return
        idle_s = min(self._committer.up_s, self._commit_stall.duration_s(seen.at_s))
        if idle_s >= limit_s:
            logger.warning(
                "the committer has committed nothing for %g s though files wait; it is started "
                "again",
                limit_s,
            )
            await self._committer.restart()

    async def _end(self) -> None:
        """End all processes together; raise the first failure, as a single stream would."""
        children = [*self._fleet.children.values()]
        for child, outcome in zip(children, await self._fleet.end(children), strict=True):
            if outcome.failure is not None:
                raise failure_of(child, outcome)
        if self._committer is not None:
            until_empty = self._options.until_empty and not self._stopping
            await self._committer.finish(self._woken, until_empty=until_empty)

    def _report(self, *, is_over: bool = False) -> None:
        """Write the supervisor's metrics; `is_over` once all processes have ended."""
        if self._spread is None:
            return
        fleet, committer = self._fleet, self._committer
        restarts: dict[int | str, float] = {}
        for number, count in fleet.restarts.items():
            restarts[number] = float(count)
        up: dict[int | str, float] = {}
        for number, child in fleet.children.items():
            up[number] = float(child.process.up_s > 0)
        # No process is started for an empty share
        with_share = {number for number, share in enumerate(fleet.shares) if share}
        counted: set[int | str] = {*with_share}
        if committer is not None:
            counted.add(COMMITTER)
            restarts[COMMITTER] = committer.restarts
            if committer.watching:
                up[COMMITTER] = float(committer.up_s > 0)
        stalled: dict[int | str, float] = {}
        if self._options.commit == "gathered" and not is_over:
            stalled[COMMITTER] = round(self._commit_stall.duration_s(time.monotonic()), 1)
        loads: dict[int | str, float] = {}
        for number, load in enumerate(self._spread.loads):
            loads[number] = round(load, 3)
        own: Own = {
            "opal_stream_process_up": up,
            "opal_stream_predicted_load": loads,
            "opal_stream_restarts_total": restarts,
            "opal_stream_commit_stalled_seconds": stalled,
        }
        self._metrics.gather(own, counted)
