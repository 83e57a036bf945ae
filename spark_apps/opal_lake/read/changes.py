"""Rows that began and ended in a range of versions (FORMAT, §10). Nothing is stored for it.

A commit lists the segments that it processed: their rows begin. Its own events list the rows that
end, and the rows that replace them: so the two rows of an update are known without their keys. A
row begins once, and ends once, with its first event. A row that ends in the version in which it
begins was never visible. Rewrites begin and end nothing. `changed_rows` labels these rows as
inserts, updates and deletes.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
from pyroaring import BitMap

from opal_lake.arrays import BoolArray, IndexArray, Int32Array, Int64Array
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

_MAX_ROUNDS = 32  # each doubles the steps; no chain of rows has 2^32 of them
_OFFSET_BITS = (1 << 32) - 1
# Limits of a feed that one process reads
FEW_FILES = 256
FEW_ROWS = 300_000
FEW_BYTES = 256 << 20
FEW_NEAR_BYTES = 1 << 30  # if the files are on this machine

Versions = Int64Array
ReadEvents = Callable[[LogFile], Events]  # returns events with their next rows


@dataclass(frozen=True, kw_only=True)
class EndedRows:
    """Rows and the version that ended each, sorted by segment and offset.

    `next_rows` are the rows that replaced them, NO_ROW where the key was deleted; None across a
    restore.
    """

    segment: Int64Array
    offset: Int32Array
    version: Versions
    next_rows: RowIds | None = None

    def __len__(self) -> int:
        return len(self.segment)

    @classmethod
    def at(cls, version: int, rows: Bitmaps) -> "EndedRows":
        """Return rows that one version ended."""
        numbers = sorted(rows)
        counts = [len(rows[number]) for number in numbers]
        offsets = [np.empty(0, np.uint32), *(offsets_of(rows[number]) for number in numbers)]
        segment = np.repeat(np.array(numbers, np.int64), counts)
        return cls(
            segment=segment,
            offset=np.concatenate(offsets).astype(np.int32),
            version=np.full(len(segment), version, np.int64),
        )

    def take(self, rows: BoolArray | IndexArray) -> "EndedRows":
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

    def at_rows(self, segment: Int64Array, offset: Int32Array) -> "EndedRows":
        """Return the given rows, which are all among these, in the given order."""
        wanted = row_words(self._segments, segment, offset)
        return self.take(np.searchsorted(self._words, wanted))

    def beyond(self, hidden: "EndedRows") -> "EndedRows":
        """Return these rows with their last replacement, past hidden ones."""
        if self.next_rows is None or hidden.next_rows is None or not len(hidden):
            return self
        return replace(self, next_rows=_last_rows(self.next_rows, hidden, hidden.next_rows))

    @functools.cached_property
    def _segments(self) -> Int64Array:
        return np.unique(self.segment)

    @functools.cached_property
    def _words(self) -> Int64Array:
        return row_words(self._segments, self.segment, self.offset)


@dataclass(frozen=True, kw_only=True)
class ChangeSpan:
    """The changes of neighbouring versions.

    The rows are in `files` of the snapshot. `begun` is the version that processed each segment.
    `never_visible` are the rows of these segments that no version showed. `may_lack` is true if
    ended rows may be in no file.
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
        """The ended rows that no row replaced; all of them if that is unknown."""
        next_rows = self.ended.next_rows
        if next_rows is None:
            return self.marks
        return self.ended.take(~next_rows.is_row).marks()

    @property
    def versions(self) -> set[int]:
        """The versions that changed something."""
        return {*self.begun.values(), *np.unique(self.ended.version).tolist()}

    @property
    def concerned_rows(self) -> int:
        """The number of rows that begin or end, at most."""
        begun_rows = sum(self.snapshot.segments[number].rows for number in self.begun)
        return len(self.ended) + begun_rows

    def is_old(self, file: DataFile) -> bool:
        """Return whether rows of the file have only ended, and none has begun."""
        return self.begun.keys().isdisjoint(file.segments)

    def is_whole(self, file: DataFile) -> bool:
        """Return whether a whole file is in memory during a read, not only pages."""
        return not self.is_old(file) or self.snapshot.spec.file_format != "parquet"

    def bytes_read(self, file: DataFile) -> int:
        """Return about how many bytes of a file the span reads at most."""
        if self.is_whole(file):
            return file.size
        ended = sum(len(self.marks[segment]) for segment in file.segments if segment in self.marks)
        # At worst, each ended row is on a page of its own in every column
        pages = ended * len(self.snapshot.spec.schema.fields)
        return min(file.size, pages * PAGE_BYTES)

    def reading(self, predicate: Predicate | None) -> "ChangeSpan":
        """Return the span with the files of its rows that a predicate allows."""
        concerned = {*self.begun, *self.marks}
        files = [
            file for file in self.snapshot.files.values() if not concerned.isdisjoint(file.segments)
        ]
        files_read = files_by_keys(files, predicate, self.snapshot.spec)
        read = {segment for file in files_read for segment in file.segments}
        hidden = {segment: rows for segment, rows in self.never_visible.items() if segment in read}
        return replace(self, files=files_read, never_visible=hidden)


