"""Moments that people write, and pauses between attempts."""

import pytest

from opal_lake.clock import doubled_pause_s, parse_moment_ms
from opal_lake.errors import InvalidInputError


@pytest.mark.parametrize(
    "text, moment_ms",
    [
        ("1700000000123", 1_700_000_000_123),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T00:00:01.5+00:00", 1500),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_moment_is_iso_text_in_utc_or_milliseconds(text: str, moment_ms: int) -> None:
    assert parse_moment_ms(text) == moment_ms


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "2026-13-01"])
def test_other_texts_are_refused_with_a_moment_to_write(text: str) -> None:
    with pytest.raises(InvalidInputError, match="write a time such as 2026-11-24T09:30:00Z"):
        parse_moment_ms(text)


def test_pauses_double_up_to_the_longest() -> None:
    assert [doubled_pause_s(failures, 0.5, 3) for failures in (1, 2, 3, 4, 5000)] == [
        0.5,
        1,
        2,
        3,
        3,
    ]
