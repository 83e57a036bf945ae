"""Rows as the key store knows them: arrays side by side, sorted by (key hash, delta, tie-break, row id)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.intp]
Rows = Places | npt.NDArray[np.bool_] | slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """`ties` holds two arrays a tie-break column: whether there is a value (nulls come first), and the value or 0."""

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    delta: npt.NDArray[np.int64]
    ties: tuple[npt.NDArray[np.int64], ...]
    segment: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int32]
    deleted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.high)

    def take(self, rows: Rows) -> "Entries":
        single = {
            part.name: getattr(self, part.name)[rows]
            for part in fields(self)
            if part.name != "ties"
        }
        return Entries(**single, ties=tuple(tie[rows] for tie in self.ties))

    @property
    def order_columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        """What rows are ordered by, most significant first."""
        return (self.high, self.low, self.delta, *self.ties, self.segment, self.offset)


def no_entries(tie_columns: int) -> Entries:
    """Nothing, with the right shape."""
    return Entries(
        high=np.empty(0, np.uint64),
        low=np.empty(0, np.uint64),
        delta=np.empty(0, np.int64),
        ties=tuple(np.empty(0, np.int64) for _ in range(2 * tie_columns)),
        segment=np.empty(0, np.int64),
        offset=np.empty(0, np.int32),
        deleted=np.empty(0, np.bool_),
    )


def concat_entries(parts: Iterable[Entries]) -> Entries:
    """All of them, as they come; at least one part."""
    members = list(parts)
    full = [part for part in members if len(part)] or members[:1]
    if len(full) == 1:
        return full[0]
    single = {
        part.name: np.concatenate([getattr(m, part.name) for m in full])
        for part in fields(Entries)
        if part.name != "ties"
    }
    ties = tuple(np.concatenate(columns) for columns in zip(*(m.ties for m in full), strict=True))
    return Entries(**single, ties=ties)


def sort_order(entries: Entries) -> Places:
    """Positions in order; of rows that agree in every order column the first stays first."""
    order = np.argsort(entries.high, kind="stable")
    high = entries.high[order]
    repeats = np.zeros(len(order) + 1, np.bool_)  # the first word of the one before
    repeats[1:-1] = high[1:] == high[:-1]
    shared = np.flatnonzero(repeats[1:] | repeats[:-1])
    if len(shared):
        order[shared] = _settled(entries, order[shared], np.cumsum(~repeats[shared]))
    return order


def _settled(entries: Entries, rows: Places, group: Places) -> Places:
    """Rows of equal first words in order.

    Mostly these are versions of a key that differ in delta, and often they stand in its order already. Sorting by one word takes a tenth
    of the time of sorting by all columns, which is done only for the groups in which the delta does not decide.
    """
    again = _unclear(entries, rows, group)
    left, group = rows[again], group[again]
    if len(left):
        rank = np.empty(len(left), np.intp)
        rank[np.argsort(entries.delta[left])] = np.arange(len(left))
        left = left[np.argsort(group << 32 | rank)]
        still = _unclear(entries, left, group)
        last = left[still]
        left[still] = last[
            np.lexsort([last, *(column[last] for column in reversed(entries.order_columns))])
        ]
        rows[again] = left
    return rows


def _unclear(entries: Entries, rows: Places, group: Places) -> npt.NDArray[np.bool_]:
    """The rows of groups that are not versions of one key, each later than the one before it."""
    delta, low = entries.delta[rows], entries.low[rows]
    wrong = (np.diff(group) == 0) & ((delta[1:] <= delta[:-1]) | (low[1:] != low[:-1]))
    is_unclear = np.zeros(group[-1] + 1, np.bool_)
    is_unclear[group[1:][wrong]] = True
    return is_unclear[group]


def sorted_entries(entries: Entries) -> Entries:
    return entries.take(sort_order(entries))


def same_as_next(entries: Entries, columns: int) -> npt.NDArray[np.bool_]:
    """Of sorted entries: whether the next one agrees in the first so many order columns. The last has no next."""
    same = np.ones(max(len(entries) - 1, 0), np.bool_)
    for column in entries.order_columns[:columns]:
        same &= column[1:] == column[:-1]
    return np.append(same, False) if len(entries) else same


def greatest_of_equal(entries: Entries) -> Entries:
    """Of sorted entries with equal (key, delta), only the greatest: no other can be a neighbour that matters."""
    repeats = same_as_next(entries, 3)
    return entries.take(~repeats) if repeats.any() else entries


def merged_entries(runs: Iterable[Sequence[Entries]]) -> Entries:
    """Of runs, each in parts, what `greatest_of_equal` leaves. Earlier runs go first: so versions of a key mostly stand in order."""
    ordered = sorted(
        runs,
        key=lambda parts: max((int(part.delta.max()) for part in parts if len(part)), default=0),
    )
    return greatest_of_equal(
        sorted_entries(concat_entries(part for parts in ordered for part in parts))
    )


def down_to(floor: int | None, entries: Entries) -> Entries:
    """Of sorted entries with different (key, delta) all after the floor, and of each key the latest up to it."""
    if floor is None:
        return entries
    up_to = entries.delta <= floor
    followed = same_as_next(entries, 2) & np.append(up_to[1:], False)[: len(entries)]
    return entries.take(~(up_to & followed))
