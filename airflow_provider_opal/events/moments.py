"""Moments as users write them, and the moments at which a paced sensor looks.

A moment is a datetime, ISO text, or milliseconds since 1970; a template may fill it in.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from opal_lake.clock import milliseconds_of


def moment_ms(name: str, value: Any) -> int:
    """Return a moment in milliseconds since 1970, or raise ValueError."""
    if isinstance(value, bool):
        raise ValueError(f"{name}={value!r} is not a moment; {_HINT}")
    if isinstance(value, int):
        return value
    moment = value
    if not isinstance(moment, datetime):
        text = value.strip() if isinstance(value, str) else ""
        if text.removeprefix("-").isdecimal():
            return int(text)
        moment = _parsed(name, value, text)
    if moment.tzinfo is None:
        raise ValueError(f"{name}={value!s} has no time zone; {_HINT}")
    return milliseconds_of(moment)


_HINT = (
    "write milliseconds since 1970, such as '{{ data_interval_start.int_timestamp * 1000 }}', "
    "or a text such as 2026-11-01T00:00:00Z"
)


def _parsed(name: str, value: Any, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}={value!r} is not a moment; {_HINT}") from None


def newest_tick(ticks: Sequence[Any]) -> int | None:
    """Return the number of the newest past moment, or None before the first one.

    `ticks` holds the first moment in milliseconds since 1970, the frequency and its unit.
    """
    from lakechime.triggers.schedule import tick_number

    start_ts, frequency, unit = ticks
    return tick_number(start_ts, frequency, unit, _now_ms())


async def next_tick(ticks: Sequence[Any]) -> None:
    """Sleep until the next moment of `ticks`, which are those of `newest_tick`."""
    from lakechime.triggers.schedule import tick_at, tick_number

    start_ts, frequency, unit = ticks
    now_ms = _now_ms()
    passed = tick_number(start_ts, frequency, unit, now_ms)
    number = 0 if passed is None else passed + 1
    await asyncio.sleep((tick_at(start_ts, frequency, unit, number) - now_ms) / 1000)


def _now_ms() -> int:
    return milliseconds_of(datetime.now(UTC))
