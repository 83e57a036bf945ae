"""Which rows began and ended in a range of versions. No row is stored for it (FORMAT, change feed).

A commit says which segments it processed: their rows begin. Its own events say which rows end, and which rows follow them: so the two rows
of an update are known without their keys. A row begins once and ends once: with its first event. A row that ends in the version in which it
begins was never visible. Rewrites begin and end nothing. What a feed says of these rows, as insert or update: `changed_rows`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from opal_lake.data.data_file import PAGE_BYTES
from opal_lake.data.prune import Predicate
from opal_lake.data.segment import DataFile, LogFile
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError
from opal_lake.events.bitmap import Bitmaps, Marks, add_bitmaps, add_rows, offsets_of
from opal_lake.events.segment_log import (
    NO_ROW,
    Events,
    RowIds,
    concat_events,
    concat_ids,
    row_words,
)
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.pages import own_logs
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.change_range import VersionRange, commits_of
from opal_lake.read.difference import difference, groups_that_lack_rows, visible_rows
from opal_lake.read.read import FileRead, files_by_keys
from opal_lake.storage.protocol import READERS
from opal_lake.storage.uris import is_local

_MOST_ROUNDS, _OFFSET_BITS = 32, (1 << 32) - 1
FEW_FILES, FEW_ROWS, FEW_BYTES = 256, 300_000, 256 << 20  # of a feed that is read in one process
FEW_NEAR_BYTES = 1 << 30  # where they are on this machine

Versions = npt.NDArray[np.int64]
ReadEvents = Callable[[LogFile], Events]  # with their next rows


@dataclass(frozen=True, kw_only=True)
class EndedRows:
    """Rows and the version that ended each, sorted by segment and offset.

    `next_rows` are the rows that took their places, NO_ROW where the key was deleted; None across
    a restore.
    """

    segment: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int32]
    version: Versions
    next_rows: RowIds | None = None

    def __len__(self) -> int:
        return len(self.segment)

    @classmethod
    def at(cls, version: int, rows: Bitmaps) -> "EndedRows":
        """Rows that one version ended."""
        numbers = sorted(rows)
        segment = np.repeat(np.array(numbers, np.int64), [len(rows[number]) for number in numbers])
        offset = np.concatenate(
            [np.empty(0, np.uint32), *(offsets_of(rows[number]) for number in numbers)]
        ).astype(np.int32)
        return cls(segment=segment, offset=offset, version=np.full(len(segment), version, np.int64))

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> "EndedRows":
        next_rows = None if self.next_rows is None else self.next_rows.take(rows)
        return EndedRows(
            segment=self.segment[rows],
            offset=self.offset[rows],
            version=self.version[rows],
            next_rows=next_rows,
        )

    def marks(self) -> Bitmaps:
        bitmaps: Bitmaps = {}
        add_rows(bitmaps, self.segment, self.offset)
        return bitmaps

    def at_rows(self, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]) -> "EndedRows":
        """Rows that are among these, in this order."""
        return self.take(np.searchsorted(self._words, row_words(self._segments, segment, offset)))

    def beyond(self, hidden: "EndedRows") -> "EndedRows":
        """With the rows that took their places at last, where it was one of the hidden ones that did at first."""
        if self.next_rows is None or hidden.next_rows is None or not len(hidden):
            return self
        return replace(self, next_rows=_last_rows(self.next_rows, hidden, hidden.next_rows))

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
    may_lack: bool = False
    files: tuple[DataFile, ...] = ()

    @functools.cached_property
    def marks(self) -> Bitmaps:
        """The ended rows."""
        return self.ended.marks()

    @functools.cached_property
    def deleted(self) -> Bitmaps:
        """Of the ended rows those that no row took the place of, if that is known."""
        rows = self.ended.next_rows
        return self.marks if rows is None else self.ended.take(~rows.is_row).marks()

    @property
    def versions(self) -> set[int]:
        return {*self.begun.values(), *np.unique(self.ended.version).tolist()}

    @property
    def concerned_rows(self) -> int:
        return len(self.ended) + sum(self.snapshot.segments[number].rows for number in self.begun)

    def is_old(self, file: DataFile) -> bool:
        """Whether rows of the file have ended alone."""
        return self.begun.keys().isdisjoint(file.segments)

    def is_whole(self, file: DataFile) -> bool:
        """Whether all of the file is held to read what the span concerns, and not only pages of it, a few at a time."""
        return not self.is_old(file) or self.snapshot.spec.file_format != "parquet"

    def bytes_read(self, file: DataFile) -> int:
        """At most about, of a file that the span reads."""
        ended = sum(len(self.marks[segment]) for segment in file.segments if segment in self.marks)
        return (
            file.size
            if self.is_whole(file)
            else min(file.size, ended * PAGE_BYTES * len(self.snapshot.spec.schema.fields))
        )

    def reading(self, predicate: Predicate | None) -> "ChangeSpan":
        """With the files that hold the rows, but for those that a predicate rules out."""
        concerned = {*self.begun, *self.marks}
        files = [
            file for file in self.snapshot.files.values() if not concerned.isdisjoint(file.segments)
        ]
        files_read = files_by_keys(files, predicate, self.snapshot.spec)
        held = {segment for file in files_read for segment in file.segments}
        hidden = {segment: rows for segment, rows in self.never_visible.items() if segment in held}
        return replace(self, files=files_read, never_visible=hidden)


@dataclass(frozen=True, kw_only=True)
class ChangePlan:
    """The changes of a range of versions, and the commit times of the versions that made some.

    `has_pairs` if the spans say which rows are those of updates: the ended ones with a next row, and these. In a net feed no key has others
    then. Else the keys tell. `is_filtered` if of the two rows of an update that a predicate rules out, one may be in no file. `may_lack` if
    ended rows may be in no file: what took their place is no update then, as only who has read the rows can tell.
    """

    spec: TableSpec
    spans: tuple[ChangeSpan, ...]
    times_us: Mapping[int, int]
    has_pairs: bool
    is_filtered: bool
    may_lack: bool

    @functools.cached_property
    def updated(self) -> Bitmaps:
        """The rows that took the places of others."""
        rows = concat_ids(
            [span.ended.next_rows for span in self.spans if span.ended.next_rows is not None]
        )
        known, bitmaps = rows.take(rows.is_row), Bitmaps()
        add_rows(bitmaps, known.segment, known.offset)
        return bitmaps

    @property
    def is_small(self) -> bool:
        """Whether one process reads the rows sooner than a cluster's tasks start, and in little memory."""
        files = [(span, file) for span in self.spans for file in span.files]
        if len(files) > FEW_FILES or sum(span.concerned_rows for span in self.spans) > FEW_ROWS:
            return False
        whole = sum(file.size for span, file in files if span.is_whole(file))
        read = sum(span.bytes_read(file) for span, file in files)
        is_near = all(is_local(span.snapshot.storage.uri) for span in self.spans)
        return whole <= FEW_BYTES and read <= (FEW_NEAR_BYTES if is_near else FEW_BYTES)


