"""The memory of files that were used last is bounded, and makes a value once."""

from opal_lake.data.recent import Recent


def test_values_used_last_stay_within_the_bound() -> None:
    made: list[str] = []

    def make(key: str) -> str:
        made.append(key)
        return key

    recent = Recent[str, str](max_size=4, size_of=len)
    for key in ("aa", "bb", "aa", "cc", "aa", "bb"):
        assert recent.get(key, lambda: make(key)) == key  # noqa: B023
    assert made == ["aa", "bb", "cc", "bb"]


def test_value_beyond_the_bound_is_not_stored_and_drops_no_other_value() -> None:
    recent = Recent[str, str](max_size=4, size_of=len)
    recent.get("a", lambda: "a")
    assert recent.get("large", lambda: "large") == "large"
    assert recent.get("large", lambda: "made again") == "made again"
    assert recent.get("a", lambda: "made again") == "a"


def test_newest_value_beyond_the_bound_stays_if_requested() -> None:
    recent = Recent[str, str](max_size=4, size_of=len, keeps_newest=True)
    assert recent.get("large", lambda: "large") == "large"
    assert recent.get("large", lambda: "made again") == "large"
    recent.get("a", lambda: "a")
    assert recent.get("large", lambda: "made again") == "made again"


def test_values_without_a_size_are_counted() -> None:
    recent = Recent[str, str](max_size=2)
    for key in ("a", "b", "c"):
        recent.put(key, key * 100)
    assert [*recent] == ["b", "c"]
    assert recent.known("b") == "b" * 100
    recent.put("d", "d")
    recent.forget("d")
    assert ([*recent], len(recent), recent.known("c")) == (["b"], 1, None)
