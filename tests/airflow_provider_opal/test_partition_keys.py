"""Partition keys and the intervals that they name."""

from datetime import datetime

import pytest

from airflow_provider_opal.partition_keys import KeyedInterval


@pytest.mark.parametrize(
    "schedule, timezone, key, start, end",
    [
        ("@daily", "UTC", "2026-11-01", "2026-11-01T00:00:00+00:00", "2026-11-02T00:00:00+00:00"),
        (
            "@hourly",
            "UTC",
            "2026-11-01T23",
            "2026-11-01T23:00:00+00:00",
            "2026-11-02T00:00:00+00:00",
        ),
        (
            "*/15 * * * *",
            "UTC",
            "2026-11-01T23-45",
            "2026-11-01T23:45:00+00:00",
            "2026-11-02T00:00:00+00:00",
        ),
        (
            "@daily",
            "Europe/Berlin",
            "2026-10-25",
            "2026-10-25T00:00:00+02:00",
            "2026-10-26T00:00:00+01:00",
        ),
        (
            "@hourly",
            "Europe/Berlin",
            "2026-10-25T02+0100",
            "2026-10-25T02:00:00+01:00",
            "2026-10-25T03:00:00+01:00",
        ),
        ("@monthly", "UTC", "2026-11-01", "2026-11-01T00:00:00+00:00", "2026-12-01T00:00:00+00:00"),
    ],
)
def test_from_its_moment_up_to_the_next_one(
    schedule: str, timezone: str, key: str, start: str, end: str
) -> None:
    assert KeyedInterval.of(schedule, timezone).bounds(key) == (
        datetime.fromisoformat(start),
        datetime.fromisoformat(end),
    )


def test_a_key_of_another_schedule_is_refused() -> None:
    with pytest.raises(
        ValueError, match="'DE' does not have the format '%Y-%m-%d' of the schedule"
    ):
        KeyedInterval.of("@daily").bounds("DE")
