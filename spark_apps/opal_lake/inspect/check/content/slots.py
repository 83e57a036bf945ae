"""The rule and the key store on a slot of keys.

The rows of a slot show which events must be in logs (I18), and which entries in runs (I20, I21).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from opal_lake.arrays import BoolArray, Int32Array, Int64Array
from opal_lake.inspect.check.content.fault_counts import UNFOUNDED, UNSTORED, FaultCounts
from opal_lake.inspect.check.spill_buffer import Column
from opal_lake.key_store.entries import (
    KEY_COLUMNS,
    Entries,
    concat_entries,
    down_to,
    greatest_of_equal,
    same_as_next,
    sort_order,
    sorted_entries,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedEnds:
    """Rows by their ids, and the delta `until` which each is valid.

    A row that `stays` is valid to the end of time: its `until` does not count.
    """

    segment: Int64Array
    offset: Int32Array
    until: Int64Array
    stays: BoolArray

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.segment, self.offset, self.until, self.stays

    def take(self, rows: BoolArray) -> "ExpectedEnds":
        return ExpectedEnds(
            segment=self.segment[rows],
            offset=self.offset[rows],
            until=self.until[rows],
            stays=self.stays[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Entries of runs, and for each entry the number of its run."""

    entries: Entries
    run: Int32Array

    def take(self, rows: BoolArray) -> "Stored":
        return Stored(entries=self.entries.take(rows), run=self.run[rows])


def columns_of(entries: Entries) -> tuple[Column, ...]:
    return (*entries.order_columns[:-2], entries.segment, entries.offset, entries.deleted)


def entries_from(columns: Sequence[Column]) -> Entries:
    high, low, delta, *ties, segment, offset, deleted = columns
    return Entries(
        high=high,
        low=low,
        delta=delta,
        ties=tuple(ties),
        segment=segment,
        offset=offset,
        deleted=deleted,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRules:
    """The floor, and the segments that were discarded.

    `only_held` is true if only events of the given rows count: rows may have been dropped up to the
    floor, or may be in no sample. A compaction never drops rows of `discarded` segments: nothing
    may be left of them.
    """

    floor: int | None
    only_held: bool
    discarded: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))


def check_slot(
    rows: Entries, stored: Stored, rules: RangeRules, counts: FaultCounts
) -> tuple[ExpectedEnds, Stored]:
    """Check all rows of some keys, and all entries whose hashes are like theirs.

    Returns what the logs must hold. Also returns the entries up to the floor without a row here:
    their rows may have been dropped, unless a row of that id exists under another key.
    """
    rows = sorted_entries(rows)
    doubtful = _check_entries(rows, stored, rules, counts)
    _check_store(rows, stored.entries, rules.floor, counts)
    return _rule_of(rows), doubtful


def _rule_of(row: Entries) -> ExpectedEnds:
    """Apply the rule to sorted rows, without a key store."""
    follows = same_as_next(row, KEY_COLUMNS)
    next_delta = np.append(row.delta[1:], 0)[: len(row)]
    # A delete ends with its own delta
    until = np.where(row.deleted, row.delta, next_delta)
    stays = ~(follows | row.deleted)
    return ExpectedEnds(segment=row.segment, offset=row.offset, until=until, stays=stays)


def _check_entries(rows: Entries, stored: Stored, rules: RangeRules, counts: FaultCounts) -> Stored:
    """Check that every entry is of a processed row, and equals it (I20).

    Returns the entries up to the floor whose rows may be gone.
    """
    entries = stored.entries
    nothing = np.zeros(len(stored.run), np.bool_)
    exists, agrees = nothing, nothing
    if len(rows) and len(entries):
        by_row = np.lexsort((rows.offset, rows.segment))
        numbers = np.unique(rows.segment)
        codes, entry_codes = _codes(rows, numbers)[by_row], _codes(entries, numbers)
        position = np.minimum(np.searchsorted(codes, entry_codes), len(codes) - 1)
        exists = np.isin(entries.segment, numbers) & (codes[position] == entry_codes)
        agrees = exists & _equal(entries, rows.take(by_row[position]))
    is_doubtful = nothing
    if rules.floor is not None:
        is_doubtful = ~exists & (entries.delta <= rules.floor)
        is_doubtful &= ~np.isin(entries.segment, rules.discarded)
    is_wrong = ~(agrees | is_doubtful)
    counts.add(UNFOUNDED, stored.run[is_wrong], entries.offset[is_wrong])
    return stored.take(is_doubtful)


def _codes(entries: Entries, numbers: Int64Array) -> Int64Array:
    rank = np.searchsorted(numbers, entries.segment).astype(np.int64)
    return rank << 32 | entries.offset.astype(np.int64)


def _equal(left: Entries, right: Entries) -> BoolArray:
    is_same = left.deleted == right.deleted
    for own, other in zip(left.order_columns, right.order_columns, strict=True):
        is_same = is_same & (own == other)
    return np.asarray(is_same, np.bool_)


def _check_store(rows: Entries, entries: Entries, floor: int | None, counts: FaultCounts) -> None:
    """Check that runs have the required rows (I21).

    These are the greatest row of each (key, delta) after the floor, and of the latest one up to it.
    """
    expected = down_to(floor, greatest_of_equal(rows))
    stored = greatest_of_equal(sorted_entries(entries))
    both = concat_entries([expected, stored])
    order = sort_order(both)
    # An expected entry is stored if it equals its neighbour: each side has it once
    is_pair = same_as_next(both.take(order), len(both.order_columns))
    present = np.zeros(len(both), np.bool_)
    present[order[is_pair]] = True
    present[order[1:][is_pair[:-1]]] = True
    missing = ~present[: len(expected)]
    counts.add(UNSTORED, expected.segment[missing], expected.offset[missing])
