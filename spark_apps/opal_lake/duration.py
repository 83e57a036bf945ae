"""Spans of time: texts as 30d, 2w, 12h, 1h30m, 45m, 90s and 200ms, or Python's timedelta."""

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
_MAX_COUNT = 999_999  # of a unit, which has at most six digits
_LONGEST_US = _MAX_COUNT * _UNITS_US["d"]


def parse_duration(value: object, *, name: str) -> int:
    """Return a span in microseconds; raise InvalidInputError if it is not valid."""
    span_us = None
    if isinstance(value, str):
        span_us = _text_us(value)
    elif isinstance(value, timedelta):
        span_us = value // timedelta(microseconds=1)
    if span_us is None or span_us < 0:
        raise InvalidInputError(
            f"{name}={value!r} is not a span of time; write a number of weeks, days, hours, "
            "minutes, seconds or milliseconds, as 30d, 2w, 12h, 1h30m or 200ms"
        )
    if span_us > _LONGEST_US:
        raise InvalidInputError(
            f"{name}={value!r} is longer than {_MAX_COUNT}d; write a shorter span of time"
        )
    return span_us


def _text_us(text: str) -> int | None:
    if not re.fullmatch(DURATION, text):
        return None
    parts = re.findall(r"([0-9]+)(ms|[wdhms])", text)
    return sum(int(number) * _UNITS_US[unit] for number, unit in parts)


def plain_duration(value: object, *, name: str) -> str:
    """Return a span as text, the form of jobs and properties.

    A text stays as it is. A timedelta is written in the greatest unit that it is a whole number
    of, or in several units if that would take too many digits.
    """
    span_us = parse_duration(value, name=name)
    if isinstance(value, str):
        return value
    for unit in _PLAIN_UNITS:
        count, rest_us = divmod(span_us, _UNITS_US[unit])
        if rest_us:
            continue
        if count > _MAX_COUNT:
            return _in_several_units(span_us)
        return f"{count}{unit}"
    raise InvalidInputError(f"{name}={value!r} is not a whole number of milliseconds; round it")


def _in_several_units(span_us: int) -> str:
    parts: list[str] = []
    for unit in _PLAIN_UNITS:
        count, span_us = divmod(span_us, _UNITS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
