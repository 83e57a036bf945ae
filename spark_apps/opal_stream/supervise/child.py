"""A process that a supervisor watches: how it begins and ends, what its end means, and what ended ones have done together."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opal_lake.errors import FormatError
from opal_lake.exit_codes import BUG, DAMAGE
from opal_stream.errors import ProcessError, StreamError
from opal_stream.flush.options import Totals
from opal_stream.supervise.process import COUNTS, Outcome, WatchedProcess

_HUNG_DRAIN_S = 5.0  # it has done nothing for minutes
logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Child:
    """A process, and who watches it."""

    name: str
    process: WatchedProcess
    watching: "asyncio.Task[Outcome]"


@dataclass(slots=True)
class Sums:
    """Of processes that have ended. Of one that was killed, what it told after its last flush."""

    counts: Counter[str] = field(default_factory=Counter)
    version: int | None = None

    def add(self, outcome: Outcome) -> None:
        if outcome.failure is not None:
            logger.warning("%s", outcome.failure)
        self.counts.update({name: int(outcome.totals.get(name) or 0) for name in COUNTS})
        versions = [
            version
            for version in (self.version, outcome.totals.get("version"))
            if version is not None
        ]
        self.version = max(versions, default=None)

    def totals(self) -> Totals:
        return Totals(**{name: self.counts[name] for name in COUNTS}, version=self.version)


def begin(
    name: str, words: Callable[[], list[str]], *, reads: str, restarts: int, drain_s: float | None
) -> "tuple[WatchedProcess, asyncio.Task[Outcome]]":
    """Start it, and watch it. What it says is logged under its name."""

    def say(text: str) -> None:
        logger.info(
            "%s: %s", name, text.removeprefix("opal stream: ").removeprefix("opal stream commit: ")
        )

    process = WatchedProcess(
        lambda: (words(), dict(os.environ)), say, reads=reads, restarts=restarts, drain_s=drain_s
    )
    return process, asyncio.ensure_future(process.watch())


async def end_all(
    children: Sequence[Child], *, is_hung: bool = False
) -> tuple[list[Outcome], bool]:
    """Ask them to end; those that do not in time are killed. How each ended, and whether one had to be killed."""
    for child in children:
        child.process.stop(_HUNG_DRAIN_S if is_hung else None)
    outcomes = [await child.watching for child in children]
    return outcomes, any(child.process.is_killed for child in children)


def failure_of(child: Child, outcome: Outcome) -> Exception:
    """What a child said is what the supervisor says: the same exit code, and the message."""
    said = [
        line.removeprefix("opal: ")
        for line in child.process.last_lines
        if line.startswith("opal: ")
    ]
    message = f"{said[-1] if said else outcome.failure} [{child.name}]"
    if not outcome.is_final:
        return ProcessError(
            f"{message}: started again {child.process.restarted} times, and it failed each time"
        )
    kinds: dict[int, type[Exception]] = {DAMAGE: FormatError, BUG: RuntimeError}
    return kinds.get(outcome.code or 0, StreamError)(message)
