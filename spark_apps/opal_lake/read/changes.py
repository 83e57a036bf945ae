"""Which rows began and ended in a range of versions. Nothing is stored for it (FORMAT, change feed).

A commit says which segments it processed: their rows begin. Its own events say which rows end. A row begins once and ends once: with its
first event. A row that ends in the version in which it begins was never visible. Rewrites begin and end nothing.
What a feed says of these rows, as insert or update: `changed_rows`.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from opal_lake.data.data_file import PAGE_BYTES
from opal_lake.data.prune import Predicate
from opal_lake.data.segment import DataFile, LogFile, is_ingested
from opal_lake.events.bitmap import Bitmaps, Marks, add_bitmaps, add_rows, offsets_of
from opal_lake.events.segment_log import read_events, row_words
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.change_range import VersionRange, commits_of
from opal_lake.read.difference import difference, visible_rows
from opal_lake.read.read import FileRead, files_by_keys
from opal_lake.spec.table_spec import TableSpec
from opal_lake.storage.protocol import READERS, Storage

FEW_FILES, FEW_ROWS, FEW_BYTES = 256, 300_000, 256 << 20  # of a feed that is read in one process

Versions = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EndedRows:
    """Rows and the version that ended each, sorted by segment and offset."""

    segment: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int32]
    version: Versions

    def __len__(self) -> int:
        return len(self.segment)

    @classmethod
    def at(cls, version: int, rows: Bitmaps) -> "EndedRows":
        """Rows that one version ended."""
        numbers = sorted(rows)
        segment = np.repeat(np.array(numbers, np.int64), [len(rows[number]) for number in numbers])
        offset = np.concatenate([np.empty(0, np.uint32), *(offsets_of(rows[number]) for number in numbers)]).astype(np.int32)
        return cls(segment=segment, offset=offset, version=np.full(len(segment), version, np.int64))

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


@dataclass(frozen=True, kw_only=True)
class ChangeSpan:
    """What neighbouring versions changed. The rows concerned are in `files` of the snapshot.

    `begun` is the version that processed each segment; `never_visible` are the rows of these segments that no version showed.
    """

    snapshot: Snapshot
    ended: EndedRows
    begun: Mapping[int, int]
    never_visible: Bitmaps
    files: tuple[DataFile, ...] = ()

    @functools.cached_property
    def marks(self) -> Bitmaps:
        """The ended rows."""
        return self.ended.marks()

    @property
    def versions(self) -> set[int]:
        return {*self.begun.values(), *np.unique(self.ended.version).tolist()}

    @property
    def concerned_rows(self) -> int:
        return len(self.ended) + sum(self.snapshot.segments[number].rows for number in self.begun)

    def bytes_read(self, file: DataFile) -> int:
        """At most about, of a file that the span reads: of some rows of an ingested file the pages."""
        if not is_ingested(file) or file.segments[0] in self.begun or self.snapshot.spec.file_format != "parquet":
            return file.size
        return min(file.size, len(self.marks[file.segments[0]]) * PAGE_BYTES * len(self.snapshot.spec.schema.fields))

    def reading(self, predicate: Predicate | None) -> "ChangeSpan":
        """With the files that hold the rows, but for those that a predicate rules out."""
        concerned = {*self.begun, *self.marks}
        files = [file for file in self.snapshot.files.values() if not concerned.isdisjoint(file.segments)]
        files_read = files_by_keys(files, predicate, self.snapshot.spec)
        held = {segment for file in files_read for segment in file.segments}
        hidden = {segment: rows for segment, rows in self.never_visible.items() if segment in held}
        return replace(self, files=files_read, never_visible=hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """The changes of a range of versions, and the commit times of the versions that made some."""

    spec: TableSpec
    spans: tuple[ChangeSpan, ...]
    times_us: Mapping[int, int]

    @property
    def is_small(self) -> bool:
        """Whether one process reads the rows sooner than a cluster's tasks start, and in little memory."""
        files = [(span, file) for span in self.spans for file in span.files]
        if len(files) > FEW_FILES or sum(span.concerned_rows for span in self.spans) > FEW_ROWS:
            return False
        return sum(span.bytes_read(file) for span, file in files) <= FEW_BYTES


