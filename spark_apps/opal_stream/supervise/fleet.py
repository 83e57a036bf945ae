"""The processes of a stream, and how one plan becomes another: who gives up a partition ends before who gets it begins."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from opal_lake.errors import FormatError
from opal_lake.job.exit_codes import BUG, DAMAGE
from opal_stream.errors import ProcessError, StreamError
from opal_stream.kafka.topics import Partition
from opal_stream.plan.spread import Shares
from opal_stream.supervise.process import DRAIN_S, RESTARTS, Outcome, WatchedProcess

Words = Callable[[int, Collection[Partition]], list[str]]
_HUNG_DRAIN_S = 5.0  # it has not flushed for minutes
_COUNTS = ("records", "bad", "flushes", "missing")
logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Child:
    """A process, what it reads, and who watches it."""

    number: int
    share: frozenset[Partition]
    process: WatchedProcess
    watching: "asyncio.Task[Outcome]"

    @property
    def name(self) -> str:
        return f"process {self.number} ({names_of(self.share)})"


class Fleet:
    """Processes by number. `words` says how one is called. One without partitions is none: it would read all."""

    def __init__(self, words: Words, *, restarts: int = RESTARTS) -> None:
        self._words = words
        self._restarts = restarts
        self.children: dict[int, Child] = {}
        self.shares: list[frozenset[Partition]] = []
        self.totals: Counter[str] = Counter()
        self.version: int | None = None
        self._restarted: Counter[int] = Counter()

    @property
    def restarts(self) -> dict[int, int]:
        """How often each was started again after a failure."""
        now = {number: child.process.restarted for number, child in self.children.items()}
        return {number: self._restarted[number] + now.get(number, 0) for number in range(len(self.shares))}

    async def take(self, shares: Shares) -> None:
        """Only processes whose share changes are touched; others read on meanwhile."""
        after = [*shares, *(frozenset[Partition]() for _ in range(len(self.children) + len(self.shares)))]
        givers = [child for child in self.children.values() if child.share - after[child.number]]
        await self.end(givers)
        self.shares = list(shares)
        changed = [number for number, share in enumerate(shares) if number not in self.children or self.children[number].share != share]
        await self.end([self.children[number] for number in changed if number in self.children])
        for number in changed:
            self.start(number)

    def start(self, number: int) -> None:
        """Read the share of this number."""
        share = self.shares[number]
        if not share:
            return

        def say(text: str) -> None:
            logger.info("process %d: %s", number, text.removeprefix("opal stream: "))

        def command() -> tuple[list[str], dict[str, str]]:
            return self._words(number, share), dict(os.environ)

        process = WatchedProcess(command, say, reads=names_of(share), restarts=self._restarts)
        watching = asyncio.ensure_future(process.watch())
        self.children[number] = Child(number=number, share=share, process=process, watching=watching)

    async def end(self, children: Iterable[Child], *, is_hung: bool = False) -> list[Outcome]:
        """They flush; one that does not end in time is killed, and what it had not flushed is read again."""
        ending = list(children)
        for child in ending:
            child.process.stop()
        if not ending:
            return []
        drain_s = _HUNG_DRAIN_S if is_hung else DRAIN_S
        _, late = await asyncio.wait([child.watching for child in ending], timeout=drain_s)
        for child in ending:
            if child.watching in late:
                logger.warning("%s does not end in %g s, and is killed", child.name, drain_s)
                child.process.kill()
        outcomes = await asyncio.gather(*(child.watching for child in ending))
        for child, outcome in zip(ending, outcomes, strict=True):
            self._forget(child, outcome)
        return outcomes

    async def restart(self, child: Child) -> None:
        """One that hangs, or has ended unasked."""
        if self.children.get(child.number) is child:
            await self.end([child], is_hung=True)
        self._restarted[child.number] += 1
        self.start(child.number)

    def collect(self) -> list[tuple[Child, Outcome]]:
        """Those that have ended by themselves."""
        ended = [(child, child.watching.result()) for child in self.children.values() if child.watching.done()]
        for child, outcome in ended:
            self._forget(child, outcome)
        return ended

    def _forget(self, child: Child, outcome: Outcome) -> None:
        if outcome.failure is not None:
            logger.warning("%s", outcome.failure)
        self.children.pop(child.number, None)
        self._restarted[child.number] += child.process.restarted
        self.totals.update({name: int(outcome.totals.get(name) or 0) for name in _COUNTS})
        versions = [version for version in (self.version, outcome.totals.get("version")) if version is not None]
        self.version = max(versions, default=None)


def failure_of(child: Child, outcome: Outcome) -> Exception:
    """What a child said is what the supervisor says: the same exit code, and the message."""
    said = [line.removeprefix("opal: ") for line in child.process.last_lines if line.startswith("opal: ")]
    message = f"{said[-1] if said else outcome.failure} [{child.name}]"
    if not outcome.is_final:
        return ProcessError(f"{message}: started again {child.process.restarted} times, and it failed each time")
    kinds: dict[int, type[Exception]] = {DAMAGE: FormatError, BUG: RuntimeError}
    return kinds.get(outcome.code or 0, StreamError)(message)


def names_of(share: Collection[Partition]) -> str:
    return ", ".join(map(str, sorted(share)))
