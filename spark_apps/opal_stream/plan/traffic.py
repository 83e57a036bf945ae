"""Traffic of a partition, in messages by hour of the week, UTC, and what it predicts.

Of each hour of the week the mean over about the last four weeks is kept: the last one counts a quarter, so that growth is followed and one
odd day is not. Hours between the first and the last one observed that had no messages had none, and count as 0.
"""

from dataclasses import dataclass, field

HOUR_MS, DAY, WEEK = 3_600_000, 24, 168  # the others in hours
_WEEKS = 4
_THURSDAY = 72  # 1970 began on one; weeks on Monday


def hour_of_week(hour: int) -> int:
    """Of hours since 1970: 0 is Monday, 00:00 to 01:00 UTC."""
    return (hour + _THURSDAY) % WEEK


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Of one partition: means by hour of the week with how many weeks they are of, and the hour that is being counted."""

    first_hour: int
    hour: int
    current: float = 0.0
    means: dict[int, tuple[int, float]] = field(default_factory=dict)

    def observe(self, hour: int, messages: float) -> None:
        """What was produced in an hour. Messages older than the hour that is being counted came late, and count in it."""
        if hour > self.hour:
            self.advance(hour)
        self.current += messages

    def advance(self, hour: int) -> None:
        """The hours before this one are over."""
        if hour <= self.hour:
            return
        self._close(self.hour, self.current)
        for empty in range(max(self.hour + 1, hour - _WEEKS * WEEK), hour):
            self._close(empty, 0.0)
        self.hour, self.current = hour, 0.0

    def _close(self, hour: int, messages: float) -> None:
        weeks, mean = self.means.get(hour_of_week(hour), (0, 0.0))
        weeks = min(weeks + 1, _WEEKS)
        self.means[hour_of_week(hour)] = weeks, mean + (messages - mean) / weeks

    def predict(self, hour: int) -> float:
        """By the same hour of the week; before a week is over, by that of other days, by all hours, or by what was counted so far."""
        if (known := self.means.get(hour_of_week(hour))) is not None:
            return known[1]
        same_hour = [mean for slot, (_, mean) in self.means.items() if slot % DAY == hour_of_week(hour) % DAY]
        found = same_hour or [mean for _, mean in self.means.values()] or [self.current]
        return sum(found) / len(found)