def plan_changes(
    log: CommitLog,
    versions: VersionRange,
    predicate: Predicate | None = None,
    *,
    is_net: bool = False,
) -> ChangePlan:
    """Files that the predicate rules out by the bounds of key columns are left out; both rows of an update are in such a file, or none.

    For a net feed, rows that a restore within the range brought back, so that both its ends show them, are left out too.
    """
    head, state = versions.head, versions.earlier
    head.spec.require_keys("a change feed")
    if state is None:
        return ChangePlan(
            spec=head.spec, spans=(), times_us={}, has_pairs=True, is_filtered=False, may_lack=False
        )
    found, first = commits_of(log, versions), state
    commits = found.commits
    read = partial(found.read_events, log.storage)
    spans: list[ChangeSpan] = []
    courses = [*_courses(commits)]
    for course in courses:
        end = head if course[-1].version == head.version else state.followed_by(course)
        is_restore, in_sum = bool(course[0].actions.restored), is_net and len(courses) == 1
        spans += (
            _restored_spans(state, end)
            if is_restore
            else _spans(read, state, course, end, in_sum=in_sum)
        )
        state = end
    has_pairs = len(courses) == 1 and all(
        span.ended.next_rows is not None for span in spans
    )  # a restore may begin a segment again
    if is_net and state.root.epoch != first.root.epoch:
        spans = _without_unchanged(spans, first, state)
    elif is_net:
        has_pairs &= not any(span.deleted for span in spans)
    moment, changing = (
        CommitTimes(head).corrected,
        {version for span in spans for version in span.versions},
    )
    times_us = {
        commit.version: moment(commit.version, commit.timestamp_us)
        for commit in commits
        if commit.version in changing
    }
    reading = [span.reading(predicate) for span in spans]
    kept, is_filtered = tuple(span for span in reading if span.files), predicate is not None
    may_lack = any(span.may_lack for span in kept)
    return ChangePlan(
        spec=head.spec,
        spans=kept,
        times_us=times_us,
        has_pairs=has_pairs,
        is_filtered=is_filtered,
        may_lack=may_lack,
    )


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


