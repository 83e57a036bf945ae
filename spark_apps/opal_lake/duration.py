"""Spans of time as people write them: 30d, 12h, 45m, 90s."""

import re

from opal_lake.errors import InvalidInputError

_UNITS_US = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000}
_DURATION = re.compile(r"([0-9]{1,6})([dhms])\Z")


def parse_duration(text: object, *, name: str) -> int:
    """Microseconds."""
    found = _DURATION.match(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInputError(f"{name}={text!r} is no span of time; write a number of days, hours, minutes or seconds, as 30d or 12h")
    return int(found[1]) * _UNITS_US[found[2]]
