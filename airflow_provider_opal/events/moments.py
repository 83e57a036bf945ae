"""Moments as users write them: a datetime, ISO text, or milliseconds since 1970, each maybe filled in by a template."""

from datetime import UTC, datetime, timedelta
from typing import Any


def moment_ms(name: str, value: Any) -> int:
    """Milliseconds since 1970. ValueError for what is no moment."""
    if isinstance(value, bool):
        raise ValueError(f"{name}={value!r} is no moment; {_HINT}")
    if isinstance(value, int):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if text.removeprefix("-").isdecimal():
        return int(text)
    moment = value if isinstance(value, datetime) else _parsed(name, value, text)
    if moment.tzinfo is None:
        raise ValueError(f"{name}={value!s} has no time zone; {_HINT}")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HINT = "write milliseconds since 1970, as '{{ data_interval_start.int_timestamp * 1000 }}', or 2026-11-01T00:00:00Z"


def _parsed(name: str, value: Any, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}={value!r} is no moment; {_HINT}") from None
