"""Segment logs, one by one (I16, I17)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opal_lake.data.segment import LogFile
from opal_lake.events.segment_log import Events, RowIds, concat_events
from opal_lake.ids import segment_name
from opal_lake.inspect.check.content.ranges import SegmentFacts
from opal_lake.inspect.check.finding import Findings


@dataclass(slots=True, kw_only=True)
class LogCheck:
    """A log as its parts pass by; `finish` says what is wrong with it."""

    log: LogFile
    facts: SegmentFacts
    has_floor: bool
    events: int = 0
    _rising: bool = True
    _extremes: list[int] = field(default_factory=list)
    _last: list[Events] = field(default_factory=list)
    _numbers: set[int] = field(default_factory=set)
    _outside: int = 0
    _nowhere: int = 0
    _followed_by: set[int] = field(default_factory=set)

    def pass_on(self, parts: Iterator[Events]) -> Iterator[Events]:
        for part in parts:
            self.add(part)
            yield part

    def add(self, part: Events) -> None:
        if not len(part):
            return
        self.events += len(part)
        joined = concat_events([*self._last, part])
        step = np.diff(joined.segment)
        self._rising &= bool(
            ((step > 0) | ((step == 0) & (np.diff(joined.offset.astype(np.int64)) > 0))).all()
        )
        self._last = [part.take(np.array([len(part) - 1]))]
        self._extremes += [int(part.until.min()), int(part.until.max())]
        self._numbers.update(np.unique(part.segment).tolist())
        self._outside += int(self._is_outside(part).sum())
        if part.next_rows is not None:
            following = part.next_rows.take(part.next_rows.is_row)
            self._nowhere += int(self._is_outside(following).sum())
            self._followed_by.update(np.unique(following.segment).tolist())

    def _is_outside(self, rows: Events | RowIds) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return np.asarray((rows.offset < 0) | (rows.offset >= self._limits(rows)), np.bool_)

    def _limits(self, part: Events | RowIds) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        limits = np.full(len(part.segment), np.iinfo(np.int64).max)
        if len(self.facts.ids):
            position = np.minimum(
                np.searchsorted(self.facts.ids, part.segment), len(self.facts.ids) - 1
            )
            known = self.facts.ids[position] == part.segment
            limits[known] = self.facts.rows[position[known]]
        return limits

    def finish(self, findings: Findings) -> None:
        self._check_content(findings)
        self._check_rows_exist(findings)

    def _check_content(self, findings: Findings) -> None:
        log = self.log
        message = f"it holds {self.events} events, its commit says {log.events}; restore the file from a backup"
        if not findings.expect(
            self.events == log.events and log.events > 0, "I16", log.path, message
        ):
            return
        message = (
            "its events are not sorted by row, or a row has two; restore the file from a backup"
        )
        findings.expect(self._rising, "I16", log.path, message)
        least, greatest = min(self._extremes), max(self._extremes)
        recorded = f"its commit says [{log.least_until}, {log.greatest_until}]; restore the log from a backup"
        agree = (least, greatest) == (log.least_until, log.greatest_until)
        findings.expect(
            agree, "I16", log.path, f"its times lie in [{least}, {greatest}], {recorded}"
        )

    def _places_of(
        self, numbers: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Return where segments are among those of the table, and which of them are not."""
        is_known = _is_in(self.facts.ids, numbers)
        return np.searchsorted(self.facts.ids, numbers[is_known]), ~is_known

    def _check_rows_exist(self, findings: Findings) -> None:
        """Events are about rows that are there and processed, and the log names their groups."""
        log, numbers = self.log, np.array(sorted(self._numbers), np.int64)
        known, is_stranger = self._places_of(numbers)
        strangers = [segment_name(number) for number in numbers[is_stranger].tolist()]
        if not self.has_floor:  # else their rows may have been dropped
            findings.expect(
                not strangers,
                "I17",
                log.path,
                f"it has events of segments {strangers}, which the table does not have",
            )
            followers = np.array(sorted(self._followed_by), np.int64)
            _, is_absent = self._places_of(followers)
            absent = [segment_name(number) for number in followers[is_absent].tolist()]
            message = f"its events are followed by rows of segments {absent}, which the table does not have"
            findings.expect(not absent, "I17", log.path, message)
        is_discarded = _is_in(self.facts.discarded, numbers)
        discarded = [segment_name(number) for number in numbers[is_discarded].tolist()]
        findings.expect(
            not discarded,
            "I30",
            log.path,
            f"it has events of segments {discarded}, which were discarded; restore the log from a backup",
        )
        message = f"{self._outside} of its events are of rows beyond the end of their segments; restore the file from a backup"
        findings.expect(not self._outside, "I17", log.path, message)
        message = f"{self._nowhere} of its events are followed by rows beyond the end of their segments; restore the file from a backup"
        findings.expect(not self._nowhere, "I17", log.path, message)
        is_pending = self.facts.pending[known]
        pending = sorted(segment_name(number) for number in self.facts.ids[known][is_pending])
        message = f"it has events of segments {pending}, which are not processed; restore the log from a backup"
        findings.expect(not pending, "I17", log.path, message)
        groups = set(self.facts.groups[known].tolist())
        named = groups == {*log.groups} or (groups < {*log.groups} and bool(strangers))
        findings.expect(
            named,
            "I16",
            log.path,
            f"its events are of groups {sorted(groups)}, its commit says {log.groups}",
        )


def _is_in(ordered: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether numbers are among many in order: a log has few segments of those that a table has."""
    if not len(ordered):
        return np.zeros(len(numbers), np.bool_)
    position = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
    return np.asarray(ordered[position] == numbers, np.bool_)
