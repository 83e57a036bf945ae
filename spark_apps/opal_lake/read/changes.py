"""Which rows began and ended in a range of versions. Nothing is stored for it (FORMAT, change feed).

A commit says which segments it processed: their rows begin. Its own events say which rows end. A row begins once and ends once: with its
first event. A row that ends in the version in which it begins was never visible. Rewrites begin and end nothing.
"""

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from opal_lake import layout
from opal_lake.data.prune import Predicate
from opal_lake.data.segment import DataFile, LogFile
from opal_lake.errors import InvalidInputError
from opal_lake.events.bitmap import Bitmaps, Marks, add_rows
from opal_lake.events.segment_log import read_events, row_words
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.change_range import VersionRange
from opal_lake.read.read import FileRead, files_by_keys
from opal_lake.spec.table_spec import TableSpec
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.verified import missing_error

Versions = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EndedRows:
    """Rows and the version that ended each, sorted by segment and offset."""

    segment: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int32]
    version: Versions

    def __len__(self) -> int:
        return len(self.segment)

    def take(self, rows: npt.NDArray[np.bool_]) -> "EndedRows":
        return EndedRows(segment=self.segment[rows], offset=self.offset[rows], version=self.version[rows])

    def marks(self) -> Bitmaps:
        bitmaps: Bitmaps = {}
        add_rows(bitmaps, self.segment, self.offset)
        return bitmaps

    def version_of(self, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]) -> Versions:
        """Of rows that are among these."""
        return self.version[np.searchsorted(self._words, row_words(self._segments, segment, offset))]

    @functools.cached_property
    def _segments(self) -> npt.NDArray[np.int64]:
        return np.unique(self.segment)

    @functools.cached_property
    def _words(self) -> npt.NDArray[np.int64]:
        return row_words(self._segments, self.segment, self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSpan:
    """What neighbouring versions changed. The rows concerned are in `files` of the snapshot.

    `begun` is the version that processed each segment; `never_visible` are the rows of these segments that no version showed. `marks` are
    the ended rows.
    """

    snapshot: Snapshot
    ended: EndedRows
    marks: Bitmaps
    begun: Mapping[int, int]
    never_visible: Bitmaps
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """The changes of a range of versions, and the commit times of the versions that made some."""

    spec: TableSpec
    spans: tuple[ChangeSpan, ...]
    times_us: Mapping[int, int]


def plan_changes(log: CommitLog, versions: VersionRange, predicate: Predicate | None = None) -> ChangePlan:
    """Files that the predicate rules out by the bounds of key columns are left out; both rows of an update are in such a file, or none."""
    head, earlier = versions.head, versions.earlier
    if earlier is None:
        return ChangePlan(spec=head.spec, spans=(), times_us={})
    commits = _commits(log, versions)
    begun = {segment: commit.version for commit in commits for segment in commit.actions.processed}
    first = _first_events(log, commits)
    began = versions_of(begun, first.segment)
    never_visible = first.take(first.version == began).marks()
    ended = first.take((first.version != began) & ~_ended_before(earlier, first, began == 0))
    spans = []
    for start, end in pairwise([earlier.version, *_span_ends(commits, versions.last)]):
        ended_here = ended.take((ended.version > start) & (ended.version <= end))
        begun_here = {segment: version for segment, version in begun.items() if start < version <= end}
        if begun_here or len(ended_here):
            state = head if end == head.version else earlier.followed_by(commits[: end - earlier.version])
            spans.append(_span(state, ended_here, begun_here, never_visible, predicate))
    moment, changing = CommitTimes(head).corrected, {*begun.values(), *ended.version.tolist()}
    times_us = {commit.version: moment(commit.version, commit.timestamp_us) for commit in commits if commit.version in changing}
    return ChangePlan(spec=head.spec, spans=tuple(span for span in spans if span.files), times_us=times_us)


def begun_reads(plan: ChangePlan) -> list[FileRead]:
    """The files whose rows began, with the bits that leave out all others: rows of other segments, and rows that no version showed."""
    reads = []
    for span in plan.spans:
        for file in span.files:
            mine = [segment for segment in file.segments if segment in span.begun]
            invalid = {segment: span.never_visible[segment] for segment in mine if segment in span.never_visible}
            invalid |= {number: BitMap(range(span.snapshot.segments[number].rows)) for number in {*file.segments} - {*mine}}
            if mine:
                reads.append(FileRead(storage=span.snapshot.storage, spec=plan.spec, file=file, as_of=None, invalid=invalid))
    return reads


def versions_of(begun: Mapping[int, int], segment: npt.NDArray[np.int64]) -> Versions:
    """Of rows by their segments: the version in which their segments began, 0 where that is another one."""
    segments = np.unique(segment)
    return np.array([begun.get(number, 0) for number in segments.tolist()], np.int64)[np.searchsorted(segments, segment)]


def _commits(log: CommitLog, versions: VersionRange) -> list[Commit]:
    assert versions.earlier is not None
    first, known = versions.earlier.version + 1, {commit.version: commit for commit in versions.head.commits}
    asked = range(first, versions.last + 1)
    commits = [known[v] for v in asked] if all(v in known for v in asked) else log.commits_after(first - 1, versions.last)
    if missing := {*asked} - {commit.version for commit in commits}:
        raise missing_error(log.storage, layout.commit_path(min(missing)))
    if restored := [commit.version for commit in commits if commit.epoch != versions.earlier.root.epoch]:
        raise InvalidInputError(
            f"{log.storage.uri}: version {restored[0]} restored an older state, so that the versions {first} to {versions.last} have no "
            f"common feed; read the changes up to version {restored[0] - 1}, and those from version {restored[0] + 1} on"
        )
    return commits


def _first_events(log: CommitLog, commits: Sequence[Commit]) -> EndedRows:
    """Of each row with events in these versions, the version of the first. Merged logs hold no event of their own commit."""
    own = [(commit.version, file) for commit in commits for file in commit.actions.add_logs if file.version < 0]
    with ThreadPoolExecutor(READERS) as pool:
        parts = [*pool.map(partial(_rows_with_events, log.storage), (file for _, file in own))]
    segment = np.concatenate([np.empty(0, np.int64), *(rows[0] for rows in parts)])
    offset = np.concatenate([np.empty(0, np.int32), *(rows[1] for rows in parts)])
    version = np.repeat(np.array([version for version, _ in own], np.int64), [len(rows[0]) for rows in parts])
    first = np.unique(row_words(np.unique(segment), segment, offset), return_index=True)[1]  # the versions ascend
    return EndedRows(segment=segment[first], offset=offset[first], version=version[first])


def _rows_with_events(storage: Storage, log: LogFile) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    events = read_events(storage, log)
    return events.segment, events.offset


def _ended_before(earlier: Snapshot, rows: EndedRows, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which of the rows are among the chosen ones and had an event before."""
    before, older = np.zeros(len(rows), np.bool_), rows.take(chosen)
    if len(older):
        segments = np.unique(older.segment).tolist()
        known = filter(None, map(earlier.segments.get, segments))  # the key store may name rows that were dropped, which are in no file
        invalid = invalid_rows(earlier, groups={segment.group for segment in known})
        before[chosen] = Marks.of({segment: invalid[segment] for segment in segments if segment in invalid}).at(older.segment, older.offset)
    return before


def _span_ends(commits: Sequence[Commit], last: int) -> list[int]:
    """The last versions in which rows are still in files that a major compaction then drops, and the last of all."""
    drops = [commit.version - 1 for commit in commits if commit.actions.rewrite and commit.actions.rewrite.dropped_rows]
    return sorted({*(version for version in drops if version >= commits[0].version), last})


def _span(
    snapshot: Snapshot, ended: EndedRows, begun: Mapping[int, int], never_visible: Bitmaps, predicate: Predicate | None
) -> ChangeSpan:
    concerned = {*begun, *np.unique(ended.segment).tolist()}
    files = [file for file in snapshot.files.values() if not concerned.isdisjoint(file.segments)]
    files_read = files_by_keys(files, predicate, snapshot.spec)
    held = {segment for file in files_read for segment in file.segments}
    mine = {segment: rows for segment, rows in never_visible.items() if segment in begun and segment in held}
    return ChangeSpan(snapshot=snapshot, ended=ended, marks=ended.marks(), begun=begun, never_visible=mine, files=files_read)
