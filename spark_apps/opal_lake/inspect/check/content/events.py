"""Segment logs, one by one (I16, I17)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from opal_lake.arrays import BoolArray, IndexArray, Int64Array
from opal_lake.data.segment import LogFile
from opal_lake.events.segment_log import Events, RowIds, concat_events
from opal_lake.ids import segment_name
from opal_lake.inspect.check.content.ranges import SegmentFacts
from opal_lake.inspect.check.finding import Findings

_RESTORE = "restore the file from a backup"
_RESTORE_LOG = "restore the log from a backup"


@dataclass(slots=True, kw_only=True)
class LogCheck:
    """The check of a log, part by part; `finish` reports its faults."""

    log: LogFile
    facts: SegmentFacts
    has_floor: bool
    events: int = 0
    _is_sorted: bool = True
    _extremes: list[int] = field(default_factory=list)
    _last: list[Events] = field(default_factory=list)
    _segments: set[int] = field(default_factory=set)
    _beyond: int = 0
    _followed_beyond: int = 0
    _next_segments: set[int] = field(default_factory=set)

    def pass_on(self, parts: Iterator[Events]) -> Iterator[Events]:
        """Check each part, and yield it."""
        for part in parts:
            self.add(part)
            yield part

    def add(self, part: Events) -> None:
        """Check a part. Its first event must come after the last one of the part before."""
        if not len(part):
            return
        self.events += len(part)
        joined = concat_events([*self._last, part])
        segment_step = np.diff(joined.segment)
        offset_step = np.diff(joined.offset.astype(np.int64))
        rises = (segment_step > 0) | ((segment_step == 0) & (offset_step > 0))
        self._is_sorted &= bool(rises.all())
        self._last = [part.take(np.array([len(part) - 1]))]
        self._extremes += [int(part.until.min()), int(part.until.max())]
        self._segments.update(np.unique(part.segment).tolist())
        self._beyond += int(self._is_beyond(part).sum())
        if part.next_rows is not None:
            following = part.next_rows.take(part.next_rows.is_row)
            self._followed_beyond += int(self._is_beyond(following).sum())
            self._next_segments.update(np.unique(following.segment).tolist())

    def _is_beyond(self, rows: Events | RowIds) -> BoolArray:
        """Return which rows are beyond the end of their segments."""
        return np.asarray((rows.offset < 0) | (rows.offset >= self._limits(rows)), np.bool_)

    def _limits(self, rows: Events | RowIds) -> Int64Array:
        """Return the number of rows in each row's segment, no limit for unknown segments."""
        limits = np.full(len(rows.segment), np.iinfo(np.int64).max)
        ids = self.facts.ids
        if len(ids):
            position = np.minimum(np.searchsorted(ids, rows.segment), len(ids) - 1)
            is_known = ids[position] == rows.segment
            limits[is_known] = self.facts.rows[position[is_known]]
        return limits

    def finish(self, findings: Findings) -> None:
        """Report all faults of the log."""
        self._check_content(findings)
        self._check_rows_exist(findings)

    def _check_content(self, findings: Findings) -> None:
        log = self.log
        message = f"it holds {self.events} events, its commit says {log.events}; {_RESTORE}"
        is_whole = self.events == log.events and log.events > 0
        if not findings.expect(is_whole, "I16", log.path, message):
            return
        message = f"its events are not sorted by row, or a row has two; {_RESTORE}"
        findings.expect(self._is_sorted, "I16", log.path, message)
        least, greatest = min(self._extremes), max(self._extremes)
        is_in_range = (least, greatest) == (log.least_until, log.greatest_until)
        message = (
            f"its times lie in [{least}, {greatest}], its commit says [{log.least_until}, "
            f"{log.greatest_until}]; {_RESTORE_LOG}"
        )
        findings.expect(is_in_range, "I16", log.path, message)

    def _positions_of(self, segments: Int64Array) -> tuple[IndexArray, BoolArray]:
        """Return the positions of known segments in the table, and which ones are unknown."""
        is_known = _is_in(self.facts.ids, segments)
        return np.searchsorted(self.facts.ids, segments[is_known]), ~is_known

    def _check_rows_exist(self, findings: Findings) -> None:
        """Check that rows of events exist and are processed, and their groups."""
        log = self.log
        segments = np.array(sorted(self._segments), np.int64)
        known, is_stranger = self._positions_of(segments)
        strangers = _names(segments[is_stranger])
        # With a floor, the rows may have been dropped
        if not self.has_floor:
            message = f"it has events of segments {strangers}, which the table does not have"
            findings.expect(not strangers, "I17", log.path, message)
            next_segments = np.array(sorted(self._next_segments), np.int64)
            _, is_missing = self._positions_of(next_segments)
            missing = _names(next_segments[is_missing])
            message = (
                f"its events are followed by rows of segments {missing}, which the table does not "
                "have"
            )
            findings.expect(not missing, "I17", log.path, message)
        discarded = _names(segments[_is_in(self.facts.discarded, segments)])
        message = f"it has events of segments {discarded}, which were discarded; {_RESTORE_LOG}"
        findings.expect(not discarded, "I30", log.path, message)
        message = (
            f"{self._beyond} of its events are of rows beyond the end of their segments; {_RESTORE}"
        )
        findings.expect(not self._beyond, "I17", log.path, message)
        message = (
            f"{self._followed_beyond} of its events are followed by rows beyond the end of their "
            f"segments; {_RESTORE}"
        )
        findings.expect(not self._followed_beyond, "I17", log.path, message)
        is_pending = self.facts.pending[known]
        pending = sorted(_names(self.facts.ids[known][is_pending]))
        message = f"it has events of segments {pending}, which are not processed; {_RESTORE_LOG}"
        findings.expect(not pending, "I17", log.path, message)
        groups = set(self.facts.groups[known].tolist())
        # Groups of dropped segments are named as well
        is_named = groups == {*log.groups} or (groups < {*log.groups} and bool(strangers))
        message = f"its events are of groups {sorted(groups)}, its commit says {log.groups}"
        findings.expect(is_named, "I16", log.path, message)


def _names(segments: Int64Array) -> list[str]:
    return [segment_name(number) for number in segments.tolist()]


def _is_in(ordered: Int64Array, numbers: Int64Array) -> BoolArray:
    """Return which numbers are among many in order.

    A log has few segments of those that a table has.
    """
    if not len(ordered):
        return np.zeros(len(numbers), np.bool_)
    position = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
    return np.asarray(ordered[position] == numbers, np.bool_)
