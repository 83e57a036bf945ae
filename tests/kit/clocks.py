"""Machines whose clocks are wrong, and one time that is right: the store's."""

import os
from dataclasses import dataclass

from opal_lake.clock import Clock, ManualClock
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.local.store import LocalStorage
from opal_lake.storage.protocol import Storage


@dataclass
class TrueClock:
    """A true clock. A look takes a microsecond; `pass_us` adds the rest."""

    at_us: int = 1_700_000_000_000_000

    def now_us(self) -> int:
        self.at_us += 1
        return self.at_us

    def pass_us(self, span_us: int) -> None:
        self.at_us += span_us


@dataclass
class SkewedClock:
    """A machine's, which is ahead of the true one, or behind."""

    true: Clock
    ahead_us: int = 0

    def now_us(self) -> int:
        return self.true.now_us() + self.ahead_us


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentStore(ForwardingStore):
    """A store without a time, as a gateway that leaves the date out."""

    inner: Storage

    def now_us(self) -> int | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastStore(SilentStore):
    """A folder that stamps files with its own clock, for tables that are to be old."""

    inner: LocalStorage
    clock: ManualClock

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        done = self.inner.put_if_absent(path, data)
        if done:
            os.utime(self.inner.root / path, ns=(self.clock.at_us * 1000, self.clock.at_us * 1000))
        return done

    def now_us(self) -> int | None:
        return self.clock.at_us


def past_store(uri: str, clock: ManualClock) -> PastStore:
    """Return a folder with a clock of its own; later it is opened as any other."""
    return PastStore(inner=LocalStorage.open(uri), clock=clock)
