"""Neighbours of many entries, compared with a search for each of them.

The rule's own tests have small sets.
"""

import numpy as np
import numpy.typing as npt
import pytest

from opal_lake.key_store.cache.protocol import GREATEST_WORD
from opal_lake.key_store.entries import Entries, sorted_entries
from opal_lake.key_store.probe import PIECE, neighbours


def pool(random: np.random.Generator, words: int) -> npt.NDArray[np.uint64]:
    """Draw first words over all 64 bits, some of them adjacent.

    As floats or signed numbers they would differ.
    """
    drawn = random.integers(0, GREATEST_WORD, words, np.uint64)
    ends = np.array(
        [0, 1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, GREATEST_WORD - 1, GREATEST_WORD], np.uint64
    )
    return np.concatenate([drawn, drawn[: words // 4] ^ np.uint64(1), ends])


def entries(
    random: np.random.Generator, count: int, words: npt.NDArray[np.uint64], segment: int
) -> Entries:
    """Draw entries; with few `words`, keys have many versions and share first words."""
    return Entries(
        high=random.choice(words, count),
        low=random.integers(0, 3, count, np.uint64),
        delta=random.integers(0, 50, count),
        ties=(),
        segment=np.full(count, segment),
        offset=np.arange(count, dtype=np.int32),
        deleted=np.zeros(count, np.bool_),
    )


def one_by_one(stored: Entries, new: Entries) -> set[tuple[int, ...]]:
    by_key: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for row in zip(*(column.tolist() for column in stored.order_columns), strict=True):
        by_key.setdefault(row[:2], []).append(row)
    neighbour_rows: set[tuple[int, ...]] = set()
    for row in zip(*(column.tolist() for column in new.order_columns), strict=True):
        versions = by_key.get(row[:2], [])
        neighbour_rows.add(max((version for version in versions if version < row), default=row))
        neighbour_rows.add(min((version for version in versions if version >= row), default=row))
        neighbour_rows.discard(row)
    return neighbour_rows


@pytest.mark.parametrize("order", ["sorted", "as they come"])
@pytest.mark.parametrize("words", [500, 20_000, 1 << 20])
@pytest.mark.parametrize(
    "stored_count, new_count",
    [(30_000, 3 * PIECE), (1_000, 3 * PIECE), (90_000, 3 * PIECE), (30_000, 7)],
)
def test_neighbours_of_many_entries_are_those_of_each(
    stored_count: int, new_count: int, words: int, order: str
) -> None:
    random = np.random.default_rng(stored_count + words)
    drawn = pool(random, words)
    stored = sorted_entries(entries(random, stored_count, drawn, 1))
    new = entries(random, new_count, drawn, 2)
    new = sorted_entries(new) if order == "sorted" else new
    entries_near = neighbours(stored, new).entries
    rows = list(zip(*(column.tolist() for column in entries_near.order_columns), strict=True))
    assert rows == sorted(one_by_one(stored, new))
