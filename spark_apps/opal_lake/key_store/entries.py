"""Rows as the key store knows them: parallel arrays, one for each column.

Sorted entries are in the order of key hash, delta, tie-break and row id.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.intp]
RowSelection = Positions | npt.NDArray[np.bool_] | slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Entries of the key store, as arrays of equal length.

    `high` and `low` are the two words of the key hash. `ties` holds two arrays for each tie-break
    column: whether there is a value (nulls come first), and the value or 0.
    """

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    delta: npt.NDArray[np.int64]
    ties: tuple[npt.NDArray[np.int64], ...]
    segment: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int32]
    deleted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.high)

    def take(self, rows: RowSelection) -> "Entries":
        columns = {name: getattr(self, name)[rows] for name in _SINGLE_COLUMNS}
        ties = tuple(tie[rows] for tie in self.ties)
        return Entries(**columns, ties=ties)

    @property
    def order_columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        """The columns that rows are ordered by, most significant first."""
        return (self.high, self.low, self.delta, *self.ties, self.segment, self.offset)


_SINGLE_COLUMNS = tuple(field.name for field in fields(Entries) if field.name != "ties")
KEY_COLUMNS = 2  # of the order columns, the first ones, which are the key hash
VERSION_COLUMNS = 3  # key hash and delta


def no_entries(tie_columns: int) -> Entries:
    """Return zero entries with the given number of tie-break columns."""
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
    """Concatenate parts in their order. There must be at least one part."""
    members = list(parts)
    full = [part for part in members if len(part)]
    if not full:
        # An empty part has the right number of tie-break columns.
        return members[0]
    if len(full) == 1:
        return full[0]
    columns = {}
    for name in _SINGLE_COLUMNS:
        columns[name] = np.concatenate([getattr(part, name) for part in full])
    ties_by_part = [part.ties for part in full]
    ties = tuple(np.concatenate(pieces) for pieces in zip(*ties_by_part, strict=True))
    return Entries(**columns, ties=ties)


def sort_order(entries: Entries) -> Positions:
    """Return the positions of entries in order.

    The sort is stable: of rows that agree in every order column the first stays first.
    """
    order = np.argsort(entries.high, kind="stable")
    high = entries.high[order]
    # An element more than rows: repeats[i] says whether row i has the first word of row i - 1.
    repeats = np.zeros(len(order) + 1, np.bool_)
    repeats[1:-1] = high[1:] == high[:-1]
    shared = np.flatnonzero(repeats[1:] | repeats[:-1])
    if len(shared):
        group = np.cumsum(~repeats[shared], dtype=np.intp)
        order[shared] = _sort_within_groups(entries, order[shared], group)
    return order


def _sort_within_groups(entries: Entries, rows: Positions, group: Positions) -> Positions:
    """Sort rows within groups of rows with the same first word of the hash.

    `rows` are positions of entries, and `group` numbers the group of each. Usually a group has
    versions of one key that differ in delta, often in the right order already. Sorting by the delta
    alone takes a tenth of the time of sorting by all columns, which only the groups need in which
    the delta does not decide the order.
    """
    is_unsorted = _in_unsorted_group(entries, rows, group)
    group = group[is_unsorted]
    unsorted = rows[is_unsorted]
    if not len(unsorted):
        return rows
    rank = np.empty(len(unsorted), np.intp)
    rank[np.argsort(entries.delta[unsorted])] = np.arange(len(unsorted))
    by_delta = unsorted[np.argsort(group << 32 | rank)]
    is_undecided = _in_unsorted_group(entries, by_delta, group)
    undecided = by_delta[is_undecided]
    # lexsort takes the least significant column first. The position makes the sort stable.
    columns = [undecided, *(column[undecided] for column in reversed(entries.order_columns))]
    by_delta[is_undecided] = undecided[np.lexsort(columns)]
    rows[is_unsorted] = by_delta
    return rows


def _in_unsorted_group(
    entries: Entries, rows: Positions, group: Positions
) -> npt.NDArray[np.bool_]:
    """Return which rows are in an unsorted group.

    A group is sorted if its rows are of one key, with strictly rising deltas.
    """
    delta, low = entries.delta[rows], entries.low[rows]
    in_same_group = np.diff(group) == 0
    is_out_of_order = (delta[1:] <= delta[:-1]) | (low[1:] != low[:-1])
    is_unsorted_group = np.zeros(group[-1] + 1, np.bool_)
    is_unsorted_group[group[1:][in_same_group & is_out_of_order]] = True
    return is_unsorted_group[group]


def sorted_entries(entries: Entries) -> Entries:
    return entries.take(sort_order(entries))


def has_key_of(rows: Entries, others: Entries) -> npt.NDArray[np.bool_]:
    """Return which rows have the key of one of the others."""
    high = np.concatenate([rows.high, others.high])
    low = np.concatenate([rows.low, others.low])
    order = np.lexsort((low, high))
    is_next_key = np.zeros(len(order), np.intp)
    is_next_key[1:] = np.diff(high[order]).astype(np.bool_) | np.diff(low[order]).astype(np.bool_)
    key_numbers = np.empty(len(order), np.intp)
    key_numbers[order] = np.cumsum(is_next_key)
    is_of_others = np.zeros(len(order), np.bool_)
    is_of_others[key_numbers[len(rows) :]] = True
    return is_of_others[key_numbers[: len(rows)]]


def same_as_next(entries: Entries, columns: int) -> npt.NDArray[np.bool_]:
    """Return for each sorted entry whether the next one has equal columns.

    Only the first `columns` of the order columns are compared. False for the last entry.
    """
    same = np.ones(max(len(entries) - 1, 0), np.bool_)
    for column in entries.order_columns[:columns]:
        same &= column[1:] == column[:-1]
    if not len(entries):
        return same
    return np.append(same, False)


def greatest_of_equal(entries: Entries) -> Entries:
    """Return sorted entries without those that equal the next one in key and delta.

    I21: only the greatest row of each key and delta needs an entry.
    """
    repeats = same_as_next(entries, VERSION_COLUMNS)
    if not repeats.any():
        return entries
    return entries.take(~repeats)


def merged_entries(runs: Iterable[Sequence[Entries]]) -> Entries:
    """Merge runs, each given in parts; keep the greatest entry of each key and delta."""
    parts: list[Entries] = []
    # Runs of early deltas first: then versions of a key are mostly in order before the sort.
    for run in sorted(runs, key=_greatest_delta):
        parts += run
    return greatest_of_equal(sorted_entries(concat_entries(parts)))


def _greatest_delta(parts: Sequence[Entries]) -> int:
    """Return the greatest delta of a run, or 0 without entries."""
    greatest_by_part = [int(part.delta.max()) for part in parts if len(part)]
    return max(greatest_by_part, default=0)


def down_to(floor: int | None, entries: Entries) -> Entries:
    """Return the entries after a delta floor, and each key's latest entry up to it.

    `entries` must be sorted, without two of the same key and delta.
    """
    if floor is None:
        return entries
    is_up_to_floor = entries.delta <= floor
    next_is_up_to_floor = np.append(is_up_to_floor[1:], False)[: len(entries)]
    # I21: below the floor the greatest entry of each key stays.
    is_superseded = same_as_next(entries, KEY_COLUMNS) & next_is_up_to_floor
    return entries.take(~(is_up_to_floor & is_superseded))
