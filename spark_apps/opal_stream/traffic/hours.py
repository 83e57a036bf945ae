"""Traffic of one part of a source, in messages and bytes by hour of the week, UTC, and what it predicts.

Of each hour of the week the mean over about the last four weeks is kept: the last one counts a quarter, so that growth is followed and one
odd day is not. Hours between the first and the last one observed that had no messages had none, and count as 0.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

HOUR_MS, DAY, WEEK = 3_600_000, 24, 168  # the others in hours
MOST_WEEKS = 4
_THURSDAY = 72  # 1970 began on one; weeks on Monday


def hour_of_week(hour: int) -> int:
    """Of hours since 1970: 0 is Monday, 00:00 to 01:00 UTC."""
    return (hour + _THURSDAY) % WEEK


class Volume(NamedTuple):
    """What came. Where nobody knows sizes, `bytes` is 0."""

    messages: float = 0.0
    bytes: float = 0.0

    def plus(self, other: "Volume") -> "Volume":
        return Volume(self.messages + other.messages, self.bytes + other.bytes)

    def times(self, factor: float) -> "Volume":
        return Volume(self.messages * factor, self.bytes * factor)


NOTHING = Volume()


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Means by hour of the week with how many weeks they are of, and the hour that is being counted; all before `position` is in them."""

    hour: int
    position: int = 0
    current: Volume = NOTHING
    means: dict[int, tuple[int, Volume]] = field(default_factory=dict)

    def observe(self, hour: int, volume: Volume) -> None:
        """What was produced in an hour. Messages older than the hour that is being counted came late, and count in it."""
        if hour > self.hour:
            self.advance(hour)
        self.current = self.current.plus(volume)

    def advance(self, hour: int) -> None:
        """The hours before this one are over."""
        if hour <= self.hour:
            return
        self._close(self.hour, self.current)
        for empty in range(max(self.hour + 1, hour - MOST_WEEKS * WEEK), hour):
            self._close(empty, NOTHING)
        self.hour, self.current = hour, NOTHING

    def _close(self, hour: int, volume: Volume) -> None:
        weeks, mean = self.means.get(hour_of_week(hour), (0, NOTHING))
        weeks = min(weeks + 1, MOST_WEEKS)
        self.means[hour_of_week(hour)] = (
            weeks,
            mean.times(1 - 1 / weeks).plus(volume.times(1 / weeks)),
        )

    def predict(self, hour: int) -> Volume:
        """By the same hour of the week; before a week is over, by that of other days, by all hours, or by what was counted so far."""
        if (known := self.means.get(hour_of_week(hour))) is not None:
            return known[1]
        same_hour = [
            mean for slot, (_, mean) in self.means.items() if slot % DAY == hour_of_week(hour) % DAY
        ]
        return mean_of(same_hour or [mean for _, mean in self.means.values()] or [self.current])


def mean_of(volumes: Collection[Volume]) -> Volume:
    """Of nothing it is nothing."""
    count = max(1, len(volumes))
    return Volume(
        sum(volume.messages for volume in volumes) / count,
        sum(volume.bytes for volume in volumes) / count,
    )
