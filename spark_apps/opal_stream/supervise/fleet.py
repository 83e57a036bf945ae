"""The processes of a stream, and how one plan becomes another: who gives up a partition ends before who gets it begins."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from opal_stream.kafka.topics import Partition
from opal_stream.plan.spread import Shares
from opal_stream.supervise.child import Child, Sums, begin, end_all
from opal_stream.supervise.process import RESTARTS, Outcome

Words = Callable[[int, Collection[Partition]], list[str]]
logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Reader(Child):
    """A process of the stream, and what it reads."""

    number: int
    share: frozenset[Partition]


class Fleet:
    """Processes by number. `words` says how one is called. One without partitions is none: it would read all."""

    def __init__(
        self, words: Words, *, restarts: int = RESTARTS, drain_s: float | None = None
    ) -> None:
        self._words = words
        self._restarts = restarts
        self._drain_s = drain_s
        self.children: dict[int, Reader] = {}
        self.shares: list[frozenset[Partition]] = []
        self.done = Sums()
        self._restarted: Counter[int] = Counter()

    @property
    def restarts(self) -> dict[int, int]:
        """How often each was started again after a failure."""
        now = {number: child.process.restarted for number, child in self.children.items()}
        return {
            number: self._restarted[number] + now.get(number, 0)
            for number in range(len(self.shares))
        }

    async def take(self, shares: Shares) -> None:
        """Only processes whose share changes are touched; others read on meanwhile."""
        after = [
            *shares,
            *(frozenset[Partition]() for _ in range(len(self.children) + len(self.shares))),
        ]
        givers = [child for child in self.children.values() if child.share - after[child.number]]
        await self.end(givers)
        self.shares = list(shares)
        changed = [
            number
            for number, share in enumerate(shares)
            if number not in self.children or self.children[number].share != share
        ]
        await self.end([self.children[number] for number in changed if number in self.children])
        for number in changed:
            self.start(number)

    def start(self, number: int) -> None:
        """Read the share of this number."""
        share = self.shares[number]
        if not share:
            return
        name, reads = f"process {number}", names_of(share)
        process, watching = begin(
            name,
            lambda: self._words(number, share),
            reads=reads,
            restarts=self._restarts,
            drain_s=self._drain_s,
        )
        self.children[number] = Reader(
            name=f"{name} ({reads})", process=process, watching=watching, number=number, share=share
        )

    async def end(self, children: Iterable[Reader], *, is_hung: bool = False) -> list[Outcome]:
        """They flush; what one that is killed had not flushed is read again."""
        ending = list(children)
        outcomes, _ = await end_all(ending, is_hung=is_hung)
        for child, outcome in zip(ending, outcomes, strict=True):
            self._forget(child, outcome)
        return outcomes

    async def restart(self, child: Reader) -> None:
        """One that hangs, or has ended unasked."""
        if self.children.get(child.number) is child:
            await self.end([child], is_hung=True)
        self._restarted[child.number] += 1
        self.start(child.number)

    def collect(self) -> list[tuple[Reader, Outcome]]:
        """Those that have ended by themselves."""
        ended = [
            (child, child.watching.result())
            for child in self.children.values()
            if child.watching.done()
        ]
        for child, outcome in ended:
            self._forget(child, outcome)
        return ended

    def _forget(self, child: Reader, outcome: Outcome) -> None:
        self.children.pop(child.number, None)
        self._restarted[child.number] += child.process.restarted
        self.done.add(outcome)


def names_of(share: Collection[Partition]) -> str:
    return ", ".join(map(str, sorted(share)))
