"""Ticks: StartTimestamp + n x Frequency, by the calendar in UTC."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakechime import InvalidEventError
from lakechime.triggers.schedule import FrequencyUnit, tick_at, tick_number, ticks


def ms(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type,misc]


@given(
    st.integers(0, 4 * 10**12),
    st.integers(1, 500),
    st.sampled_from(FrequencyUnit),
    st.integers(0, 10**12),
)
def test_the_newest_tick_is_the_last_one_that_is_not_after_now(
    start: int, frequency: int, unit: FrequencyUnit, later: int
) -> None:
    number = tick_number(start, frequency, unit, start + later)
    assert number is not None
    assert (
        tick_at(start, frequency, unit, number)
        <= start + later
        < tick_at(start, frequency, unit, number + 1)
    )
    assert tick_number(start, frequency, unit, start - 1) is None
    assert tick_at(start, frequency, unit, 0) == start


def test_ticks_follow_the_unit_of_the_frequency() -> None:
    start = ms(2026, 1, 31, 12)
    assert tick_at(start, 90, "MINUTE", 2) == ms(2026, 1, 31, 15)
    assert tick_at(start, 5, "HOUR", 5) == ms(2026, 2, 1, 13)
    assert tick_at(start, 1, "DAY", 60) == ms(2026, 4, 1, 12)
    assert tick_at(start, 2, "WEEK", 1) == ms(2026, 2, 14, 12)
    assert [tick_at(start, 1, "MONTH", number) for number in range(4)] == [
        ms(2026, 1, 31, 12),
        ms(2026, 2, 28, 12),
        ms(2026, 3, 31, 12),
        ms(2026, 4, 30, 12),
    ]


def test_ticks_since_the_last_look() -> None:
    start = ms(2026, 11, 1)
    assert list(ticks(start, 1, "HOUR", ms(2026, 11, 1, 2, 30))) == [
        start,
        ms(2026, 11, 1, 1),
        ms(2026, 11, 1, 2),
    ]
    assert list(ticks(start, 1, "HOUR", ms(2026, 11, 1, 2, 30), after_ts=ms(2026, 11, 1, 1))) == [
        ms(2026, 11, 1, 2)
    ]
    assert list(ticks(start, 1, "HOUR", start - 1)) == []
    assert list(ticks(start, 1, "HOUR", start, after_ts=start)) == []
    assert list(ticks(start, 1, "HOUR", start, after_ts=start - 1)) == [start]


@pytest.mark.parametrize(
    "frequency, unit", [(0, "DAY"), (-1, "DAY"), (1.5, "DAY"), (True, "DAY"), (1, "FORTNIGHT")]
)
def test_invalid_frequency_is_refused(frequency: int, unit: str) -> None:
    with pytest.raises(InvalidEventError, match=r"frequency=|unit="):
        tick_at(0, frequency, unit, 1)