def _spans(
    read: ReadEvents,
    earlier: Snapshot,
    commits: Sequence[Commit],
    last: Snapshot,
    *,
    in_sum: bool,
) -> Iterator[ChangeSpan]:
    """What commits changed that follow on from each other.

    `in_sum` without the rows that were seen only within, unless a key was deleted: no event tells which row it came back with.
    """
    begun = {
        segment.id: commit.version for commit in commits for segment in commit.actions.processed
    }
    first = _first_events(read, commits)
    began = versions_of(begun, first.segment)
    hidden = first.take(first.version == began)
    ended = first.take(
        (first.version != began) & ~_ended_before(earlier, first, began == 0)
    ).beyond(hidden)
    never_visible = hidden.marks()
    may_lack = _may_lack(earlier, ended, begun)
    lacks = bool(may_lack.any())
    next_rows = ended.next_rows
    assert next_rows is not None  # the own logs of commits name them
    is_followed = _are_followed(ended, next_rows, begun, may_lack)
    ended, next_rows = ended.take(is_followed), next_rows.take(is_followed)
    if in_sum and next_rows.is_row.all():
        is_within = versions_of(begun, ended.segment) > 0
        within, ended = ended.take(is_within), ended.take(~is_within)
        ended = ended.beyond(within)
        add_bitmaps(never_visible, within.marks())
    for start, end in pairwise([earlier.version, *_span_ends(commits, last.version)]):
        ended_here = ended.take((ended.version > start) & (ended.version <= end))
        begun_here = {
            segment: version for segment, version in begun.items() if start < version <= end
        }
        if begun_here or len(ended_here):
            state = (
                last
                if end == last.version
                else earlier.followed_by(commits[: end - earlier.version])
            )
            unseen = {
                segment: rows for segment, rows in never_visible.items() if segment in begun_here
            }
            yield ChangeSpan(
                snapshot=state,
                ended=ended_here,
                begun=begun_here,
                never_visible=unseen,
                may_lack=lacks,
            )


def _may_lack(
    earlier: Snapshot, ended: EndedRows, begun: Mapping[int, int]
) -> npt.NDArray[np.bool_]:
    """Which of the rows may have been dropped before: a job that began when they were there has ended them, and nothing tells that others
    had.
    """
    if earlier.root.floor is None:
        return np.zeros(len(ended), np.bool_)
    lacking = groups_that_lack_rows(earlier)
    segments = np.unique(ended.segment).tolist()
    known = {
        number: earlier.segments[number].group not in lacking
        for number in segments
        if number in earlier.segments
    }
    may_lack = np.array(
        [number not in begun and not known.get(number, False) for number in segments], np.bool_
    )
    return may_lack[np.searchsorted(segments, ended.segment)]


