"""Events against the rule, on a range of row ids (I18), and entries whose rows seemed to be gone (I20)."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opal_lake.events.segment_log import Events, least_events
from opal_lake.inspect.check.content.slots import ExpectedEnds, RangeRules
from opal_lake.inspect.check.content.tally import EARLY, EXTRA, LATE, MISSING, UNFOUNDED, Tally
from opal_lake.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """The segments of a state, in the order of their ids."""

    ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    pending: npt.NDArray[np.bool_]
    discarded: npt.NDArray[np.int64]  # which the state has no longer

    @classmethod
    def of(cls, state: Snapshot, discarded: Collection[int]) -> "SegmentFacts":
        known = sorted(state.segments.values(), key=lambda segment: segment.id)
        return cls(
            ids=np.array([segment.id for segment in known], np.int64),
            rows=np.array([segment.rows for segment in known], np.int64),
            groups=np.array([segment.group for segment in known], np.int64),
            pending=np.array([segment.id in state.pending for segment in known], np.bool_),
            discarded=np.array(sorted(discarded), np.int64),
        )

    def range_of(
        self, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32], ranges: int
    ) -> npt.NDArray[np.int32]:
        """Which of about equal ranges of row ids; any of them for rows that there should not be."""
        if not len(self.ids):
            return np.zeros(len(segment), np.int32)
        begins = np.cumsum(self.rows) - self.rows
        mine = np.maximum(np.searchsorted(self.ids, segment, "right") - 1, 0)
        rank = begins[mine] + np.clip(offset, 0, np.maximum(self.rows[mine] - 1, 0))
        return (rank * ranges // max(1, int(self.rows.sum()))).astype(np.int32).clip(0, ranges - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """Row ids for which a run has an entry and the rows of its key have none."""

    segment: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int32]
    run: npt.NDArray[np.int32]


def check_range(
    rows: ExpectedEnds, events: Events, doubts: Doubts, rules: RangeRules, tally: Tally
) -> None:
    """The least event of each row is the rule's; later ones may be there as well.

    Up to the floor rows may have been dropped: events of theirs may be left, the successor of a row may be gone, and a late row may
    have had a later successor than the rows show. So where the rule's UNTIL is not after the floor, all that counts is that the event
    is not after it either. The greatest row of a key up to the floor stays, so no other UNTIL depends on what was dropped.
    """
    ends = ~rows.stays
    expected = least_events(
        Events(segment=rows.segment[ends], offset=rows.offset[ends], until=rows.until[ends])
    )
    actual = least_events(events)
    numbers = np.unique(np.concatenate([rows.segment, actual.segment, doubts.segment]))
    held = _codes(rows.segment, rows.offset, numbers)
    if rules.only_held:
        actual = actual.take(np.isin(_codes(actual.segment, actual.offset, numbers), held))
    expected_codes, actual_codes = (
        _codes(part.segment, part.offset, numbers) for part in (expected, actual)
    )
    _, here, there = np.intersect1d(
        expected_codes, actual_codes, assume_unique=True, return_indices=True
    )
    is_old = (
        np.zeros(len(here), np.bool_)
        if rules.floor is None
        else np.maximum(actual.until[there], expected.until[here]) <= rules.floor
    )
    early, late = (
        actual.until[there] < expected.until[here],
        actual.until[there] > expected.until[here],
    )
    for what, bad in (
        (MISSING, expected.take(np.setdiff1d(np.arange(len(expected)), here))),
        (LATE, expected.take(here[late & ~is_old])),
        (EARLY, actual.take(there[early & ~is_old])),
        (EXTRA, actual.take(np.setdiff1d(np.arange(len(actual)), there))),
    ):
        tally.add(what, bad.segment, bad.offset)
    wrong = np.isin(_codes(doubts.segment, doubts.offset, numbers), held)
    tally.add(UNFOUNDED, doubts.run[wrong], doubts.offset[wrong])


def _codes(
    segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32], numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """One number a row: the rank of its segment, and its offset."""
    return np.searchsorted(numbers, segment).astype(np.int64) << 32 | offset.astype(np.int64)