@dataclass(frozen=True, kw_only=True)
class ChangePlan:
    """The changes of a range of versions, with their commit times.

    - `has_pairs` is true if the spans show which rows are those of an update: the ended rows with a
      next row, and these next rows. In a net feed a key has no other rows then. If it is false, the
      keys show it.
    - `is_filtered` is true if a predicate may have left out the file of one row of an update.
    - `may_lack` is true if ended rows may be in no file. Then a row that replaced one is not an
      update; only a reader of the rows can find that out.
    """

    spec: TableSpec
    spans: tuple[ChangeSpan, ...]
    times_us: Mapping[int, int]
    has_pairs: bool
    is_filtered: bool
    may_lack: bool

    @functools.cached_property
    def updated(self) -> Bitmaps:
        """The rows that replaced others."""
        next_rows = [span.ended.next_rows for span in self.spans]
        rows = concat_ids([ids for ids in next_rows if ids is not None])
        replacing = rows.take(rows.is_row)
        bitmaps: Bitmaps = {}
        add_rows(bitmaps, replacing.segment, replacing.offset)
        return bitmaps

    @property
    def is_small(self) -> bool:
        """True if one process reads the rows sooner than Spark, in little memory."""
        files = [(span, file) for span in self.spans for file in span.files]
        if len(files) > FEW_FILES or sum(span.concerned_rows for span in self.spans) > FEW_ROWS:
            return False
        whole = sum(file.size for span, file in files if span.is_whole(file))
        read = sum(span.bytes_read(file) for span, file in files)
        is_near = all(is_local(span.snapshot.storage.uri) for span in self.spans)
        max_read = FEW_NEAR_BYTES if is_near else FEW_BYTES
        return whole <= FEW_BYTES and read <= max_read


def plan_changes(
    log: CommitLog,
    versions: VersionRange,
    predicate: Predicate | None = None,
    *,
    is_net: bool = False,
) -> ChangePlan:
    """Plan the changes of a range of versions.

    Files that the predicate rules out by the bounds of key columns are left out: such a file holds
    both rows of an update, or neither. A net feed also leaves out rows that both its ends show, and
    that a restore in between brought back.
    """
    head, state = versions.head, versions.earlier
    head.spec.require_keys("a change feed")
    if state is None:
        return ChangePlan(
            spec=head.spec, spans=(), times_us={}, has_pairs=True, is_filtered=False, may_lack=False
        )
    first = state
    commit_range = commits_of(log, versions)
    commits = commit_range.commits
    read = partial(commit_range.read_events, log.storage)
    spans: list[ChangeSpan] = []
    sequences = [*_sequences(commits)]
    has_one_sequence = len(sequences) == 1
    for sequence in sequences:
        is_at_head = sequence[-1].version == head.version
        end = head if is_at_head else state.followed_by(sequence)
        if sequence[0].actions.restored:
            spans += _restored_spans(state, end)
        else:
            spans += _spans(read, state, sequence, end, in_sum=is_net and has_one_sequence)
        state = end
    # A restore may begin a segment again, so that its rows have several versions
    has_pairs = has_one_sequence and all(span.ended.next_rows is not None for span in spans)
    if is_net and state.root.epoch != first.root.epoch:
        spans = _without_unchanged(spans, first, state)
    elif is_net and any(span.deleted for span in spans):
        has_pairs = False
    reading = [span.reading(predicate) for span in spans]
    with_files = tuple(span for span in reading if span.files)
    return ChangePlan(
        spec=head.spec,
        spans=with_files,
        times_us=_commit_times(head, commits, spans),
        has_pairs=has_pairs,
        is_filtered=predicate is not None,
        may_lack=any(span.may_lack for span in with_files),
    )


