"""Traffic by hour of the week: what is kept, and what it predicts."""

from datetime import UTC, datetime

import pytest

from opal_stream.traffic.hours import DAY, WEEK, Traffic, Volume, hour_of_week, mean_of

MONDAY = int(datetime(2026, 11, 23, tzinfo=UTC).timestamp()) // 3600


def observed(hours: dict[int, float]) -> Traffic:
    """Each message has 100 bytes."""
    traffic = Traffic(hour=min(hours))
    for hour, messages in sorted(hours.items()):
        traffic.observe(hour, Volume(messages, 100 * messages))
    return traffic


def predicted(traffic: Traffic, hour: int) -> float:
    actual = traffic.predict(hour)
    assert actual.bytes == pytest.approx(100 * actual.messages)
    return actual.messages


def test_the_week_begins_on_monday() -> None:
    assert [hour_of_week(MONDAY + hours) for hours in (0, 23, DAY, WEEK - 1, WEEK)] == [
        0,
        23,
        24,
        167,
        0,
    ]


def test_an_hour_is_predicted_by_the_same_hour_of_the_week() -> None:
    traffic = observed(
        {MONDAY + hour: (1000 if hour % DAY < 12 else 10) + hour for hour in range(WEEK + 1)}
    )
    assert predicted(traffic, MONDAY + WEEK + 30) == 1030
    assert predicted(traffic, MONDAY + WEEK + 40) == 50


def test_weeks_are_averaged_and_the_last_four_count_most() -> None:
    two = observed({MONDAY: 100, MONDAY + WEEK: 300, MONDAY + WEEK + 1: 0})
    assert predicted(two, MONDAY) == 200
    grown = observed({MONDAY + week * WEEK: 100 if week < 10 else 1000 for week in range(20)})
    grown.advance(MONDAY + 20 * WEEK)
    assert 900 < predicted(grown, MONDAY) < 1000


def test_hours_without_messages_count_as_none() -> None:
    traffic = observed({MONDAY: 100, MONDAY + 5: 100, MONDAY + 6: 0})
    assert [predicted(traffic, MONDAY + WEEK + hour) for hour in range(6)] == [100, 0, 0, 0, 0, 100]


def test_before_a_week_is_over_other_days_or_the_current_hour_predict() -> None:
    traffic = observed({MONDAY: 50})
    assert predicted(traffic, MONDAY + 7) == 50
    traffic = observed({MONDAY + hour: float(hour % DAY) for hour in range(2 * DAY + 1)})
    assert predicted(traffic, MONDAY + 4 * DAY + 7) == 7


@pytest.mark.parametrize("hour", [MONDAY, MONDAY + 2, MONDAY + 3])
def test_messages_of_the_current_or_an_earlier_hour_count_in_the_current_hour(hour: int) -> None:
    traffic = observed({MONDAY: 1, MONDAY + 3: 5})
    traffic.observe(hour, Volume(2, 200))
    assert traffic.current == Volume(7, 700)


def test_the_mean_of_no_volumes_is_zero() -> None:
    assert (mean_of([]), mean_of([Volume(1, 2), Volume(3, 6)])) == (Volume(), Volume(2, 4))
