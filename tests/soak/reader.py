"""Reads at five kinds of points in time, each compared with the model at that very point."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import pyarrow as pa

from opal_lake.errors import NotFoundError
from opal_lake.table import Table
from tests.soak.model import Ledger, difference
from tests.soak.rows import TICK, columns_from
from tests.soak.site import Site
from tests.soak.witness import note

POINTS = ("current", "fixed", "behind", "event time", "pair")
_MAX_BEHIND = 15

Read = Callable[..., pa.Table]


@dataclass(slots=True, kw_only=True)
class Reader:
    """`read` reads the table, in whichever engine; the ledger reads the log by itself."""

    site: Site
    role: str
    table: Table
    read: Read
    ledger: Ledger = field(init=False)
    moments: list[float] = field(default_factory=list)
    fixed: int | None = None
    _points: Iterator[str] = field(default_factory=lambda: cycle(POINTS))
    _dice: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        self.ledger = Ledger(log=self.table.log)

    def turn(self) -> None:
        """Read the next point in time."""
        point = next(self._points)
        self._follow()
        version, event_time = self._where(point)
        entry: dict[str, Any] = {
            "role": self.role,
            "point": point,
            "version": version,
            "event_time": event_time,
        }
        began = time.time()
        try:
            rows = self.read(version=version, event_time=event_time)
        except NotFoundError as error:
            floor = self.table.snapshot_at().root.floor
            if version is not None or event_time is None or floor is None or event_time >= floor:
                note(
                    self.site.journal(self.role),
                    entry | {"wrong": f"{type(error).__name__}: {error}"},
                )
                raise
            return  # the floor rose between the choice and the read, and the read said so
        entry |= {"rows": rows.num_rows, "seconds": time.time() - began}
        note(
            self.site.journal(self.role),
            entry | {"wrong": self._verdict(rows, version, event_time)},
        )

    def _verdict(self, rows: pa.Table, version: int | None, event_time: int | None) -> str:
        """Compare a read with the model; return the difference.

        Without a version, the read saw some version between the head before it and the head after.
        """
        actual, first = columns_from(rows), self.ledger.version
        self._follow()
        candidates = [version] if version is not None else range(self.ledger.version, first - 1, -1)
        problem = ""
        for candidate in candidates:
            problem = difference(actual, self.ledger.model.visible(candidate, event_time))
            if not problem:
                return ""
        return problem

    def _where(self, point: str) -> tuple[int | None, int | None]:
        head = self.ledger.version
        if point == "current":
            return None, None
        if point == "fixed":
            return self._savepoint(), None
        behind = range(max(0, head - _MAX_BEHIND), head + 1)
        version = self._dice.choice([version for version in behind if self._is_safe(version)])
        if point == "behind":
            return version, None
        if point == "pair":
            return version, self._event_time(version)
        return None, self._event_time(head)

    def _savepoint(self) -> int:
        """One version that stays, however long the soak takes."""
        if self.fixed is None:
            name = f"fixed-{self.role}"
            self.table.savepoint(name)
            self.fixed = self.table.snapshot_at().root.savepoints[name]
        return self.fixed

    def _is_safe(self, version: int) -> bool:
        """Long enough before retention may take it: it was the head until half of that time ago."""
        return (
            version == self.ledger.version
            or time.time() - self.moments[version + 1] < self.site.keep_s / 2
        )

    def _event_time(self, version: int) -> int:
        """Between the floor and a little beyond now."""
        floor = self.table.snapshot_at(version).root.floor or 0
        return self._dice.randrange(floor, max(floor + 1, (self.site.tick + 10) * TICK))

    def _follow(self) -> None:
        head = self.table.snapshot_at().version
        self.moments += [commit.timestamp_us / 1e6 for commit in self.ledger.follow(head)]
