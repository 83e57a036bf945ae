"""Spans of time as people write them: 30d, 2w, 12h, 1h30m, 45m, 90s, 200ms; or as Python's timedelta."""

import re
from datetime import timedelta

from opal_lake.errors import InvalidInputError

DURATION = r"([0-9]{1,6}(ms|[wdhms]))+"
Duration = str | timedelta  # as a caller gives it
_UNITS_US = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
}
_PLAIN_UNITS = ("d", "h", "m", "s", "ms")
_LONGEST_US = 999_999 * _UNITS_US["d"]


def parse_duration(value: object, *, name: str) -> int:
    """Microseconds."""
    span_us = (
        _text_us(value)
        if isinstance(value, str)
        else value // timedelta(microseconds=1)
        if isinstance(value, timedelta)
        else None
    )
    if span_us is None or span_us < 0:
        raise InvalidInputError(
            f"{name}={value!r} is not a span of time; write a number of weeks, days, hours, "
            "minutes, seconds or milliseconds, as 30d, 2w, 12h, 1h30m or 200ms"
        )
    if span_us > _LONGEST_US:
        raise InvalidInputError(
            f"{name}={value!r} is longer than {_LONGEST_US // _UNITS_US['d']}d; write a shorter span of time"
        )
    return span_us


def _text_us(text: str) -> int | None:
    if not re.fullmatch(DURATION, text):
        return None
    return sum(
        int(number) * _UNITS_US[unit] for number, unit in re.findall(r"([0-9]+)(ms|[wdhms])", text)
    )


def plain_duration(value: object, *, name: str) -> str:
    """As text, which is how jobs and properties hold it: a text as it is, a timedelta in the greatest unit that it is a whole number of."""
    span_us = parse_duration(value, name=name)
    if isinstance(value, str):
        return value
    unit = next(
        (candidate for candidate in _PLAIN_UNITS if span_us % _UNITS_US[candidate] == 0), None
    )
    if unit is None:
        raise InvalidInputError(f"{name}={value!r} is not a whole number of milliseconds; round it")
    return f"{span_us // _UNITS_US[unit]}{unit}"
