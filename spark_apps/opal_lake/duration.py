"""Spans of time: texts such as 30d, 12h, 1h30m and 200ms, or Python's timedelta."""

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
_MAX_COUNT = 999_999  # the number before a unit has at most six digits
_LONGEST_US = _MAX_COUNT * _UNITS_US["d"]
_EXAMPLES = "30d, 2w, 12h, 1h30m or 200ms"


def parse_duration(value: object, *, name: str) -> int:
    """Return a span of time in microseconds.

    Raises InvalidInputError if the value is not a span, is negative, or is too long. The message
    begins with the name and the value.
    """
    span_us = None
    if isinstance(value, str):
        span_us = _text_us(value)
    elif isinstance(value, timedelta):
        span_us = value // timedelta(microseconds=1)
    if span_us is None or span_us < 0:
        raise InvalidInputError(
            f"{name}={value!r} is not a span of time; write a number of weeks, days, hours, "
            f"minutes, seconds or milliseconds, such as {_EXAMPLES}"
        )
    if span_us > _LONGEST_US:
        raise InvalidInputError(
            f"{name}={value!r} is longer than {_MAX_COUNT}d; write a shorter span of time"
        )
    return span_us


def check_span(text: str) -> int:
    """Return a span of time in microseconds.

    The message of its InvalidInputError only says what to write, for callers that show the value.
    """
    span_us = _text_us(text)
    if span_us is None or span_us > _LONGEST_US:
        raise InvalidInputError(f"write a span of time such as {_EXAMPLES}, at most {_MAX_COUNT}d")
    return span_us


def _text_us(text: str) -> int | None:
    """Return the microseconds of a text such as `1h30m`; None for another text."""
    if not re.fullmatch(DURATION, text):
        return None
    span_us = 0
    for number, unit in re.findall(r"([0-9]+)(ms|[wdhms])", text):
        span_us += int(number) * _UNITS_US[unit]
    return span_us


def plain_duration(value: object, *, name: str) -> str:
    """Return a span of time as text, the form that jobs and properties have.

    A text stays unchanged. A timedelta is written in its greatest unit without a fraction, such as
    `36h`, or in several units if one number would have more than six digits.
    """
    span_us = parse_duration(value, name=name)
    if isinstance(value, str):
        return value
    for unit in _PLAIN_UNITS:
        count, fraction_us = divmod(span_us, _UNITS_US[unit])
        if fraction_us:
            continue
        if count > _MAX_COUNT:
            return _in_several_units(span_us)
        return f"{count}{unit}"
    raise InvalidInputError(f"{name}={value!r} is not a whole number of milliseconds; round it")


def _in_several_units(span_us: int) -> str:
    """Return a span as text, such as `2d3h`, with every unit that it has."""
    parts: list[str] = []
    for unit in _PLAIN_UNITS:
        count, span_us = divmod(span_us, _UNITS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