def _commit_times(
    head: Snapshot, commits: Sequence[Commit], spans: Sequence[ChangeSpan]
) -> dict[int, int]:
    """Return the commit times of the versions that changed something."""
    changing: set[int] = set()
    for span in spans:
        changing |= span.versions
    times = CommitTimes(head)
    return {
        commit.version: times.corrected(commit.version, commit.timestamp_us)
        for commit in commits
        if commit.version in changing
    }


def _sequences(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    """Yield sequences of commits that build on each other.

    A restore is a sequence of its own: it builds on an older version.
    """
    sequence: list[Commit] = []
    for commit in commits:
        if sequence and (commit.actions.restored or sequence[0].actions.restored):
            yield sequence
            sequence = []
        sequence.append(commit)
    if sequence:
        yield sequence


def _spans(
    read: ReadEvents,
    earlier: Snapshot,
    commits: Sequence[Commit],
    last: Snapshot,
    *,
    in_sum: bool,
) -> Iterator[ChangeSpan]:
    """Yield the changes of commits that build on each other.

    With `in_sum`, rows that are visible only within the range are left out, unless a key was
    deleted: events do not show with which row the key came back.
    """
    begun = {
        segment.id: commit.version for commit in commits for segment in commit.actions.processed
    }
    first = _first_events(read, commits)
    began = versions_of(begun, first.segment)
    hidden = first.take(first.version == began)
    is_new_end = (first.version != began) & ~_ended_before(earlier, first, began == 0)
    ended = first.take(is_new_end).beyond(hidden)
    never_visible = hidden.marks()
    is_lacking = _may_lack(earlier, ended, begun)
    next_rows = ended.next_rows
    assert next_rows is not None  # the own logs of commits name them
    is_followed = _are_followed(ended, next_rows, begun, is_lacking)
    ended, next_rows = ended.take(is_followed), next_rows.take(is_followed)
    if in_sum and next_rows.is_row.all():
        is_within = versions_of(begun, ended.segment) > 0
        within, ended = ended.take(is_within), ended.take(~is_within)
        ended = ended.beyond(within)
        add_bitmaps(never_visible, within.marks())
    ends = _span_ends(commits, last.version)
    for start, end in pairwise([earlier.version, *ends]):
        ended_here = ended.take((ended.version > start) & (ended.version <= end))
        begun_here = {
            number: version for number, version in begun.items() if start < version <= end
        }
        if not begun_here and not len(ended_here):
            continue
        if end == last.version:
            state = last
        else:
            state = earlier.followed_by(commits[: end - earlier.version])
        unseen = {number: rows for number, rows in never_visible.items() if number in begun_here}
        yield ChangeSpan(
            snapshot=state,
            ended=ended_here,
            begun=begun_here,
            never_visible=unseen,
            may_lack=bool(is_lacking.any()),
        )


def _may_lack(earlier: Snapshot, ended: EndedRows, begun: Mapping[int, int]) -> BoolArray:
    """Return which of the ended rows may have been dropped before the range.

    A compaction that drops a row forgets the event that ended it. A job that began before may end
    the row once more: its event then looks like the first one.
    """
    if earlier.root.floor is None:
        return np.zeros(len(ended), np.bool_)
    lacking = groups_that_lack_rows(earlier)
    segments = np.unique(ended.segment).tolist()
    may_lack = np.zeros(len(segments), np.bool_)
    for position, number in enumerate(segments):
        if number in begun:
            continue
        segment = earlier.segments.get(number)
        may_lack[position] = segment is None or segment.group in lacking
    return may_lack[np.searchsorted(segments, ended.segment)]


def _are_followed(
    ended: EndedRows, next_rows: RowIds, begun: Mapping[int, int], may_lack: BoolArray
) -> BoolArray:
    """Return which ended rows are followed by a row of the same version, or by none.

    Every row that was visible is: raises FormatError for others, unless they may lack.
    """
    is_right: BoolArray = ~next_rows.is_row | (
        versions_of(begun, next_rows.segment) == ended.version
    )
    wrong = np.flatnonzero(~is_right & ~may_lack)
    if len(wrong):
        row = wrong[0]
        raise FormatError(
            f"by a segment log of version {ended.version[row]}, row {ended.offset[row]} of segment "
            f"{ended.segment[row]} is followed by a row that did not come with it; run `opal check`"
        )
    return is_right


def _last_rows(rows: RowIds, through: EndedRows, next_rows: RowIds) -> RowIds:
    """Return the rows that these rows lead to, through others that were replaced, too.

    `through` are the rows between, `next_rows` those that replaced them.
    """
    segments = np.unique(np.concatenate([part.segment for part in (rows, through, next_rows)]))
    known = row_words(segments, through.segment, through.offset)
    leads_to = _words_or_no_row(segments, next_rows)
    reached = _words_or_no_row(segments, rows)
    # Each round takes twice as many steps as the one before
    for _ in range(_MAX_ROUNDS):
        at, is_known = _positions(known, leads_to)
        if not is_known.any():
            break
        leads_to[is_known] = leads_to[at[is_known]]
    else:
        raise FormatError("by segment logs, rows follow each other in a circle; run `opal check`")
    at, is_known = _positions(known, reached)
    reached[is_known] = leads_to[at[is_known]]
    is_row = reached != NO_ROW
    segment = np.where(is_row, segments[np.where(is_row, reached >> 32, 0)], NO_ROW)
    return RowIds(segment=segment, offset=(reached & _OFFSET_BITS).astype(np.uint32).view(np.int32))


def _words_or_no_row(segments: Int64Array, rows: RowIds) -> Int64Array:
    return np.where(rows.is_row, row_words(segments, rows.segment, rows.offset), NO_ROW)


def _positions(words: Int64Array, wanted: Int64Array) -> tuple[IndexArray, BoolArray]:
    """Return the positions of wanted words among sorted ones, and which of them exist."""
    at = np.minimum(np.searchsorted(words, wanted), len(words) - 1)
    return at, words[at] == wanted


def _restored_spans(before: Snapshot, restored: Snapshot) -> Iterator[ChangeSpan]:
    """Yield the changes of a restore: the rows that only one of the two states shows.

    Events and segments do not show them, as the two states do not build on each other.
    """
    changed = difference(before, restored)
    version = restored.version
    if changed.gone:
        ended = EndedRows.at(version, changed.gone)
        yield ChangeSpan(snapshot=before, ended=ended, begun={}, never_visible={})
    if changed.come:
        others = {
            number: BitMap(range(restored.segments[number].rows)) - rows
            for number, rows in changed.come.items()
        }
        yield ChangeSpan(
            snapshot=restored,
            ended=EndedRows.at(version, {}),
            begun=dict.fromkeys(changed.come, version),
            never_visible=others,
        )


def _without_unchanged(
    spans: Sequence[ChangeSpan], earlier: Snapshot, last: Snapshot
) -> list[ChangeSpan]:
    """Return the spans without rows that both states show.

    Such rows ended, and a restore began them again.
    """
    segments = {number for span in spans for number in (*span.begun, *span.marks)}
    before, after = visible_rows(earlier, segments), visible_rows(last, segments)
    unchanged = {number: rows & after[number] for number, rows in before.items() if number in after}
    marks = Marks.of(unchanged)
    changed: list[ChangeSpan] = []
    for span in spans:
        hidden = {**span.never_visible}
        begun_again = {number: rows for number, rows in unchanged.items() if number in span.begun}
        add_bitmaps(hidden, begun_again)
        ended = span.ended.take(~marks.at(span.ended.segment, span.ended.offset))
        changed.append(replace(span, ended=ended, never_visible=hidden))
    return changed


def begun_reads(plan: ChangePlan) -> list[FileRead]:
    """Return reads of the files with rows that began.

    All other rows of the files count as hidden: these are the rows of other segments, and rows that
    no version showed.
    """
    reads: list[FileRead] = []
    for span in plan.spans:
        for file in span.files:
            if span.is_old(file):
                continue
            hidden: Bitmaps = {}
            for number in file.segments:
                if number not in span.begun:
                    hidden[number] = BitMap(range(span.snapshot.segments[number].rows))
                elif number in span.never_visible:
                    hidden[number] = span.never_visible[number]
            read = FileRead(
                storage=span.snapshot.storage,
                spec=plan.spec,
                file=file,
                as_of=None,
                invalid=hidden,
            )
            reads.append(read)
    return reads


def versions_of(begun: Mapping[int, int], segment: Int64Array) -> Versions:
    """Return the version in which the segment of each row began, 0 if it is not known."""
    segments = np.unique(segment)
    versions = np.array([begun.get(number, 0) for number in segments.tolist()], np.int64)
    return versions[np.searchsorted(segments, segment)]


def _first_events(read: ReadEvents, commits: Sequence[Commit]) -> EndedRows:
    """Return the rows with events in some versions, each with its first event.

    Merged logs are left out: they hold older events.
    """
    own = [(commit.version, file) for commit in commits for file in own_logs(commit)]
    with ThreadPoolExecutor(READERS) as pool:
        parts = [*pool.map(read, (file for _, file in own))]
    events = concat_events(parts)
    version = np.repeat(np.array([version for version, _ in own], np.int64), [*map(len, parts)])
    words = row_words(np.unique(events.segment), events.segment, events.offset)
    # A stable sort is fast for logs that are sorted already, and keeps versions ascending
    order = np.argsort(words, kind="stable")
    is_first = np.append(True, np.diff(words[order]) != 0)[: len(order)]
    first = order[is_first]
    rows = events.take(first)
    return EndedRows(
        segment=rows.segment, offset=rows.offset, version=version[first], next_rows=rows.next_rows
    )


def _ended_before(earlier: Snapshot, rows: EndedRows, chosen: BoolArray) -> BoolArray:
    """Return a mask of those chosen rows that had an event in the earlier version."""
    before = np.zeros(len(rows), np.bool_)
    older = rows.take(chosen)
    if not len(older):
        return before
    segments = np.unique(older.segment).tolist()
    # The key store may name rows that were dropped with their file: their segments are missing
    existing = [earlier.segments[number] for number in segments if number in earlier.segments]
    invalid = invalid_rows(earlier, groups={segment.group for segment in existing})
    marks = {segment: invalid[segment] for segment in segments if segment in invalid}
    before[chosen] = Marks.of(marks).at(older.segment, older.offset)
    return before


def _span_ends(commits: Sequence[Commit], last: int) -> list[int]:
    """Return the versions with which spans end.

    They are the versions before a major compaction drops rows, and the last one: the rows of a span
    are in the files of its last version.
    """
    ends = {last}
    for commit in commits:
        rewrite = commit.actions.rewrite
        if rewrite and rewrite.dropped_rows and commit.version > commits[0].version:
            ends.add(commit.version - 1)
    return sorted(ends)
