"""The store of a story and its events.

Every table has snapshots 1, 2, 3, ..., so that a missing one is noticed.
"""

import hashlib
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lakechime import DataChangeEvent, LakeChime, TableFormat
from lakechime.store.sql_store import SqlStore

SKEW_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`folder` has the ledgers. `tables` tables get `snapshots` snapshots each."""

    url: str
    folder: Path
    tables: int
    snapshots: int

    def table(self, number: int) -> str:
        return f"lake.t{number % self.tables}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.table(number) for number in range(self.tables))

    @property
    def events(self) -> int:
        return self.tables * self.snapshots


class SteppingClock:
    """A machine whose clock is wrong, by another hour at each look."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def now_us(self) -> int:
        return (time.time_ns() // 1_000_000 - self._dice.randrange(SKEW_MS)) * 1000


def client_of(site: Site, dice: random.Random) -> LakeChime:
    """Half of the processes have a clock that steps back."""
    return LakeChime(
        SqlStore.open(site.url, clock=SteppingClock(dice) if dice.random() < 0.5 else None)
    )


def event_of(table: str, number: int) -> DataChangeEvent:
    before = str(number - 1) if number > 1 else None
    kind = {"kind": "even" if number % 2 == 0 else "odd"}
    return DataChangeEvent(
        table=table,
        snapshot_id=str(number),
        prev_snapshot_id=before,
        table_format=TableFormat.DELTA,
        tags=kind,
    )


def digest_of(before: str, events: Iterable[DataChangeEvent]) -> str:
    """Return a digest of processed events, which depends on each event and the order."""
    for event in events:
        before = hashlib.sha256(f"{before} {event.table} {event.snapshot_id}".encode()).hexdigest()
    return before
