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
        """Add messages that were produced in an hour.

        Late messages, of an hour that has ended, count in the hour that is being counted.
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
        """Add the volume of a complete hour to the mean of its hour of the week."""
        slot = hour_of_week(hour)
        weeks, mean = self.means.get(slot, (0, NOTHING))
        weeks = min(weeks + 1, MAX_WEEKS)
        earlier = mean.times(1 - 1 / weeks)
        self.means[slot] = (weeks, earlier.plus(volume.times(1 / weeks)))

    def predict(self, hour: int) -> Volume:
        """Return the expected volume of an hour: the mean of its hour of the week.

        An hour of the week without a mean gets the mean of the same hour on other days, or of all
        hours, or the volume of the current hour so far.
        """
        slot = hour_of_week(hour)
        if slot in self.means:
            _, mean = self.means[slot]
            return mean
        all_means: list[Volume] = []
        same_hour_means: list[Volume] = []
        for other_slot, (_, mean) in self.means.items():
            all_means.append(mean)
            if other_slot % DAY == slot % DAY:
                same_hour_means.append(mean)
        if same_hour_means:
            return mean_of(same_hour_means)
        if all_means:
            return mean_of(all_means)
        return self.current


def mean_of(volumes: Collection[Volume]) -> Volume:
    """Return the mean of volumes; nothing for no volumes."""
    count = max(1, len(volumes))
    return Volume(
        sum(volume.messages for volume in volumes) / count,
        sum(volume.bytes for volume in volumes) / count,
    )
