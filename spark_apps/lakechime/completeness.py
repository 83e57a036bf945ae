"""The completeness of a partition, by a convention of tags.

`completeness.hourly` = `99` states that 99% of the hour's rows have arrived. The period is the span
of time that the producer counts (hourly, daily, or a name of its own). The value is a percentage in
as few digits as possible: `99`, `99.5`, `100`.

A trigger matches tags by equality, so a producer registers an event for each agreed threshold.
These tags, and no others, make two events of one snapshot different.
"""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from lakechime.errors import InvalidEventError

PREFIX = "completeness."
HOURLY, DAILY = "hourly", "daily"
_PERIOD = re.compile(r"[a-z][a-z0-9_-]{0,63}").fullmatch
_MAX_PERCENT_CHARS = 16


def completeness_tag(period: str, percent: Decimal | int | float | str) -> dict[str, str]:
    """Return the tag that reports a completeness, or that a trigger asks for."""
    if not _PERIOD(period):
        raise InvalidEventError(
            f"period={period!r} is not the name of a period; "
            f"write {HOURLY}, {DAILY}, or a name of small letters, digits, - and _"
        )
    return {f"{PREFIX}{period}": percent_text(percent)}


def percent_text(percent: Decimal | int | float | str) -> str:
    """Return the canonical text of a percentage, which producers and triggers compare."""
    number = _percent(str(percent))
    if number is None:
        raise InvalidEventError(
            f"completeness {percent!r} is not a percentage; "
            "write a number from 0 to 100, such as 99.5"
        )
    return f"{number.normalize():f}"


def read_completeness(tags: Mapping[str, str]) -> dict[str, Decimal]:
    """Return the percentages by period.

    Other tags are left out, and so are values that are not percentages.
    """
    percents = {}
    for name, text in tags.items():
        if not name.startswith(PREFIX):
            continue
        percent = _percent(text)
        if percent is not None:
            percents[name.removeprefix(PREFIX)] = percent
    return percents


def is_complete(
    tags: Mapping[str, str], period: str, at_least: Decimal | int | float | str = 100
) -> bool:
    """Return whether an event reports at least this percentage of the period."""
    percent = read_completeness(tags).get(period)
    return percent is not None and percent >= Decimal(percent_text(at_least))


def _percent(text: str) -> Decimal | None:
    """Return a percentage, or None where the text is not one."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    is_in_range = number.is_finite() and 0 <= number <= 100
    if not is_in_range or len(text) > _MAX_PERCENT_CHARS:
        return None
    return number
