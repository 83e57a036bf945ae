"""The rule and the key store on a slot of keys: what the logs have to add up to (I18), and what the runs have to hold (I20, I21)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opal_lake.inspect.check.content.tally import UNFOUNDED, UNSTORED, Tally
from opal_lake.inspect.check.shelf import Column
from opal_lake.key_store.entries import (
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
    """Rows by their ids, and from when on each is not the valid one of its key, unless it `stays` so."""

    segment: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int32]
    until: npt.NDArray[np.int64]
    stays: npt.NDArray[np.bool_]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.segment, self.offset, self.until, self.stays

    def take(self, rows: npt.NDArray[np.bool_]) -> "ExpectedEnds":
        return ExpectedEnds(
            segment=self.segment[rows],
            offset=self.offset[rows],
            until=self.until[rows],
            stays=self.stays[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Entries of runs, and the number of the run that each is of."""

    entries: Entries
    run: npt.NDArray[np.int32]

    def take(self, rows: npt.NDArray[np.bool_]) -> "Stored":
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
    """The floor, and whether only events of the rows at hand count: others may have been dropped up to the floor, or be in no sample.

    Rows of `discarded` segments were never dropped by a compaction: nothing may be left of them.
    """

    floor: int | None
    only_held: bool
    discarded: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


def check_slot(
    rows: Entries, stored: Stored, rules: RangeRules, tally: Tally
) -> tuple[ExpectedEnds, Stored]:
    """All rows of some keys, and all entries with hashes like theirs.

    Also the entries up to the floor without a row here: their rows may have been dropped, unless there is one by that id under another key.
    """
    rows = sorted_entries(rows)
    doubtful = _check_entries(rows, stored, rules, tally)
    _check_store(rows, stored.entries, rules.floor, tally)
    return _rule_of(rows), doubtful


def _rule_of(row: Entries) -> ExpectedEnds:
    """THE rule on sorted rows, with no key store."""
    follows = same_as_next(row, 2)
    until = np.where(row.deleted, row.delta, np.append(row.delta[1:], 0)[: len(row)])
    return ExpectedEnds(
        segment=row.segment, offset=row.offset, until=until, stays=~(follows | row.deleted)
    )


def _check_entries(rows: Entries, stored: Stored, rules: RangeRules, tally: Tally) -> Stored:
    """Every entry is a processed row, with all that the row holds; of one up to the floor the row may be gone."""
    entries, nothing = stored.entries, np.zeros(len(stored.run), np.bool_)
    there, agrees = nothing, nothing
    if len(rows) and len(entries):
        by_row = np.lexsort((rows.offset, rows.segment))
        numbers = np.unique(rows.segment)
        codes, entry_codes = _codes(rows, numbers)[by_row], _codes(entries, numbers)
        position = np.minimum(np.searchsorted(codes, entry_codes), len(codes) - 1)
        there = np.isin(entries.segment, numbers) & (codes[position] == entry_codes)
        agrees = there & _equal(entries, rows.take(by_row[position]))
    doubtful = nothing
    if rules.floor is not None:
        doubtful = ~there & (entries.delta <= rules.floor)
        doubtful &= ~np.isin(entries.segment, rules.discarded)
    wrong = ~(agrees | doubtful)
    tally.add(UNFOUNDED, stored.run[wrong], entries.offset[wrong])
    return stored.take(doubtful)


def _codes(entries: Entries, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.searchsorted(numbers, entries.segment).astype(np.int64) << 32 | entries.offset.astype(
        np.int64
    )


def _equal(left: Entries, right: Entries) -> npt.NDArray[np.bool_]:
    same = left.deleted == right.deleted
    for here, there in zip(left.order_columns, right.order_columns, strict=True):
        same = same & (here == there)
    return np.asarray(same, np.bool_)


def _check_store(rows: Entries, entries: Entries, floor: int | None, tally: Tally) -> None:
    """Of each (key, delta) after the floor, and of the latest up to it, the greatest row is in a run."""
    expected = down_to(floor, greatest_of_equal(rows))
    stored = greatest_of_equal(sorted_entries(entries))
    both = concat_entries([expected, stored])
    order = sort_order(both)
    pair = same_as_next(both.take(order), len(both.order_columns))
    present = np.zeros(len(both), np.bool_)
    present[order[pair]] = True
    present[order[1:][pair[:-1]]] = True
    missing = ~present[: len(expected)]
    tally.add(UNSTORED, expected.segment[missing], expected.offset[missing])
