"""Completeness by tags: one text a percentage, so that equality finds it."""

from decimal import Decimal

import pytest

from lakechime import InvalidEventError
from lakechime.completeness import DAILY, HOURLY, completeness_tag, is_complete, read_completeness


@pytest.mark.parametrize(
    "percent, text",
    [
        (99, "99"),
        (99.0, "99"),
        ("99.50", "99.5"),
        (Decimal(100), "100"),
        (0, "0"),
        ("1e2", "100"),
        (0.1, "0.1"),
    ],
)
def test_a_percentage_has_one_text(percent: int | float | str | Decimal, text: str) -> None:
    assert completeness_tag(HOURLY, percent) == {"completeness.hourly": text}
    assert is_complete(completeness_tag(DAILY, percent), DAILY, text)


@pytest.mark.parametrize("percent", [-1, 101, "most", "nan", "inf", "", "9" * 20])
def test_invalid_percentage_is_refused(percent: int | str) -> None:
    with pytest.raises(InvalidEventError, match="is not a percentage"):
        completeness_tag(HOURLY, percent)


@pytest.mark.parametrize("period", ["", "Hourly", "a b", "x" * 70, "ü"])
def test_invalid_period_is_refused(period: str) -> None:
    with pytest.raises(InvalidEventError, match="is not the name of a period"):
        completeness_tag(period, 99)


def test_other_tags_are_left_alone() -> None:
    tags = {"completeness.hourly": "99", "completeness.daily": "soon", "source": "shop"}
    assert read_completeness(tags) == {"hourly": Decimal(99)}
    assert is_complete(tags, HOURLY, 98)
    assert not is_complete(tags, HOURLY)
    assert not is_complete(tags, DAILY, 0)
