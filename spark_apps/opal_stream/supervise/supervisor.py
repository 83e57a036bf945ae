"""A stream by several processes: planned by load, watched, planned again, and ended together.

Every few seconds it looks where the table and Kafka stand. It plans again after `replan_s`, and at once when there are new partitions.
A process that fails is started again (`process.py`), also one that hangs. A failure that would come again ends all, with its message.
Where commits are gathered the committer is one child more (`committer.py`), unless it runs elsewhere.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace

from opal_lake.errors import InvalidInputError, OpalError
from opal_lake.table import Table
from opal_stream.errors import TableReplacedError
from opal_stream.flush.options import StreamOptions, Totals
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition
from opal_stream.plan.spread import Spread
from opal_stream.supervise.child import failure_of
from opal_stream.supervise.committer import NAME, WatchedCommitter
from opal_stream.supervise.committer import Words as CommitterWords
from opal_stream.supervise.fleet import Fleet, names_of
from opal_stream.supervise.metrics import FleetMetrics, Own
from opal_stream.supervise.observation import CommitStall, Observation, Observer, Stalls
from opal_stream.supervise.planner import Planner
from opal_stream.supervise.process import AGAIN_S, RESTARTS
from opal_stream.timeouts import drain_s

LOOK_S = 5.0
Words = Callable[
    [Collection[Partition]], list[str]
]  # the command line of a process that reads these
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """How many processes, or how many messages a second each can carry; and when to look again."""

    processes: int = 0
    capacity: int = 0
    replan_s: float = 600.0
    stall_s: float = 300.0
    restarts: int = RESTARTS

    def __post_init__(self) -> None:
        if bool(self.processes) == bool(self.capacity):
            raise InvalidInputError("several processes: give one of --processes N and --capacity N")


class Supervisor:
    """`stop` may be called from a signal handler. `committer` are the words of one that is to run beside the processes."""

    def __init__(
        self,
        table: Table,
        connection: Connection,
        options: StreamOptions,
        fleet: FleetOptions,
        words: Words,
        *,
        metrics: FleetMetrics,
        committer: CommitterWords | None = None,
    ) -> None:
        self._table = table
        self._connection = connection
        self._options = options
        self._fleet_options = fleet
        self._metrics = metrics
        end_s = drain_s(options.give_up_s)
        self._fleet = Fleet(
            lambda number, share: [*words(share), *metrics.words(number)],
            restarts=fleet.restarts,
            drain_s=end_s,
        )
        self._planner = Planner(
            table, connection, options, processes=fleet.processes, capacity=fleet.capacity
        )
        self._committer: WatchedCommitter | None = None
        if committer is not None:
            self._committer = WatchedCommitter(
                committer, lambda: metrics.words(NAME), restarts=fleet.restarts, drain_s=end_s
            )
        self._stalls, self._commit_stall = Stalls(), CommitStall()
        self._spread: Spread | None = None
        self._planned_s = 0.0
        self._stopping = False
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Let all flush, and end."""
        self._stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended by itself this moment
                self._loop.call_soon_threadsafe(self._woken.set)

    def run(self) -> Totals:
        """Until it is stopped, or all is read that was there when it began."""
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
            await self._fleet.end(self._fleet.children.values())
            if self._committer is not None:
                await self._committer.end()
            self._tell(is_over=True)
            observer.close()
            self._metrics.close()
        return self._totals()

    def _totals(self) -> Totals:
        """Of the commits, and of the gaps that those saw who read."""
        read = self._fleet.done.totals()
        return (
            read
            if self._committer is None
            else replace(self._committer.done.totals(), missing=read.missing)
        )

    async def _wait(self) -> None:
        """For the next look, or until somebody ends."""
        woken = asyncio.ensure_future(self._woken.wait())
        watching = [child.watching for child in self._fleet.children.values()]
        watching += self._committer.watching if self._committer is not None else []
        await asyncio.wait([woken, *watching], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        woken.cancel()

    async def _collect(self) -> None:
        if self._committer is not None:
            await self._committer.look()
        for child, outcome in self._fleet.collect():
            if outcome.failure is not None:
                raise failure_of(child, outcome)
            if not self._options.until_empty and not self._stopping:
                logger.warning("%s has ended, though nobody asked it to; started again", child.name)
                await asyncio.sleep(AGAIN_S)
                await self._fleet.restart(child)

    async def _look(self, observer: Observer) -> None:
        """What cannot be seen now is seen later: the processes go on by themselves."""
        try:
            seen = await asyncio.to_thread(observer.look)
            known = set().union(*self._fleet.shares)
            is_due = (
                time.monotonic() - self._planned_s >= self._fleet_options.replan_s
                or seen.ends.keys() - known
            )
            if is_due and not self._options.until_empty:
                await self._plan(seen)
        except TableReplacedError:
            raise
        except OpalError as error:
            logger.warning("%s", error)
            self._tell()
            return
        self._stalls.see(seen)
        self._commit_stall.see(seen)
        await self._restart_stalled(seen)
        self._tell()

    async def _plan(self, seen: Observation) -> None:
        spread = await asyncio.to_thread(self._planner.plan, seen, self._fleet.shares)
        self._planned_s = time.monotonic()
        for number in spread.changed:
            share = names_of(spread.shares[number]) or "nothing"
            logger.info(
                "process %d reads %s, about %.1f messages/s", number, share, spread.loads[number]
            )
        self._spread = spread
        if not self._stopping:
            await self._fleet.take(spread.shares)
        self._tell()

    async def _restart_stalled(self, seen: Observation) -> None:
        limit_s = self._fleet_options.stall_s + self._options.limits.interval_s
        for child in [*self._fleet.children.values()]:
            stalled = self._stalls.stalled(child.share, seen.at_s, limit_s)
            if stalled and child.process.up_s >= limit_s:
                logger.warning(
                    "%s: %s has not moved for %g s though messages wait; started again",
                    child.name,
                    stalled[0],
                    limit_s,
                )
                await self._fleet.restart(child)
        if (
            self._committer is not None
            and min(self._committer.up_s, self._commit_stall.lasts_s(seen.at_s)) >= limit_s
        ):
            logger.warning(
                "the committer has committed nothing for %g s though files wait; started again",
                limit_s,
            )
            await self._committer.restart()

    async def _end(self) -> None:
        """Together. What one could not flush is an error, as of a single stream."""
        children = [*self._fleet.children.values()]
        for child, outcome in zip(children, await self._fleet.end(children), strict=True):
            if outcome.failure is not None:
                raise failure_of(child, outcome)
        if self._committer is not None:
            await self._committer.finish(
                self._woken, until_empty=self._options.until_empty and not self._stopping
            )

    def _tell(self, *, is_over: bool = False) -> None:
        """What is over has neither ups nor downs."""
        if self._spread is None:
            return
        committer, fleet = self._committer, self._fleet
        restarts: dict[int | str, float] = {
            number: float(count) for number, count in fleet.restarts.items()
        }
        up: dict[int | str, float] = {
            number: float(child.process.up_s > 0) for number, child in fleet.children.items()
        }
        stalled: dict[int | str, float] = {}
        there: set[int | str] = {number for number, share in enumerate(fleet.shares) if share}
        if committer is not None:
            there.add(NAME)
            restarts[NAME] = committer.restarts
            if committer.watching:
                up[NAME] = float(committer.up_s > 0)
        if self._options.commit == "gathered" and not is_over:
            stalled[NAME] = round(self._commit_stall.lasts_s(time.monotonic()), 1)
        own: Own = {
            "opal_stream_process_up": up,
            "opal_stream_predicted_load": {
                number: round(load, 3) for number, load in enumerate(self._spread.loads)
            },
            "opal_stream_restarts_total": restarts,
            "opal_stream_commit_stalled_seconds": stalled,
        }
        self._metrics.gather(own, there)
