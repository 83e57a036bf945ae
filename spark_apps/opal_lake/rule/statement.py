"""The check of a statement's rows: each has to be the newest row of its key.

A statement ends rows that it read, and adds a row in the place of each, or for a key without a
visible row. It is pure: arrays in, arrays out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opal_lake.arrays import BoolArray, IndexArray, Int32Array, Int64Array
from opal_lake.events.segment_log import RowIds
from opal_lake.key_store.entries import (
    KEY_COLUMNS,
    Entries,
    concat_entries,
    no_entries,
    same_as_next,
    sorted_entries,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFaults:
    """Masks of the rows that a statement cannot apply, each for one reason.

    - `repeated`: the statement has another row of the same key.
    - `existing`: the row is an insert, and its key has a visible row.
    - `moved`: the row's key differs from the key of the row that it ends.
    - `outlasted`: the key has a row of a later delta, or of a greater tie-break at an equal delta.
    """

    repeated: BoolArray
    existing: BoolArray
    moved: BoolArray
    outlasted: BoolArray


def statement_faults(new: Entries, ended: RowIds, stored: Sequence[Entries]) -> StatementFaults:
    """Return the faults of a statement's rows, in their order.

    `ended` has the row that each new row ends, or NO_ROW for an insert. `stored` must hold the
    nearest entries around each new row.
    """
    ties = len(new.ties) // 2
    newest = _newest_of_keys(concat_entries([no_entries(ties), *stored]))
    mixed = concat_entries([newest, new])
    # The stable sort keeps the stored row of a key before the new ones
    order = np.lexsort((mixed.low, mixed.high))
    rows = mixed.take(order)
    is_new = order >= len(newest)
    first = _first_of_key(rows)
    has_stored = ~is_new[first]
    ends = ended.is_row
    ended_in_order = _in_order_of(ended, order, len(newest))
    is_of_stored = (ended_in_order.segment == rows.segment[first]) & (
        ended_in_order.offset == rows.offset[first]
    )
    ends_stored = has_stored & is_of_stored
    is_visible = has_stored & ~rows.deleted[first]
    # From the order of `rows` back to the order of the new rows
    position = np.empty(len(order), np.intp)
    position[order] = np.arange(len(order))
    own = position[len(newest) :]
    repeated = _repeated(rows, is_new)
    return StatementFaults(
        repeated=repeated[own],
        existing=~ends & is_visible[own],
        moved=ends & ~ends_stored[own],
        outlasted=has_stored[own] & ~_is_after(rows, own, first[own]),
    )


def _newest_of_keys(stored: Entries) -> Entries:
    """Return the last entry of each key."""
    rows = sorted_entries(stored)
    return rows.take(~same_as_next(rows, KEY_COLUMNS))


def _first_of_key(rows: Entries) -> IndexArray:
    """Return for each row the position of the first row with its key."""
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (rows.high[1:] != rows.high[:-1]) | (rows.low[1:] != rows.low[:-1])
    own_position = np.where(begins, np.arange(len(rows)), 0)
    return np.maximum.accumulate(own_position)


def _in_order_of(ended: RowIds, order: IndexArray, stored: int) -> RowIds:
    """Return the ended rows in an order of stored and new rows; stored rows end none."""
    segment = np.concatenate([np.full(stored, -1, np.int64), ended.segment])
    offset = np.concatenate([np.full(stored, -1, np.int32), ended.offset])
    return RowIds(segment=segment, offset=offset).take(order)


def _repeated(rows: Entries, is_new: BoolArray) -> BoolArray:
    """Return which new rows have another new row of their key, in the order of `rows`."""
    has_next = same_as_next(rows, KEY_COLUMNS) & is_new
    repeated = has_next.copy()
    repeated[1:] |= has_next[:-1]
    return repeated


def _is_after(rows: Entries, positions: IndexArray, others: IndexArray) -> BoolArray:
    """Return which rows come after other rows of their keys, in the rule's order."""
    is_after = np.zeros(len(positions), np.bool_)
    is_undecided = np.ones(len(positions), np.bool_)
    columns: list[Int64Array | Int32Array] = [rows.delta, *rows.ties, rows.segment, rows.offset]
    for column in columns:
        is_after |= is_undecided & (column[positions] > column[others])
        is_undecided &= column[positions] == column[others]
    return is_after
