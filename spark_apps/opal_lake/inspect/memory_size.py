"""Amounts of memory as people write them: 1g, 2500m."""

import re

from opal_lake.errors import InvalidInputError

_UNITS = {"m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,6})([mg])\Z")


def parse_memory(text: object, *, name: str) -> int:
    """Bytes."""
    match = _SIZE.match(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidInputError(
            f"{name}={text!r} is no amount of memory; write a number of gigabytes or megabytes, as 1g or 2500m"
        )
    return int(match[1]) * _UNITS[match[2]]