def _are_followed(
    ended: EndedRows, next_rows: RowIds, begun: Mapping[int, int], may_lack: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """A row that was visible is followed by one that came with the version that ended it, if by any."""
    is_right: npt.NDArray[np.bool_] = ~next_rows.is_row | (
        versions_of(begun, next_rows.segment) == ended.version
    )
    wrong = np.flatnonzero(~is_right & ~may_lack)
    if len(wrong):
        row, version = (
            f"row {ended.offset[wrong[0]]} of segment {ended.segment[wrong[0]]}",
            ended.version[wrong[0]],
        )
        raise FormatError(
            f"by a segment log of version {version}, {row} is followed by a row that did not come with it; run `opal check`"
        )
    return is_right


def _last_rows(rows: RowIds, through: EndedRows, next_rows: RowIds) -> RowIds:
    """Where these rows lead to through others. Each round takes twice as many steps as the one before."""
    segments = np.unique(np.concatenate([part.segment for part in (rows, through, next_rows)]))
    known = row_words(segments, through.segment, through.offset)
    leads_to, reached = (
        np.where(part.is_row, row_words(segments, part.segment, part.offset), NO_ROW)
        for part in (next_rows, rows)
    )
    for _ in range(_MOST_ROUNDS):
        at, is_known = _places(known, leads_to)
        if not is_known.any():
            break
        leads_to[is_known] = leads_to[at[is_known]]
    else:
        raise FormatError("by segment logs, rows follow each other in a circle; run `opal check`")
    at, is_known = _places(known, reached)
    reached[is_known] = leads_to[at[is_known]]
    is_row = reached != NO_ROW
    segment = np.where(is_row, segments[np.where(is_row, reached >> 32, 0)], NO_ROW)
    return RowIds(segment=segment, offset=(reached & _OFFSET_BITS).astype(np.uint32).view(np.int32))


def _places(
    words: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Where each one stands among sorted words, if it is there."""
    at = np.minimum(np.searchsorted(words, wanted), len(words) - 1)
    return at, words[at] == wanted


def _restored_spans(before: Snapshot, restored: Snapshot) -> Iterator[ChangeSpan]:
    """What a restore changed: events and segments of its two courses do not tell, the rows that both states show do."""
    changed, version = difference(before, restored), restored.version
    if changed.gone:
        yield ChangeSpan(
            snapshot=before, ended=EndedRows.at(version, changed.gone), begun={}, never_visible={}
        )
    if changed.come:
        others = {
            number: BitMap(range(restored.segments[number].rows)) - rows
            for number, rows in changed.come.items()
        }
        begun = dict.fromkeys(changed.come, version)
        yield ChangeSpan(
            snapshot=restored, ended=EndedRows.at(version, {}), begun=begun, never_visible=others
        )


def _without_unchanged(
    spans: Sequence[ChangeSpan], earlier: Snapshot, last: Snapshot
) -> list[ChangeSpan]:
    """Without the rows that both states show: they ended, and a restore began them again."""
    segments = {number for span in spans for number in (*span.begun, *span.marks)}
    before, after = visible_rows(earlier, segments), visible_rows(last, segments)
    unchanged = {number: rows & after[number] for number, rows in before.items() if number in after}
    marks, left = Marks.of(unchanged), []
    for span in spans:
        hidden = {**span.never_visible}
        add_bitmaps(
            hidden, {number: rows for number, rows in unchanged.items() if number in span.begun}
        )
        ended = span.ended.take(~marks.at(span.ended.segment, span.ended.offset))
        left.append(replace(span, ended=ended, never_visible=hidden))
    return left


def begun_reads(plan: ChangePlan) -> list[FileRead]:
    """The files whose rows began, with the bits that leave out all others: rows of other segments, and rows that no version showed."""
    reads = []
    for span in plan.spans:
        for file in span.files:
            mine = [segment for segment in file.segments if segment in span.begun]
            invalid = {
                segment: span.never_visible[segment]
                for segment in mine
                if segment in span.never_visible
            }
            invalid |= {
                number: BitMap(range(span.snapshot.segments[number].rows))
                for number in {*file.segments} - {*mine}
            }
            if mine:
                reads.append(
                    FileRead(
                        storage=span.snapshot.storage,
                        spec=plan.spec,
                        file=file,
                        as_of=None,
                        invalid=invalid,
                    )
                )
    return reads


def versions_of(begun: Mapping[int, int], segment: npt.NDArray[np.int64]) -> Versions:
    """Of rows by their segments: the version in which their segments began, 0 where that is another one."""
    segments = np.unique(segment)
    return np.array([begun.get(number, 0) for number in segments.tolist()], np.int64)[
        np.searchsorted(segments, segment)
    ]


def _first_events(read: ReadEvents, commits: Sequence[Commit]) -> EndedRows:
    """Of each row with events in these versions, the version of the first. Merged logs hold no event of their own commit."""
    own = [(commit.version, file) for commit in commits for file in own_logs(commit)]
    with ThreadPoolExecutor(READERS) as pool:
        parts = [*pool.map(read, (file for _, file in own))]
    events = concat_events(parts)
    version = np.repeat(np.array([version for version, _ in own], np.int64), [*map(len, parts)])
    words = row_words(np.unique(events.segment), events.segment, events.offset)
    order = np.argsort(
        words, kind="stable"
    )  # which takes sorted logs for what they are, and the versions ascend
    first = order[np.append(True, np.diff(words[order]) != 0)[: len(order)]]
    rows = events.take(first)
    return EndedRows(
        segment=rows.segment, offset=rows.offset, version=version[first], next_rows=rows.next_rows
    )


def _ended_before(
    earlier: Snapshot, rows: EndedRows, chosen: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which of the rows are among the chosen ones and had an event before."""
    before, older = np.zeros(len(rows), np.bool_), rows.take(chosen)
    if len(older):
        segments = np.unique(older.segment).tolist()
        known = filter(
            None, map(earlier.segments.get, segments)
        )  # the key store may name rows that were dropped, which are in no file
        invalid = invalid_rows(earlier, groups={segment.group for segment in known})
        before[chosen] = Marks.of(
            {segment: invalid[segment] for segment in segments if segment in invalid}
        ).at(older.segment, older.offset)
    return before


def _span_ends(commits: Sequence[Commit], last: int) -> list[int]:
    """The last versions in which rows are still in files that a major compaction then drops, and the last of all."""
    drops = [
        commit.version - 1
        for commit in commits
        if commit.actions.rewrite and commit.actions.rewrite.dropped_rows
    ]
    return sorted({*(version for version in drops if version >= commits[0].version), last})
