"""Clocks: event_ts never falls, and a time range that was read stays the same."""

from dataclasses import dataclass

import pytest

from lakechime import LakeChime
from lakechime.store.sql_store import SqlStore
from tests.lakechime.build import TABLE, made


@dataclass
class SteppingClock:
    """A clock that a test sets."""

    at_ms: int = 1_700_000_000_000

    def now_us(self) -> int:
        return self.at_ms * 1000


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


@pytest.fixture
def chime(address: str, clock: SteppingClock) -> LakeChime:
    return LakeChime(SqlStore.open(address, clock=clock))


def time_of(chime: LakeChime, number: int) -> int:
    return chime.register([made(number)])[0].event.event_ts or 0


def test_times_stand_still_while_the_clock_is_behind(
    chime: LakeChime, clock: SteppingClock
) -> None:
    start = clock.at_ms
    assert time_of(chime, 1) == start
    clock.at_ms -= 3_600_000
    assert time_of(chime, 2) == start
    clock.at_ms = start + 1
    assert time_of(chime, 3) == start + 1


def test_a_range_that_was_read_gets_no_more_events_when_the_clock_steps_back(
    chime: LakeChime, clock: SteppingClock
) -> None:
    start = clock.at_ms
    time_of(chime, 1)
    clock.at_ms = start + 10_000
    before = chime.events_between(TABLE, 0, start + 5_000)
    clock.at_ms = start + 2_000
    assert time_of(chime, 2) == start + 5_000
    assert chime.events_between(TABLE, 0, start + 5_000) == before
    later = chime.events_between(TABLE, start + 5_000, start + 20_000)
    assert [entry.event.snapshot_id for entry in later.events] == ["2"]


def test_a_range_that_reaches_into_the_future_fixes_what_is_past(
    chime: LakeChime, clock: SteppingClock
) -> None:
    start = clock.at_ms
    chime.events_between(TABLE, 0, start + 10**9)
    assert time_of(chime, 1) == start
    clock.at_ms = start + 100
    assert time_of(chime, 2) == start + 100


def test_expiry_goes_by_the_times_that_events_have(chime: LakeChime, clock: SteppingClock) -> None:
    start = clock.at_ms
    for number in range(1, 4):
        time_of(chime, number)
        clock.at_ms += 1_000
    assert chime.expire(start + 1_000) == 1
    assert [entry.event.snapshot_id for entry in chime.events().events] == ["2", "3"]
