"""The order of entries, and the result of merges, compared with Python's own sorting."""

import numpy as np
import pytest

from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    merged_entries,
    sort_order,
    sorted_entries,
)


def entries_of(dice: np.random.Generator, count: int, words: int, first: int = 0) -> Entries:
    """Draw entries of few keys: many share a first word, and many deltas repeat.

    Deltas are from `first` on.
    """
    return Entries(
        high=dice.integers(0, words, count).astype(np.uint64),
        low=dice.integers(0, 2, count).astype(np.uint64),
        delta=dice.integers(first, first + 4, count),
        ties=(dice.integers(0, 2, count), dice.integers(0, 2, count)),
        segment=dice.integers(0, 3, count),
        offset=np.arange(count, dtype=np.int32),
        deleted=dice.random(count) < 0.3,
    )


def as_rows(entries: Entries) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in entries.order_columns), strict=True))


@pytest.mark.parametrize("words", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_entries_are_sorted_by_all_order_columns(seed: int, words: int) -> None:
    entries = entries_of(np.random.default_rng(seed), 60, words)
    assert as_rows(entries.take(sort_order(entries))) == sorted(as_rows(entries))
    ordered = sorted_entries(entries)
    assert sort_order(ordered).tolist() == list(range(len(ordered)))


@pytest.mark.parametrize("step", [0, 2, 10], ids=["at once", "overlapping", "one after the other"])
@pytest.mark.parametrize("seed", range(20))
def test_merge_leaves_the_greatest_of_equal_entries(seed: int, step: int) -> None:
    dice = np.random.default_rng(seed)
    runs = [sorted_entries(entries_of(dice, 30, 5, first=step * number)) for number in range(4)]
    dice.shuffle(runs)
    greatest = {row[:3]: row for row in sorted(as_rows(concat_entries(runs)))}
    parts = [[run.take(slice(0, 11)), run.take(slice(11, 30))] for run in runs]
    assert as_rows(merged_entries(parts)) == sorted(greatest.values())
