"""Traffic of one part of a source by hour of the week, UTC, and what it predicts.

Each hour of the week has the mean over about the last four weeks. The last week counts a quarter,
so that growth is followed, and one odd day hardly counts. Hours without messages between the first
and the last observed one count as 0.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

HOUR_MS, DAY, WEEK = 3_600_000, 24, 168  # a day and a week in hours
MAX_WEEKS = 4
_THURSDAY = 72  # 1970 began on a Thursday, and weeks begin on Monday


def hour_of_week(hour: int) -> int:
    """Return the hour of the week of an hour since 1970; 0 begins on Monday, UTC."""
    return (hour + _THURSDAY) % WEEK


class Volume(NamedTuple):
    """A number of messages and of bytes; 0 bytes where sizes are unknown."""

    messages: float = 0.0
    bytes: float = 0.0

    def plus(self, other: "Volume") -> "Volume":
        return Volume(self.messages + other.messages, self.bytes + other.bytes)

    def times(self, factor: float) -> "Volume":
        return Volume(self.messages * factor, self.bytes * factor)


NOTHING = Volume()


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Means by hour of the week, and the hour that is being counted.

    A mean comes with its number of weeks. All messages before `position` are counted.
    """

    hour: int
    position: int = 0
    current: Volume = NOTHING
    means: dict[int, tuple[int, Volume]] = field(default_factory=dict)

    def observe(self, hour: int, volume: Volume) -> None:
        """Add what was produced in an hour.

        Messages older than the hour that is being counted are late, and count in it.
        """
        if hour > self.hour:
            self.advance(hour)
        self.current = self.current.plus(volume)

    def advance(self, hour: int) -> None:
        """End the hours before this one."""
        if hour <= self.hour:
            return
        self._end(self.hour, self.current)
        # After so many empty weeks each mean is that of empty hours: earlier ones do not count
        for empty in range(max(self.hour + 1, hour - MAX_WEEKS * WEEK), hour):
            self._end(empty, NOTHING)
        self.hour, self.current = hour, NOTHING

    def _end(self, hour: int, volume: Volume) -> None:
        slot = hour_of_week(hour)
        weeks, mean = self.means.get(slot, (0, NOTHING))
        weeks = min(weeks + 1, MAX_WEEKS)
        self.means[slot] = (weeks, mean.times(1 - 1 / weeks).plus(volume.times(1 / weeks)))

    def predict(self, hour: int) -> Volume:
        """Return the expected volume of an hour.

        Before a week is over, that of the same hour of other days, of all hours, or of the current
        hour so far.
        """
        slot = hour_of_week(hour)
        if slot in self.means:
            _, mean = self.means[slot]
            return mean
        means = [mean for _, mean in self.means.values()]
        same_hour = [mean for other, (_, mean) in self.means.items() if other % DAY == slot % DAY]
        return mean_of(same_hour or means or [self.current])


def mean_of(volumes: Collection[Volume]) -> Volume:
    """Return the mean of volumes; nothing for no volumes."""
    count = max(1, len(volumes))
    return Volume(
        sum(volume.messages for volume in volumes) / count,
        sum(volume.bytes for volume in volumes) / count,
    )
