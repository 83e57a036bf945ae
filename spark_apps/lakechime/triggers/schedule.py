"""The evaluation times of a trigger: StartTimestamp + n x Frequency, in UTC.

Times are milliseconds since 1970.
"""

from calendar import monthrange
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum

from lakechime.errors import InvalidEventError
from opal_lake.clock import EPOCH, milliseconds_of


class FrequencyUnit(StrEnum):
    """A unit of the frequency: a day has 24 hours; a month is one of the calendar."""

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
    """Return the time of the n-th tick; the 0th is the start.

    A start on the 31st ticks on the last day of shorter months, and on the 31st of the others.
    """
    unit = _checked(frequency, unit)
    if unit in _FIXED_MS:
        return start_ts + number * frequency * _FIXED_MS[unit]
    start = EPOCH + timedelta(milliseconds=start_ts)
    months = start.month - 1 + number * frequency
    year = start.year + months // 12
    month = months % 12 + 1
    _, days_in_month = monthrange(year, month)
    moment = start.replace(year=year, month=month, day=min(start.day, days_in_month))
    return milliseconds_of(moment)


def tick_number(
    start_ts: int, frequency: int, unit: FrequencyUnit | str, now_ts: int
) -> int | None:
    """Return the number of the newest tick at this time; None before the start."""
    unit = _checked(frequency, unit)
    if now_ts < start_ts:
        return None
    if unit in _FIXED_MS:
        return (now_ts - start_ts) // (frequency * _FIXED_MS[unit])
    start = EPOCH + timedelta(milliseconds=start_ts)
    now = EPOCH + timedelta(milliseconds=now_ts)
    months = (now.year - start.year) * 12 + now.month - start.month
    number = months // frequency
    # The tick of this month may be in the future
    is_past = tick_at(start_ts, frequency, unit, number) <= now_ts
    return number if is_past else number - 1


def ticks(
    start_ts: int,
    frequency: int,
    unit: FrequencyUnit | str,
    now_ts: int,
    *,
    after_ts: int | None = None,
) -> Iterator[int]:
    """Yield the ticks after `after_ts` up to now; None begins with the start."""
    last = tick_number(start_ts, frequency, unit, now_ts)
    if last is None:
        return
    first = 0
    if after_ts is not None:
        before = tick_number(start_ts, frequency, unit, after_ts)
        if before is not None:
            first = before + 1
    for number in range(first, last + 1):
        yield tick_at(start_ts, frequency, unit, number)


def _checked(frequency: int, unit: FrequencyUnit | str) -> FrequencyUnit:
    if type(frequency) is not int or frequency < 1:
        raise InvalidEventError(
            f"frequency={frequency!r} is not valid; write a whole number of at least 1"
        )
    try:
        return FrequencyUnit(unit)
    except ValueError:
        raise InvalidEventError(
            f"unit={unit!r} is unknown; write one of {', '.join(FrequencyUnit)}"
        ) from None
