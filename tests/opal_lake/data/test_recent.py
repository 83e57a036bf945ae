"""The memory of files that were used last is bounded, and makes a value once."""

from opal_lake.data.recent import Recent


def test_what_was_used_last_stays_within_the_bound() -> None:
    made: list[str] = []

    def make(key: str) -> str:
        made.append(key)
        return key

    recent = Recent[str, str](max_bytes=4, size_of=len)
    for key in ("aa", "bb", "aa", "cc", "aa", "bb"):
        assert recent.get(key, lambda: make(key)) == key  # noqa: B023
    assert made == ["aa", "bb", "cc", "bb"]


def test_a_value_beyond_the_bound_stays_until_the_next_one() -> None:
    recent = Recent[str, str](max_bytes=4, size_of=len)
    assert recent.get("large", lambda: "large") == "large"
    assert recent.get("large", lambda: "made again") == "large"
    recent.get("a", lambda: "a")
    assert recent.get("large", lambda: "made again") == "made again"
