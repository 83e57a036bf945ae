"""Days and times as a condition writes them.

A time without a zone is in UTC, whatever the session.
"""

import re
from datetime import UTC, date, datetime, timedelta

_DAY = re.compile(r"(\d{4})-(\d{2})-(\d{2})\Z", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?"
    r"(?:(?P<utc> ?(?:Z|UTC))|(?P<sign>[+-])(?P<hours>\d{2}):(?P<minutes>\d{2}))?)?\Z",
    re.ASCII,
)
_MAX_OFFSET = timedelta(hours=18)


def day_of(text: str) -> date:
    """Return the day; ValueError for another text."""
    match = _DAY.match(text)
    if match is None:
        raise ValueError("is not a day; write DATE '2026-11-28'")
    try:
        return date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        raise ValueError("is not a day of the calendar; write an existing one") from None


def instant_of(text: str) -> datetime:
    """Return the instant: in UTC, unless the text names an offset."""
    match = _matched(text, "TIMESTAMP '2026-11-28 09:30:00', in UTC, or with an offset as +02:00")
    time = _wall_clock(match)
    if match["sign"] is None:
        return time.replace(tzinfo=UTC)
    offset = timedelta(hours=int(match["hours"]), minutes=int(match["minutes"]))
    if offset > _MAX_OFFSET:
        raise ValueError("has an offset beyond 18 hours; write a smaller one")
    signed = offset if match["sign"] == "+" else -offset
    try:
        return (time - signed).replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError("is outside of the years 1 to 9999; write another time") from None


def wall_clock_of(text: str) -> datetime:
    """Return the time of a clock on a wall, which has no zone."""
    match = _matched(text, "TIMESTAMP_NTZ '2026-11-28 09:30:00'")
    if match["sign"] is not None or match["utc"] is not None:
        raise ValueError("has a zone, which TIMESTAMP_NTZ does not have; take the zone out")
    return _wall_clock(match)


def _matched(text: str, example: str) -> re.Match[str]:
    match = _TIME.match(text)
    if match is None:
        raise ValueError(f"is not a time; write {example}")
    return match


def _wall_clock(match: re.Match[str]) -> datetime:
    day = day_of(match[1])
    hour, minute, second = (int(match[group] or 0) for group in (2, 3, 4))
    microsecond = int((match[5] or "0").ljust(6, "0"))
    try:
        return datetime(day.year, day.month, day.day, hour, minute, second, microsecond)
    except ValueError:
        raise ValueError("is not a time of a day; write 00:00:00 to 23:59:59.999999") from None
