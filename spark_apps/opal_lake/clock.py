"""Clocks, which are arguments: no other module reads the wall clock."""

import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from opal_lake.errors import InvalidInputError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_DOUBLINGS = 30  # they make 34 years of a pause of 1 s


def moment_text(moment_us: int) -> str:
    """Return a time in ISO 8601 and UTC, to the microsecond."""
    moment = EPOCH + timedelta(microseconds=moment_us)
    return moment.isoformat(timespec="microseconds")


def parse_moment_ms(text: str) -> int:
    """Return a time in milliseconds since 1970.

    The text is ISO 8601, in UTC if it has no zone, or the milliseconds as digits.
    """
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{text!r} is not a moment; write a time such as 2026-11-24T09:30:00Z, "
            "or milliseconds since 1970"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return milliseconds_of(moment)


def milliseconds_of(moment: datetime) -> int:
    """Return the milliseconds since 1970 of a datetime with a zone."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def doubled_pause_s(failures: int, first_s: float, longest_s: float = math.inf) -> float:
    """Return the seconds to pause after some failures in a row.

    The pause is `first_s` after the first failure, and doubles with each further one.
    """
    doublings = min(failures - 1, _MAX_DOUBLINGS)
    return min(first_s * 2.0**doublings, longest_s)


class Clock(Protocol):
    """A clock in microseconds since 1970, UTC."""

    def now_us(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000


@dataclass
class ManualClock:
    """A clock for tests and replays, which moves by `step_us` whenever it is read."""

    at_us: int = 1_700_000_000_000_000
    step_us: int = 1_000_000
    looks: int = field(default=0)

    def now_us(self) -> int:
        self.looks += 1
        self.at_us += self.step_us
        return self.at_us