def plan_changes(log: CommitLog, versions: VersionRange, predicate: Predicate | None = None, *, is_net: bool = False) -> ChangePlan:
    """Files that the predicate rules out by the bounds of key columns are left out; both rows of an update are in such a file, or none.

    For a net feed, rows that a restore within the range brought back, so that both its ends show them, are left out too.
    """
    head, state = versions.head, versions.earlier
    if state is None:
        return ChangePlan(spec=head.spec, spans=(), times_us={})
    commits, first = commits_of(log, versions), state
    spans: list[ChangeSpan] = []
    for course in _courses(commits):
        end = head if course[-1].version == head.version else state.followed_by(course)
        spans += _restored_spans(state, end) if course[0].actions.restored else _spans(log.storage, state, course, end)
        state = end
    if is_net and state.root.epoch != first.root.epoch:
        spans = _without_unchanged(spans, first, state)
    moment, changing = CommitTimes(head).corrected, {version for span in spans for version in span.versions}
    times_us = {commit.version: moment(commit.version, commit.timestamp_us) for commit in commits if commit.version in changing}
    read = [span.reading(predicate) for span in spans]
    return ChangePlan(spec=head.spec, spans=tuple(span for span in read if span.files), times_us=times_us)


def _courses(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    """Commits that follow on from each other, and each restore, which follows on from an older one, by itself."""
    course: list[Commit] = []
    for commit in commits:
        if course and (commit.actions.restored or course[0].actions.restored):
            yield course
            course = []
        course.append(commit)
    if course:
        yield course


def _spans(storage: Storage, earlier: Snapshot, commits: Sequence[Commit], last: Snapshot) -> Iterator[ChangeSpan]:
    """What commits changed that follow on from each other."""
    begun = {segment: commit.version for commit in commits for segment in commit.actions.processed}
    first = _first_events(storage, commits)
    began = versions_of(begun, first.segment)
    never_visible = first.take(first.version == began).marks()
    ended = first.take((first.version != began) & ~_ended_before(earlier, first, began == 0))
    for start, end in pairwise([earlier.version, *_span_ends(commits, last.version)]):
        ended_here = ended.take((ended.version > start) & (ended.version <= end))
        begun_here = {segment: version for segment, version in begun.items() if start < version <= end}
        if begun_here or len(ended_here):
            state = last if end == last.version else earlier.followed_by(commits[: end - earlier.version])
            hidden = {segment: rows for segment, rows in never_visible.items() if segment in begun_here}
            yield ChangeSpan(snapshot=state, ended=ended_here, begun=begun_here, never_visible=hidden)


def _restored_spans(before: Snapshot, restored: Snapshot) -> Iterator[ChangeSpan]:
    """What a restore changed: events and segments of its two courses do not tell, the rows that both states show do."""
    changed, version = difference(before, restored), restored.version
    if changed.gone:
        yield ChangeSpan(snapshot=before, ended=EndedRows.at(version, changed.gone), begun={}, never_visible={})
    if changed.come:
        others = {number: BitMap(range(restored.segments[number].rows)) - rows for number, rows in changed.come.items()}
        begun = dict.fromkeys(changed.come, version)
        yield ChangeSpan(snapshot=restored, ended=EndedRows.at(version, {}), begun=begun, never_visible=others)


def _without_unchanged(spans: Sequence[ChangeSpan], earlier: Snapshot, last: Snapshot) -> list[ChangeSpan]:
    """Without the rows that both states show: they ended, and a restore began them again."""
    segments = {number for span in spans for number in (*span.begun, *span.marks)}
    before, after = visible_rows(earlier, segments), visible_rows(last, segments)
    unchanged = {number: rows & after[number] for number, rows in before.items() if number in after}
    marks, left = Marks.of(unchanged), []
    for span in spans:
        hidden = {**span.never_visible}
        add_bitmaps(hidden, {number: rows for number, rows in unchanged.items() if number in span.begun})
        ended = span.ended.take(~marks.at(span.ended.segment, span.ended.offset))
        left.append(replace(span, ended=ended, never_visible=hidden))
    return left


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


def _first_events(storage: Storage, commits: Sequence[Commit]) -> EndedRows:
    """Of each row with events in these versions, the version of the first. Merged logs hold no event of their own commit."""
    own = [(commit.version, file) for commit in commits for file in commit.actions.add_logs if file.version < 0]
    with ThreadPoolExecutor(READERS) as pool:
        parts = [*pool.map(partial(_rows_with_events, storage), (file for _, file in own))]
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
