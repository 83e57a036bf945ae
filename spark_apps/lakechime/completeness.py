"""How complete a partition is, by a convention of tags: `completeness.hourly` = `99` says that 99% of the hour's rows are there.

The period is the span of time that the producer counts (hourly, daily, or a name of its own). The value is a percentage in as few digits as
say it: `99`, `99.5`, `100`. A trigger matches tags by equality, so a producer registers an event for each threshold that was agreed on:
these tags, and no others, make events of one snapshot different ones.
"""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from lakechime.errors import InvalidEventError

PREFIX = "completeness."
HOURLY, DAILY = "hourly", "daily"
_PERIOD = re.compile(r"[a-z][a-z0-9_-]{0,63}").fullmatch


def completeness_tag(period: str, percent: Decimal | int | float | str) -> dict[str, str]:
    """To be merged into an event's tags, and asked for by a trigger."""
    if not _PERIOD(period):
        raise InvalidEventError(
            f"period={period!r} is no name of a period; write {HOURLY}, {DAILY}, or small letters, digits, - and _"
        )
    return {f"{PREFIX}{period}": percent_text(percent)}


def percent_text(percent: Decimal | int | float | str) -> str:
    """The one text of a percentage, so that those who tell it and those who wait for it mean the same."""
    number = _percent(str(percent))
    if number is None:
        raise InvalidEventError(
            f"completeness {percent!r} is no percentage; write a number from 0 to 100, as 99 or 99.5"
        )
    return f"{number.normalize():f}"


def read_completeness(tags: Mapping[str, str]) -> dict[str, Decimal]:
    """Percent by period; tags that are none, or that no percentage can be read from, are left out."""
    read = {
        name.removeprefix(PREFIX): _percent(text)
        for name, text in tags.items()
        if name.startswith(PREFIX)
    }
    return {period: percent for period, percent in read.items() if percent is not None}


def is_complete(
    tags: Mapping[str, str], period: str, at_least: Decimal | int | float | str = 100
) -> bool:
    """Whether an event says at least this much of the period."""
    told = read_completeness(tags).get(period)
    return told is not None and told >= Decimal(percent_text(at_least))


def _percent(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and 0 <= number <= 100 and len(text) <= 16 else None
