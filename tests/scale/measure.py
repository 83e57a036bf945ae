"""Measures of a scale run and of its steps."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from opal_lake.table import Table
from tests.crash.left_overs import left_overs
from tests.kit.check import check_table

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Outcome:
    """`broken` says in words what must not be."""

    name: str
    broken: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)

    def require(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.say(f"BROKEN: {otherwise}")
            self.broken.append(otherwise)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began, worked = time.monotonic(), time.process_time()
        yield
        passed, cpu = time.monotonic() - began, time.process_time() - worked
        self.say(f"{name}: {passed:,.1f} s, {cpu:,.1f} CPU s, at most {peak_mb():,.0f} MB so far")

    def finish(self, table: Table, root: Path, compare: Callable[[], str]) -> None:
        """Check the table, before and after a retention of all but the newest versions."""
        with self.step("check"):
            findings = check_table(table)
        self.require(not findings, f"check finds {len(findings)}: {findings[:2]}")
        with self.step("retention"):
            table.retain(window="0s", grace="0s")
        paths = left_overs(table, root)
        self.require(not paths, f"{len(paths)} left-overs: {paths[:3]}")
        problem = compare()
        self.require(not problem, f"after retention: {problem}")


def peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return (
        int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
        / 1024
    )
