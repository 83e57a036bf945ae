"""Time, as a thing that is handed in: nothing else in this package reads the wall clock."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_text(moment_us: int) -> str:
    """ISO 8601 in UTC, to the microsecond."""
    return (_EPOCH + timedelta(microseconds=moment_us)).isoformat(timespec="microseconds")


class Clock(Protocol):
    """Gives microseconds since the epoch, UTC."""

    def now_us(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000


@dataclass
class ManualClock:
    """A clock that moves `step_us` at each look; for tests and replays."""

    at_us: int = 1_700_000_000_000_000
    step_us: int = 1_000_000
    looks: int = field(default=0)

    def now_us(self) -> int:
        self.looks += 1
        self.at_us += self.step_us
        return self.at_us
