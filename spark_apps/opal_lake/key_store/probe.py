"""The search for neighbours of new entries among stored ones.

All functions are pure. The arrays may be views of mapped files: what is not touched is not read.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from opal_lake.key_store.entries import Entries, Positions, no_entries

Words = npt.NDArray[np.uint64]
PIECE = 4096  # words that are looked up together
MERGED_TIMES = 4  # stored words for each new one, up to which sorting both is faster than look-ups


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Stored entries of the same keys, right before or after new entries.

    `followers` are the positions of new entries that have a stored predecessor of their key.
    `predecessor_deltas` are the deltas of these predecessors, in the same order.
    """

    entries: Entries
    followers: Positions
    predecessor_deltas: npt.NDArray[np.int64]


def neighbours(stored: Entries, new: Entries) -> Neighbours:
    """Find the predecessor and successor of each new entry among those of its key.

    `stored` must be sorted. It is faster if `new` is sorted, too.
    """
    none = Neighbours(
        entries=no_entries(len(stored.ties) // 2),
        followers=np.empty(0, np.intp),
        predecessor_deltas=np.empty(0, np.int64),
    )
    if not len(stored) or not len(new):
        return none
    candidates, low = _shared_words(stored.high, new.high)
    if not len(candidates):
        return none
    probes = new.take(candidates)
    high = _past_equals(stored.high, low)
    at = _insertion_points(stored, probes, low, high)
    has_predecessor = _of_same_key(stored, probes, at - 1, at - 1 >= low)
    has_successor = _of_same_key(stored, probes, at, at < high)
    predecessors = at[has_predecessor] - 1
    successors = at[has_successor]
    both = np.sort(np.concatenate([predecessors, successors]), kind="stable")
    is_first = np.diff(both, prepend=-1) != 0
    return Neighbours(
        entries=stored.take(both[is_first]),
        followers=candidates[has_predecessor],
        predecessor_deltas=stored.delta[predecessors],
    )


def _shared_words(stored: Words, new: Words) -> tuple[Positions, Positions]:
    """Return the positions of stored new words, and of the first stored one of each.

    A stable sort merges what is sorted already, which is faster than to look each of many words up.
    The words that it leaves may be repeated among the new words only.
    """
    maybe = np.arange(len(new))
    if len(stored) <= MERGED_TIMES * len(new):
        both = np.concatenate([stored, new])
        both.sort(kind="stable")
        repeated = both[1:][both[1:] == both[:-1]]
        if not len(repeated):
            return maybe[:0], maybe[:0]
        maybe = maybe[_is_at(new, repeated, _lower_bounds(repeated, new))]
    words = new[maybe]
    bounds = _lower_bounds(stored, words)
    is_stored = np.flatnonzero(_is_at(words, stored, bounds))
    return maybe[is_stored], bounds[is_stored]


def _is_at(words: Words, stored: Words, positions: Positions) -> npt.NDArray[np.bool_]:
    """Return whether each word is stored at its position.

    A position past the end stands for the last one.
    """
    is_at: npt.NDArray[np.bool_] = stored[np.minimum(positions, len(stored) - 1)] == words
    return is_at


def _lower_bounds(stored: Words, words: Words) -> Positions:
    """Return the position of each word, or where it would be inserted.

    Sorted words are looked up by pieces, each within the few stored words between its ends.
    """
    if len(words) <= PIECE or (words[1:] < words[:-1]).any():
        return np.searchsorted(stored, words, "left")
    begins = range(0, len(words), PIECE)
    ends = [*np.searchsorted(stored, words[::PIECE], "left").tolist(), len(stored)]
    bounds = np.empty(len(words), np.intp)
    for begin, (first, last) in zip(begins, pairwise(ends), strict=True):
        piece = slice(begin, begin + PIECE)
        bounds[piece] = np.searchsorted(stored[first:last], words[piece], "left") + first
    return bounds


def _past_equals(stored: Words, first: Positions) -> Positions:
    """Return where the words equal to each first one end. Mostly no other is equal."""
    past = first + 1
    has_more = np.flatnonzero(_is_at(stored[first], stored, past))
    past[has_more] = np.searchsorted(stored, stored[first[has_more]], "right")
    return past


def _insertion_points(
    stored: Entries, probes: Entries, low: Positions, high: Positions
) -> Positions:
    """Bisect by the rest of the order within each range of equal first words.

    All probes are bisected at once; `low` and `high` are the ends of their ranges.
    """
    low, high = low.copy(), high.copy()
    while (open_probes := np.flatnonzero(low < high)).size:
        middle = (low[open_probes] + high[open_probes]) // 2
        is_less = np.zeros(len(open_probes), np.bool_)
        is_equal = np.ones(len(open_probes), np.bool_)
        # The first order column is equal throughout each range.
        for column, probe in zip(stored.order_columns[1:], probes.order_columns[1:], strict=True):
            stored_values, probed_values = column[middle], probe[open_probes]
            is_less |= is_equal & (stored_values < probed_values)
            is_equal &= stored_values == probed_values
        low[open_probes[is_less]] = middle[is_less] + 1
        high[open_probes[~is_less]] = middle[~is_less]
    return low


def _of_same_key(
    stored: Entries, probes: Entries, at: Positions, is_inside: npt.NDArray[np.bool_]
) -> Positions:
    """Return the probes inside their range whose entry at `at` is of their key."""
    inside = np.flatnonzero(is_inside)
    same_key: Positions = inside[stored.low[at[inside]] == probes.low[inside]]
    return same_key
