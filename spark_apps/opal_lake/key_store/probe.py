"""Finding the neighbours of new entries among stored ones. Pure: sorted arrays in, which may be mapped files, arrays out."""

import numpy as np
import numpy.typing as npt

from opal_lake.key_store.entries import Entries, no_entries

Places = npt.NDArray[np.intp]


def neighbours(stored: Entries, new: Entries) -> Entries:
    """The predecessor and the successor of each new entry among the stored ones of the same key. `stored` is sorted; `new` best is too."""
    if not len(stored) or not len(new):
        return no_entries(len(stored.ties) // 2)
    low = np.searchsorted(stored.high, new.high, "left")
    near = np.flatnonzero(stored.high[np.minimum(low, len(stored) - 1)] == new.high)
    if not len(near):
        return no_entries(len(stored.ties) // 2)
    low, probes = low[near], new.take(near)
    high = np.searchsorted(stored.high, probes.high, "right")
    at = _insertion_points(stored, probes, low, high)
    before = _of_same_key(stored, probes, at - 1, at - 1 >= low)
    after = _of_same_key(stored, probes, at, at < high)
    both = np.sort(np.concatenate([before, after]), kind="stable")
    return stored.take(both[np.diff(both, prepend=-1) != 0])


def _insertion_points(stored: Entries, probes: Entries, low: Places, high: Places) -> Places:
    """Bisect by the rest of the order within each range of equal first words, all probes at once."""
    low, high = low.copy(), high.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) // 2
        less = np.zeros(len(open_), np.bool_)
        equal = np.ones(len(open_), np.bool_)
        for column, probe in zip(stored.order_columns[1:], probes.order_columns[1:], strict=True):
            there, wanted = column[middle], probe[open_]
            less |= equal & (there < wanted)
            equal &= there == wanted
        low[open_[less]] = middle[less] + 1
        high[open_[~less]] = middle[~less]
    return low


def _of_same_key(stored: Entries, probes: Entries, at: Places, inside: npt.NDArray[np.bool_]) -> Places:
    chosen = np.flatnonzero(inside)
    same = stored.low[at[chosen]] == probes.low[chosen]
    found: Places = at[chosen[same]]
    return found
