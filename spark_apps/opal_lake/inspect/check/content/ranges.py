"""Events against the rule, on a range of row ids (I18), and entries of missing rows (I20)."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from opal_lake.arrays import BoolArray, Int32Array, Int64Array
from opal_lake.events.segment_log import Events, least_events
from opal_lake.inspect.check.content.fault_counts import (
    EARLY,
    EXTRA,
    LATE,
    MISSING,
    UNFOUNDED,
    FaultCounts,
)
from opal_lake.inspect.check.content.slots import ExpectedEnds, RangeRules
from opal_lake.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """The segments of a state, in the order of their ids."""

    ids: Int64Array
    rows: Int64Array
    groups: Int64Array
    pending: BoolArray
    discarded: Int64Array  # segments that the state no longer has

    @classmethod
    def of(cls, state: Snapshot, discarded: Collection[int]) -> "SegmentFacts":
        """Return the facts of a state."""
        known = sorted(state.segments.values(), key=lambda segment: segment.id)
        return cls(
            ids=np.array([segment.id for segment in known], np.int64),
            rows=np.array([segment.rows for segment in known], np.int64),
            groups=np.array([segment.group for segment in known], np.int64),
            pending=np.array([segment.id in state.pending for segment in known], np.bool_),
            discarded=np.array(sorted(discarded), np.int64),
        )

    def range_of(self, segment: Int64Array, offset: Int32Array, ranges: int) -> Int32Array:
        """Return for each row the number of its range of row ids.

        There are `ranges` ranges with about as many rows each.
        A row that should not exist may be in any range.
        """
        if not len(self.ids):
            return np.zeros(len(segment), np.int32)
        begins = np.cumsum(self.rows) - self.rows  # rows before each segment
        position = np.maximum(np.searchsorted(self.ids, segment, "right") - 1, 0)
        last_offset = np.maximum(self.rows[position] - 1, 0)
        rank = begins[position] + np.clip(offset, 0, last_offset)
        all_rows = max(1, int(self.rows.sum()))
        return (rank * ranges // all_rows).astype(np.int32).clip(0, ranges - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """Row ids of entries in runs that no row of the entry's key has."""

    segment: Int64Array
    offset: Int32Array
    run: Int32Array


def check_range(
    rows: ExpectedEnds, events: Events, doubts: Doubts, rules: RangeRules, counts: FaultCounts
) -> None:
    """Check that the least event of each row has the UNTIL of the rule.

    Later events of a row are allowed. Up to the floor, rows may have been dropped, and a dropped
    row may have been another row's successor. So if the rule's UNTIL is not after the floor, the
    least event may have any time that is not after the floor either. The greatest row of a key up
    to the floor stays, so that no later UNTIL depends on dropped rows.
    """
    ends = ~rows.stays
    expected = least_events(
        Events(segment=rows.segment[ends], offset=rows.offset[ends], until=rows.until[ends])
    )
    actual = least_events(events)
    numbers = np.unique(np.concatenate([rows.segment, actual.segment, doubts.segment]))
    row_codes = _codes(rows.segment, rows.offset, numbers)
    if rules.only_held:
        is_of_row = np.isin(_codes(actual.segment, actual.offset, numbers), row_codes)
        actual = actual.take(is_of_row)
    # Positions of rows that have both an expected and an actual event
    _, in_expected, in_actual = np.intersect1d(
        _codes(expected.segment, expected.offset, numbers),
        _codes(actual.segment, actual.offset, numbers),
        assume_unique=True,
        return_indices=True,
    )
    actual_until = actual.until[in_actual]
    expected_until = expected.until[in_expected]
    is_old = np.zeros(len(in_expected), np.bool_)
    if rules.floor is not None:
        is_old = np.maximum(actual_until, expected_until) <= rules.floor
    is_early = (actual_until < expected_until) & ~is_old
    is_late = (actual_until > expected_until) & ~is_old
    missing = np.setdiff1d(np.arange(len(expected)), in_expected)
    extra = np.setdiff1d(np.arange(len(actual)), in_actual)
    faults = (
        (MISSING, expected.take(missing)),
        (LATE, expected.take(in_expected[is_late])),
        (EARLY, actual.take(in_actual[is_early])),
        (EXTRA, actual.take(extra)),
    )
    for fault, wrong in faults:
        counts.add(fault, wrong.segment, wrong.offset)
    # The row of the entry exists, but has another key
    is_unfounded = np.isin(_codes(doubts.segment, doubts.offset, numbers), row_codes)
    counts.add(UNFOUNDED, doubts.run[is_unfounded], doubts.offset[is_unfounded])


def _codes(segment: Int64Array, offset: Int32Array, numbers: Int64Array) -> Int64Array:
    """Return for each row the rank of its segment in the high 32 bits, and its offset."""
    return np.searchsorted(numbers, segment).astype(np.int64) << 32 | offset.astype(np.int64)
