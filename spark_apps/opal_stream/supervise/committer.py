"""The committer beside the processes of a stream: watched as they are, and ended behind them, so that it commits what they flush at last.

Another committer of the same stream, anywhere, does no harm: each file is committed once (`flush/committer.py`).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from opal_lake.exit_codes import OK
from opal_stream.supervise.child import Child, Sums, begin, end_all, failure_of
from opal_stream.supervise.process import AGAIN_S, RESTARTS, Outcome
from opal_stream.timeouts import drain_s as usual_drain_s

NAME = "committer"
_UNTIL_EMPTY = "--until-empty"
Words = Callable[[], list[str]]
logger = logging.getLogger(__name__)


class WatchedCommitter:
    """`words` say how one is called. One that goes on until it is stopped writes `metrics`; the last one leaves those that are there."""

    def __init__(
        self,
        words: Words,
        metrics: Words = list,
        *,
        restarts: int = RESTARTS,
        drain_s: float | None = None,
    ) -> None:
        self._words = words
        self._metrics = metrics
        self._most_restarts = restarts
        self._drain_s = usual_drain_s() if drain_s is None else drain_s
        self._child: Child | None = None
        self._restarted = 0
        self.done = Sums()

    @property
    def restarts(self) -> int:
        """How often it was started again after a failure."""
        return self._restarted + (self._child.process.restarted if self._child is not None else 0)

    @property
    def up_s(self) -> float:
        return self._child.process.up_s if self._child is not None else 0.0

    @property
    def watching(self) -> "list[asyncio.Task[Outcome]]":
        """What tells that it has ended."""
        return [self._child.watching] if self._child is not None else []

    def start(self) -> None:
        self._start(lambda: [*self._words(), *self._metrics()], self._most_restarts)

    async def look(self) -> None:
        """Raises what it has failed of for good. One that has ended though nobody asked it to is started again."""
        child = self._child
        if child is None or not child.watching.done():
            return
        outcome = self._forget(child, child.watching.result())
        if outcome.failure is not None:
            raise failure_of(child, outcome)
        logger.warning("the committer has ended, though nobody asked it to; started again")
        await asyncio.sleep(AGAIN_S)
        await self.restart()

    async def restart(self) -> None:
        """One that hangs, or has ended unasked."""
        await self._end(is_hung=True)
        self._restarted += 1
        self.start()

    async def end(self) -> None:
        """Commit what lies there, and end; without regard to what it fails of."""
        await self._end()

    async def finish(self, stopped: asyncio.Event, *, until_empty: bool) -> None:
        """The same, where what it fails of counts. With `until_empty` nothing may be left, whatever time that takes, unless `stopped`."""
        child, (outcome, is_late) = self._child, await self._end()
        if until_empty or (
            outcome.code != OK and not is_late
        ):  # one that was between two starts has committed nothing
            child = self._start(
                lambda: [*self._words(), _UNTIL_EMPTY], self._most_restarts if until_empty else 0
            )
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

    def _start(self, words: Words, restarts: int) -> Child:
        process, watching = begin(
            NAME, words, reads="what is gathered", restarts=restarts, drain_s=self._drain_s
        )
        self._child = Child(name=NAME, process=process, watching=watching)
        return self._child

    async def _end(self, *, is_hung: bool = False) -> tuple[Outcome, bool]:
        child = self._child
        if child is None:
            return Outcome(), False
        [outcome], is_late = await end_all([child], is_hung=is_hung)
        return self._forget(child, outcome), is_late

    def _forget(self, child: Child, outcome: Outcome) -> Outcome:
        self._child = None
        self._restarted += child.process.restarted
        self.done.add(outcome)
        return outcome
