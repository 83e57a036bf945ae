"""Finding the neighbours of new entries among stored ones. Pure: sorted arrays in, which may be mapped files, arrays out."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from opal_lake.key_store.entries import Entries, no_entries

Places = npt.NDArray[np.intp]
Words = npt.NDArray[np.uint64]
PIECE = 4096  # words
MERGED_TIMES = 4  # as many stored words as new ones: of more it is quicker to look them up


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Stored entries next to new ones; `followers` are the places of the new ones that have one of their key before them."""

    entries: Entries
    followers: Places
    predecessor_deltas: npt.NDArray[np.int64]


def neighbours(stored: Entries, new: Entries) -> Neighbours:
    """The predecessor and the successor of each new entry among the stored ones of the same key. `stored` is sorted; `new` best is too."""
    none = Neighbours(
        entries=no_entries(len(stored.ties) // 2),
        followers=np.empty(0, np.intp),
        predecessor_deltas=np.empty(0, np.int64),
    )
    if not len(stored) or not len(new):
        return none
    near, low = _shared(stored.high, new.high)
    if not len(near):
        return none
    probes = new.take(near)
    high = _past_equals(stored.high, low)
    at = _insertion_points(stored, probes, low, high)
    has_before = _of_same_key(stored, probes, at - 1, at - 1 >= low)
    before, after = at[has_before] - 1, at[_of_same_key(stored, probes, at, at < high)]
    both = np.sort(np.concatenate([before, after]), kind="stable")
    entries = stored.take(both[np.diff(both, prepend=-1) != 0])
    return Neighbours(
        entries=entries, followers=near[has_before], predecessor_deltas=stored.delta[before]
    )


def _shared(stored: Words, new: Words) -> tuple[Places, Places]:
    """The new words that are stored too, and where the first of each is.

    A stable sort merges what is sorted already, which is faster than to look each of many words up. Those that it leaves may have met
    their like among the new ones only.
    """
    maybe = np.arange(len(new))
    if len(stored) <= MERGED_TIMES * len(new):
        both = np.concatenate([stored, new])
        both.sort(kind="stable")
        twice = both[1:][both[1:] == both[:-1]]
        maybe = maybe[_met(new, twice, _places(twice, new))] if len(twice) else maybe[:0]
    words = new[maybe]
    places = _places(stored, words)
    there = np.flatnonzero(_met(words, stored, places))
    return maybe[there], places[there]


def _met(words: Words, stored: Words, places: Places) -> npt.NDArray[np.bool_]:
    met: npt.NDArray[np.bool_] = stored[np.minimum(places, len(stored) - 1)] == words
    return met


def _places(stored: Words, words: Words) -> Places:
    """Where each word is, or would be. Sorted words are looked up by pieces, each within the few stored words between its ends."""
    if len(words) <= PIECE or (words[1:] < words[:-1]).any():
        return np.searchsorted(stored, words, "left")
    ends = [*np.searchsorted(stored, words[::PIECE], "left").tolist(), len(stored)]
    places = np.empty(len(words), np.intp)
    for begin, (first, last) in zip(range(0, len(words), PIECE), pairwise(ends), strict=True):
        piece = slice(begin, begin + PIECE)
        places[piece] = np.searchsorted(stored[first:last], words[piece], "left") + first
    return places


def _past_equals(stored: Words, first: Places) -> Places:
    """Of each word, where the words equal to it end. Mostly no other is equal."""
    past = first + 1
    more = np.flatnonzero(_met(stored[first], stored, past))
    past[more] = np.searchsorted(stored, stored[first[more]], "right")
    return past


def _insertion_points(stored: Entries, probes: Entries, low: Places, high: Places) -> Places:
    """Bisect by the rest of the order within each range of equal first words, all probes at once."""
    low, high = low.copy(), high.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) // 2
        less = np.zeros(len(open_), np.bool_)
        equal = np.ones(len(open_), np.bool_)
        for column, probe in zip(stored.order_columns[1:], probes.order_columns[1:], strict=True):
            there, probed = column[middle], probe[open_]
            less |= equal & (there < probed)
            equal &= there == probed
        low[open_[less]] = middle[less] + 1
        high[open_[~less]] = middle[~less]
    return low


def _of_same_key(
    stored: Entries, probes: Entries, at: Places, inside: npt.NDArray[np.bool_]
) -> Places:
    """Which probes have an entry of their key there."""
    chosen = np.flatnonzero(inside)
    same: Places = chosen[stored.low[at[chosen]] == probes.low[chosen]]
    return same
