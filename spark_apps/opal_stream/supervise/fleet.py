"""The processes of a stream, and the change from one plan to another.

A process that gives up a partition ends before the one that gets it begins.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from opal_stream.kafka.topics import Partition
from opal_stream.plan.spread import Shares
from opal_stream.supervise.child import Child, EndedTotals, end_children, start_process
from opal_stream.supervise.process import RESTARTS, Outcome, Tuning

# Returns the command line of a process by its number, which reads these partitions
ReaderCommandLine = Callable[[int, Collection[Partition]], list[str]]
logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Reader(Child):
    """A process of the stream, and its share of the partitions."""

    number: int
    share: frozenset[Partition]


class Fleet:
    """Processes by number; `command` returns the command line of one.

    A share without partitions has no process: without --partitions it would read all.
    """

    def __init__(
        self,
        command: ReaderCommandLine,
        *,
        restarts: int = RESTARTS,
        drain_s: float | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self._command = command
        self._max_restarts = restarts
        self._drain_s = drain_s
        self._tuning = tuning
        self.children: dict[int, Reader] = {}
        self.shares: list[frozenset[Partition]] = []
        self.done = EndedTotals()
        self._restarted: Counter[int] = Counter()

    @property
    def restarts(self) -> dict[int, int]:
        """The number of starts after a failure, by process."""
        restarts: dict[int, int] = {}
        for number in range(len(self.shares)):
            child = self.children.get(number)
            current = 0 if child is None else child.process.restarted
            restarts[number] = self._restarted[number] + current
        return restarts

    async def take(self, shares: Shares) -> None:
        """Change to other shares. Processes whose share stays the same keep reading."""
        # The processes that only gain partitions keep reading while the others flush and end
        await self.end(self._givers(shares))
        self.shares = list(shares)
        starting: list[int] = []
        gaining: list[Reader] = []
        for number, share in enumerate(shares):
            child = self.children.get(number)
            if child is not None and child.share == share:
                continue
            starting.append(number)
            if child is not None:
                gaining.append(child)
        await self.end(gaining)
        for number in starting:
            self.start(number)

    def _givers(self, shares: Shares) -> list[Reader]:
        """Return the processes that lose a partition."""
        givers: list[Reader] = []
        for child in self.children.values():
            if child.number < len(shares):
                after = shares[child.number]
            else:
                after = frozenset()
            if child.share - after:
                givers.append(child)
        return givers

    def start(self, number: int) -> None:
        """Start the process with this number, unless its share is empty."""
        share = self.shares[number]
        if not share:
            return
        name, reads = f"process {number}", partition_names(share)
        process, watching = start_process(
            name,
            lambda: self._command(number, share),
            reads=reads,
            restarts=self._max_restarts,
            drain_s=self._drain_s,
            tuning=self._tuning,
        )
        self.children[number] = Reader(
            name=f"{name} ({reads})", process=process, watching=watching, number=number, share=share
        )

    async def end(self, children: Iterable[Reader], *, is_hung: bool = False) -> list[Outcome]:
        """Let processes flush and end; return how each ended.

        Messages that a killed process did not flush are read again.
        """
        ending = list(children)
        outcomes, _ = await end_children(ending, is_hung=is_hung)
        for child, outcome in zip(ending, outcomes, strict=True):
            self._forget(child, outcome)
        return outcomes

    async def restart(self, child: Reader) -> None:
        """Restart a process that hangs, or has ended unasked."""
        if self.children.get(child.number) is child:
            await self.end([child], is_hung=True)
        self._restarted[child.number] += 1
        self.start(child.number)

    def collect(self) -> list[tuple[Reader, Outcome]]:
        """Return and forget the processes that have ended on their own."""
        ended: list[tuple[Reader, Outcome]] = []
        for child in [*self.children.values()]:  # a copy, as they are forgotten on the way
            if child.watching.done():
                outcome = child.watching.result()
                self._forget(child, outcome)
                ended.append((child, outcome))
        return ended

    def _forget(self, child: Reader, outcome: Outcome) -> None:
        self.children.pop(child.number, None)
        self._restarted[child.number] += child.process.restarted
        self.done.add(outcome)


def partition_names(share: Collection[Partition]) -> str:
    return ", ".join(map(str, sorted(share)))
