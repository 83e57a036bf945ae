"""A process that a supervisor watches: its start, its end, and the totals of ended ones."""

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
from opal_stream.supervise.process import COUNTS, Outcome, Tuning, WatchedProcess

_HUNG_DRAIN_S = 5.0  # a hung process has done nothing for minutes
_PREFIXES = ("opal stream: ", "opal stream commit: ")  # of the lines that children log
logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Child:
    """A process, and the task that watches it."""

    name: str
    process: WatchedProcess
    watching: "asyncio.Task[Outcome]"


@dataclass(slots=True)
class EndedTotals:
    """The totals of ended processes; a killed one counts up to its last report."""

    counts: Counter[str] = field(default_factory=Counter)
    version: int | None = None

    def add(self, outcome: Outcome) -> None:
        if outcome.failure is not None:
            logger.warning("%s", outcome.failure)
        for name in COUNTS:
            self.counts[name] += int(outcome.totals.get(name) or 0)
        versions = (self.version, outcome.totals.get("version"))
        known = [version for version in versions if version is not None]
        self.version = max(known, default=None)

    def totals(self) -> Totals:
        counts = {name: self.counts[name] for name in COUNTS}
        return Totals(**counts, version=self.version)


def start_process(
    name: str,
    command: Callable[[], list[str]],
    *,
    reads: str,
    restarts: int,
    drain_s: float | None,
    tuning: Tuning | None = None,
) -> "tuple[WatchedProcess, asyncio.Task[Outcome]]":
    """Start a process and watch it. What it writes is logged under its name."""

    def log_line(text: str) -> None:
        for prefix in _PREFIXES:
            text = text.removeprefix(prefix)
        logger.info("%s: %s", name, text)

    process = WatchedProcess(
        lambda: (command(), dict(os.environ)),
        log_line,
        reads=reads,
        restarts=restarts,
        drain_s=drain_s,
        tuning=tuning,
    )
    return process, asyncio.ensure_future(process.watch())


async def end_children(
    children: Sequence[Child], *, is_hung: bool = False
) -> tuple[list[Outcome], bool]:
    """Ask processes to end; kill those that do not in time.

    Returns how each ended, and whether one had to be killed.
    """
    # All are asked before one is awaited: they end at the same time
    for child in children:
        child.process.stop(_HUNG_DRAIN_S if is_hung else None)
    outcomes = [await child.watching for child in children]
    return outcomes, any(child.process.is_killed for child in children)


def failure_of(child: Child, outcome: Outcome) -> Exception:
    """Return the error of a failed child: its own message, and the same exit code."""
    reason = outcome.failure
    for line in child.process.last_lines:
        if line.startswith("opal: "):
            reason = line.removeprefix("opal: ")
    message = f"{reason} [{child.name}]"
    if not outcome.is_final:
        return ProcessError(
            f"{message}: started again {child.process.restarted} times, and it failed each time"
        )
    kinds: dict[int, type[Exception]] = {DAMAGE: FormatError, BUG: RuntimeError}
    kind = kinds.get(outcome.code or 0, StreamError)
    return kind(message)
