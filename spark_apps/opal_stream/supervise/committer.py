"""The committer next to the processes of a stream, watched as they are.

It ends after them, so that it commits what they flush at last. Another committer of the same
stream does no harm, wherever it runs: each file is committed once (`flush/committer.py`).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from opal_lake.exit_codes import OK
from opal_stream.supervise.child import Child, EndedTotals, end_children, failure_of, start_process
from opal_stream.supervise.process import RESTART_PAUSE_S, RESTARTS, Outcome, Tuning
from opal_stream.timeouts import drain_s as usual_drain_s

COMMITTER = "committer"
_UNTIL_EMPTY = "--until-empty"
# Returns the command line of a process, or a part of it
CommandLine = Callable[[], list[str]]
logger = logging.getLogger(__name__)


class WatchedCommitter:
    """The committer process of a supervisor, with the command line `command`.

    A committer that runs until it is stopped also gets `metrics_flags`. The last one runs until
    empty without them, so that the metrics of its predecessor stay.
    """

    def __init__(
        self,
        command: CommandLine,
        metrics_flags: CommandLine = list,
        *,
        restarts: int = RESTARTS,
        drain_s: float | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self._command = command
        self._metrics_flags = metrics_flags
        self._max_restarts = restarts
        self._drain_s = usual_drain_s() if drain_s is None else drain_s
        self._tuning = tuning
        self._child: Child | None = None
        self._restarted = 0
        self.done = EndedTotals()

    @property
    def restarts(self) -> int:
        """The number of starts after a failure."""
        if self._child is None:
            return self._restarted
        return self._restarted + self._child.process.restarted

    @property
    def up_s(self) -> float:
        """The seconds that its process has been running; 0 between two processes."""
        return 0.0 if self._child is None else self._child.process.up_s

    @property
    def watching(self) -> "list[asyncio.Task[Outcome]]":
        """The task that ends with it, if it was started."""
        if self._child is None:
            return []
        return [self._child.watching]

    def start(self) -> None:
        self._start(lambda: [*self._command(), *self._metrics_flags()], self._max_restarts)

    async def look(self) -> None:
        """Raise its final failure; restart one that ended though nobody asked it to."""
        child = self._child
        if child is None or not child.watching.done():
            return
        outcome = self._forget(child, child.watching.result())
        if outcome.failure is not None:
            raise failure_of(child, outcome)
        logger.warning("the committer has ended, though nobody asked it to; started again")
        await asyncio.sleep(RESTART_PAUSE_S)
        await self.restart()

    async def restart(self) -> None:
        """Restart one that hangs, or has ended unasked."""
        await self._end(is_hung=True)
        self._restarted += 1
        self.start()

    async def end(self) -> None:
        """Let it commit what is gathered, and end; ignore its failure."""
        await self._end()

    async def finish(self, stopped: asyncio.Event, *, until_empty: bool) -> None:
        """Let it commit what is gathered, and end; raise its failure.

        With `until_empty` it commits all, however long that takes, unless `stopped` is set.
        """
        child = self._child
        outcome, was_killed = await self._end()
        # One that was between two starts has committed nothing: another one tries
        has_failed = outcome.code != OK and not was_killed
        if until_empty or has_failed:
            restarts = self._max_restarts if until_empty else 0
            child = self._start(lambda: [*self._command(), _UNTIL_EMPTY], restarts)
            await self._wait(child, stopped, until_empty=until_empty)
            outcome, _ = await self._end()
        if child is not None and outcome.failure is not None:
            raise failure_of(child, outcome)

    async def _wait(self, child: Child, stopped: asyncio.Event, *, until_empty: bool) -> None:
        if not until_empty:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(child.watching), self._drain_s)
            return
        stop = asyncio.ensure_future(stopped.wait())
        await asyncio.wait([child.watching, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    def _start(self, command: CommandLine, restarts: int) -> Child:
        process, watching = start_process(
            COMMITTER,
            command,
            reads="what is gathered",
            restarts=restarts,
            drain_s=self._drain_s,
            tuning=self._tuning,
        )
        self._child = Child(name=COMMITTER, process=process, watching=watching)
        return self._child

    async def _end(self, *, is_hung: bool = False) -> tuple[Outcome, bool]:
        """End the committer; return how it ended, and whether it had to be killed.

        Between two starts the committer does not run: its outcome then has no exit code, and
        counts as a failure. A hung committer gets less time to end.
        """
        child = self._child
        if child is None:
            return Outcome(), False
        [outcome], was_killed = await end_children([child], is_hung=is_hung)
        return self._forget(child, outcome), was_killed

    def _forget(self, child: Child, outcome: Outcome) -> Outcome:
        self._child = None
        self._restarted += child.process.restarted
        self.done.add(outcome)
        return outcome
