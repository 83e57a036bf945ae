"""Traffic of a partition by hour of the week, UTC, and what it predicts.

Of each hour of the week the mean over about the last four weeks is kept: the last one counts a quarter, so that growth is followed and one
odd day is not. Hours between the first and the last one observed that had no messages had none, and count as 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

HOUR_MS, DAY, WEEK = 3_600_000, 24, 168  # the others in hours
_WEEKS = 4
_THURSDAY = 72  # 1970 began on one; weeks on Monday


def hour_of_week(hour: int) -> int:
    """Of hours since 1970: 0 is Monday, 00:00 to 01:00 UTC."""
    return (hour + _THURSDAY) % WEEK


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Messages and bytes of an hour."""

    messages: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(messages=self.messages + other.messages, bytes=self.bytes + other.bytes)

    def times(self, factor: float) -> "Work":
        return Work(messages=self.messages * factor, bytes=self.bytes * factor)


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Of one partition: means by hour of the week with how many weeks they are of, and the hour that is being counted."""

    first_hour: int
    hour: int
    current: Work = field(default_factory=Work)
    means: dict[int, tuple[int, Work]] = field(default_factory=dict)

    def observe(self, hour: int, work: Work) -> None:
        """What was produced in an hour. Messages older than the hour that is being counted came late, and count in it."""
        if hour > self.hour:
            self.advance(hour)
        self.current += work

    def advance(self, hour: int) -> None:
        """The hours before this one are over."""
        if hour <= self.hour:
            return
        self._close(self.hour, self.current)
        for empty in range(max(self.hour + 1, hour - _WEEKS * WEEK), hour):
            self._close(empty, Work())
        self.hour, self.current = hour, Work()

    def _close(self, hour: int, work: Work) -> None:
        weeks, mean = self.means.get(hour_of_week(hour), (0, Work()))
        weeks = min(weeks + 1, _WEEKS)
        self.means[hour_of_week(hour)] = weeks, mean.times(1 - 1 / weeks) + work.times(1 / weeks)

    def predict(self, hour: int) -> Work:
        """By the same hour of the week; before a week is over, by that of other days, by all hours, or by what was counted so far."""
        if (known := self.means.get(hour_of_week(hour))) is not None:
            return known[1]
        same_hour = [mean for slot, (_, mean) in self.means.items() if slot % DAY == hour_of_week(hour) % DAY]
        found = same_hour or [mean for _, mean in self.means.values()] or [self.current]
        return sum(found, Work()).times(1 / len(found))


def spread_over_hours(oldest_ms: int, newest_ms: int, work: Work) -> Mapping[int, Work]:
    """A flush by the hours of its messages: evenly between the oldest and the newest, which in a backlog are hours apart."""
    first, last = oldest_ms // HOUR_MS, newest_ms // HOUR_MS
    if last <= first:
        return {first: work}
    span_ms = newest_ms - oldest_ms
    return {
        hour: work.times((min(newest_ms, (hour + 1) * HOUR_MS) - max(oldest_ms, hour * HOUR_MS)) / span_ms)
        for hour in range(first, last + 1)
    }
