"""When a trigger is evaluated: StartTimestamp + n x Frequency, in UTC. Times are milliseconds since 1970."""

from calendar import monthrange
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum

from lakechime.errors import InvalidEventError
from opal_lake.clock import EPOCH, milliseconds_of


class FrequencyUnit(StrEnum):
    """A day is 24 hours, since UTC has no summer; a month is one of the calendar."""

    MINUTE = "MINUTE"
    HOUR = "HOUR"
    DAY = "DAY"
    WEEK = "WEEK"
    MONTH = "MONTH"


_FIXED_MS = {
    FrequencyUnit.MINUTE: 60_000,
    FrequencyUnit.HOUR: 3_600_000,
    FrequencyUnit.DAY: 86_400_000,
    FrequencyUnit.WEEK: 604_800_000,
}


def tick_at(start_ts: int, frequency: int, unit: FrequencyUnit | str, number: int) -> int:
    """The n-th tick; the 0th is the start. On the 31st of a shorter month the last day stands in, and the 31st comes again after it."""
    unit = _checked(frequency, unit)
    if unit in _FIXED_MS:
        return start_ts + number * frequency * _FIXED_MS[unit]
    start = EPOCH + timedelta(milliseconds=start_ts)
    months = start.month - 1 + number * frequency
    year, month = start.year + months // 12, months % 12 + 1
    moment = start.replace(year=year, month=month, day=min(start.day, monthrange(year, month)[1]))
    return milliseconds_of(moment)


def tick_number(
    start_ts: int, frequency: int, unit: FrequencyUnit | str, now_ts: int
) -> int | None:
    """Which tick is the newest one at this time; None before the start."""
    unit = _checked(frequency, unit)
    if now_ts < start_ts:
        return None
    if unit in _FIXED_MS:
        return (now_ts - start_ts) // (frequency * _FIXED_MS[unit])
    start, now = (EPOCH + timedelta(milliseconds=moment) for moment in (start_ts, now_ts))
    number = ((now.year - start.year) * 12 + now.month - start.month) // frequency
    return number if tick_at(start_ts, frequency, unit, number) <= now_ts else number - 1


def ticks(
    start_ts: int,
    frequency: int,
    unit: FrequencyUnit | str,
    now_ts: int,
    *,
    after_ts: int | None = None,
) -> Iterator[int]:
    """Those up to now that come after `after_ts` (None: from the start)."""
    last = tick_number(start_ts, frequency, unit, now_ts)
    before = None if after_ts is None else tick_number(start_ts, frequency, unit, after_ts)
    first = 0 if before is None else before + 1
    for number in range(first, -1 if last is None else last + 1):
        yield tick_at(start_ts, frequency, unit, number)


def _checked(frequency: int, unit: FrequencyUnit | str) -> FrequencyUnit:
    if type(frequency) is not int or frequency < 1:
        raise InvalidEventError(
            f"frequency={frequency!r} is no number of units; write a whole number from 1 on"
        )
    try:
        return FrequencyUnit(unit)
    except ValueError:
        raise InvalidEventError(
            f"unit={unit!r} is unknown; write one of {', '.join(FrequencyUnit)}"
        ) from None
