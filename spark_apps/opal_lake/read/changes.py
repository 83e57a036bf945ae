"""Rows that began and ended in a range of versions (FORMAT, §10). No feed is stored for it.

A row begins in the commit that processed its segment. It ends in the commit that has its first
event; the event names the row that replaced it. So the two rows of an update are known without
their keys. A row that ends in the version in which it begins was never visible. In a commit of a
rewrite no row begins or ends. `changed_rows` labels these rows as inserts, updates and deletes.
"""

import functools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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

Versions = Int64Array
ReadEvents = Callable[[LogFile], Events]  # returns events with their next rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLimits:
    """The limits up to which one process reads a feed faster than Spark.

    `bytes` bounds the files that are in memory as a whole, and all bytes that are fetched.
    `local_bytes` bounds the fetched bytes instead if the files are on this machine.
    """

    files: int = 256
    rows: int = 300_000
    bytes: int = 256 << 20
    local_bytes: int = 1 << 30


IN_PROCESS = FeedLimits()


@dataclass(frozen=True, kw_only=True)
class EndedRows:
    """Rows and the version that ended each, sorted by segment and offset.

    `next_rows` are the rows that replaced them, NO_ROW for a row whose key was deleted. It is None
    if a restore ended the rows.
    """

    segment: Int64Array
    offset: Int32Array
    version: Versions
    next_rows: RowIds | None = None

    def __len__(self) -> int:
        return len(self.segment)

    @classmethod
    def at(cls, version: int, rows: Bitmaps) -> "EndedRows":
        """Return rows that ended in one version, with unknown next rows."""
        numbers = sorted(rows)
        counts = [len(rows[number]) for number in numbers]
        offsets = [np.empty(0, np.uint32)]
        offsets += [offsets_of(rows[number]) for number in numbers]
        segment = np.repeat(np.array(numbers, np.int64), counts)
        return cls(
            segment=segment,
            offset=np.concatenate(offsets).astype(np.int32),
            version=np.full(len(segment), version, np.int64),
        )

    def take(self, rows: BoolArray | IndexArray) -> "EndedRows":
        """Return the rows of a mask, or those at some positions."""
        next_rows = None if self.next_rows is None else self.next_rows.take(rows)
        return EndedRows(
            segment=self.segment[rows],
            offset=self.offset[rows],
            version=self.version[rows],
            next_rows=next_rows,
        )

    def marks(self) -> Bitmaps:
        """Return the rows as bitmaps by segment."""
        bitmaps: Bitmaps = {}
        add_rows(bitmaps, self.segment, self.offset)
        return bitmaps

    def at_rows(self, segment: Int64Array, offset: Int32Array) -> "EndedRows":
        """Return the rows with some row ids, in their order; all must be among these."""
        wanted = row_words(self._segments, segment, offset)
        return self.take(np.searchsorted(self._words, wanted))

    def beyond(self, hidden: "EndedRows") -> "EndedRows":
        """Return these rows with next rows that are not hidden: the ones that followed."""
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
    """The changes of consecutive versions.

    - `files` are files of the snapshot; they hold the changed rows.
    - `begun` is the version in which the rows of a segment began, by segment.
    - `never_visible` are the rows of these segments that no version showed.
    - `may_lack` is true if some ended rows may be in no file.
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
        """The ended rows that no row replaced; all ended rows if next rows are unknown."""
        next_rows = self.ended.next_rows
        if next_rows is None:
            return self.marks
        return self.ended.take(~next_rows.is_row).marks()

    @property
    def versions(self) -> set[int]:
        """The versions in which a row began or ended."""
        return {*self.begun.values(), *np.unique(self.ended.version).tolist()}

    @property
    def concerned_rows(self) -> int:
        """An upper bound of the number of rows that began or ended."""
        begun_rows = sum(self.snapshot.segments[number].rows for number in self.begun)
        return len(self.ended) + begun_rows

    def is_old(self, file: DataFile) -> bool:
        """Return whether no row of the file has begun."""
        return self.begun.keys().isdisjoint(file.segments)

    def is_whole(self, file: DataFile) -> bool:
        """Return whether a read has the whole file in memory, not only pages of it."""
        return not self.is_old(file) or self.snapshot.spec.file_format != "parquet"

    def bytes_read(self, file: DataFile) -> int:
        """Return about how many bytes of a file are read at most."""
        if self.is_whole(file):
            return file.size
        ended_rows = 0
        for segment in file.segments:
            if segment in self.marks:
                ended_rows += len(self.marks[segment])
        # At worst, each ended row is on a page of its own in every column
        pages = ended_rows * len(self.snapshot.spec.schema.fields)
        return min(file.size, pages * PAGE_BYTES)

    def reading(self, predicate: Predicate | None) -> "ChangeSpan":
        """Return the span with the files of its rows that a predicate does not rule out."""
        concerned = {*self.begun, *self.marks}
        all_files = self.snapshot.files.values()
        files = [file for file in all_files if not concerned.isdisjoint(file.segments)]
        files_read = files_by_keys(files, predicate, self.snapshot.spec)
        segments_read: set[int] = set()
        for file in files_read:
            segments_read.update(file.segments)
        hidden = _of_segments(self.never_visible, segments_read)
        return replace(self, files=files_read, never_visible=hidden)


@dataclass(frozen=True, kw_only=True)
class ChangePlan:
    """The changes of a range of versions, with their commit times.

    - `has_pairs` is true if the spans show which two rows are an update: an ended row and its next
      row. In a net feed, a key then has no other rows. If it is false, equal keys show the two rows
      of an update.
    - `is_filtered` is true if a predicate may have left out the file of one row of an update.
    - `may_lack` is true if some ended rows may be in no file. The row that replaced such a row is
      an insert; only a reader of the rows can find that out.
    """

    spec: TableSpec
    spans: tuple[ChangeSpan, ...]
    times_us: Mapping[int, int]
    has_pairs: bool
    is_filtered: bool
    may_lack: bool

    @functools.cached_property
    def updated(self) -> Bitmaps:
        """The rows that replaced another row."""
        next_rows = [span.ended.next_rows for span in self.spans]
        rows = concat_ids([ids for ids in next_rows if ids is not None])
        replacing = rows.take(rows.is_row)
        bitmaps: Bitmaps = {}
        add_rows(bitmaps, replacing.segment, replacing.offset)
        return bitmaps

    def is_within(self, limits: FeedLimits) -> bool:
        """Return whether the files and rows to read are within the limits."""
        files = sum(len(span.files) for span in self.spans)
        rows = sum(span.concerned_rows for span in self.spans)
        # Checked first: to look at each of many files takes long
        if files > limits.files or rows > limits.rows:
            return False
        whole_bytes = read_bytes = 0
        for span in self.spans:
            for file in span.files:
                read_bytes += span.bytes_read(file)
                if span.is_whole(file):
                    whole_bytes += file.size
        are_local = all(is_local(span.snapshot.storage.uri) for span in self.spans)
        max_read_bytes = limits.local_bytes if are_local else limits.bytes
        return whole_bytes <= limits.bytes and read_bytes <= max_read_bytes


def _of_segments(rows: Mapping[int, BitMap], segments: Container[int]) -> Bitmaps:
    """Return the bitmaps of the rows of some segments."""
    return {segment: bitmap for segment, bitmap in rows.items() if segment in segments}


def plan_changes(
    log: CommitLog,
    versions: VersionRange,
    predicate: Predicate | None = None,
    *,
    is_net: bool = False,
) -> ChangePlan:
    """Plan the changes of a range of versions.

    Files that the predicate rules out by the bounds of key columns are left out. Both rows of an
    update have the same key, so that both are in such files, or neither. A net feed also leaves out
    rows that ended and that a later restore brought back.
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
    # After a restore a segment may begin again: its rows then began in several versions
    has_pairs = has_one_sequence and all(span.ended.next_rows is not None for span in spans)
    if is_net and state.root.epoch != first.root.epoch:
        spans = _without_unchanged(spans, first, state)
    elif is_net and any(span.deleted for span in spans):
        has_pairs = False
    # Rows of all versions are read with the same columns
    reading = [
        replace(span, snapshot=span.snapshot.read_as(head.spec)).reading(predicate)
        for span in spans
    ]
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
    """Return the commit times of the versions in which rows began or ended."""
    changing: set[int] = set()
    for span in spans:
        changing |= span.versions
    times = CommitTimes(head)
    times_us: dict[int, int] = {}
    for commit in commits:
        if commit.version in changing:
            times_us[commit.version] = times.corrected(commit.version, commit.timestamp_us)
    return times_us


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

    With `in_sum`, rows that are visible only within the range are left out. They are not if a key
    was deleted in the range: events do not show with which row the key came back.
    """
    begun: dict[int, int] = {}
    for commit in commits:
        begun |= dict.fromkeys(commit.actions.processed_ids, commit.version)
    first_ends = _first_events(read, commits)
    begin_version = versions_of(begun, first_ends.segment)
    # These rows ended in the version in which they began
    is_hidden = first_ends.version == begin_version
    hidden = first_ends.take(is_hidden)
    ended_before = _ended_before(earlier, first_ends, begin_version == 0)
    ended = first_ends.take(~is_hidden & ~ended_before).beyond(hidden)
    never_visible = hidden.marks()
    is_lacking = _may_lack(earlier, ended, begun)
    next_rows = ended.next_rows
    assert next_rows is not None  # the own logs of commits name them
    is_followed = _are_followed(ended, next_rows, begun, is_lacking)
    ended, next_rows = ended.take(is_followed), next_rows.take(is_followed)
    if in_sum and next_rows.is_row.all():
        begun_within = versions_of(begun, ended.segment) > 0
        only_within = ended.take(begun_within)
        ended = ended.take(~begun_within).beyond(only_within)
        add_bitmaps(never_visible, only_within.marks())
    ends = _span_ends(commits, last.version)
    for start, end in pairwise([earlier.version, *ends]):
        ended_here = ended.take((ended.version > start) & (ended.version <= end))
        begun_here = {
            segment: version for segment, version in begun.items() if start < version <= end
        }
        if not begun_here and not len(ended_here):
            continue
        if end == last.version:
            state = last
        else:
            state = earlier.followed_by(commits[: end - earlier.version])
        yield ChangeSpan(
            snapshot=state,
            ended=ended_here,
            begun=begun_here,
            never_visible=_of_segments(never_visible, begun_here),
            may_lack=bool(is_lacking.any()),
        )


def _may_lack(earlier: Snapshot, ended: EndedRows, begun: Mapping[int, int]) -> BoolArray:
    """Return a mask of the ended rows that may have been dropped before the range.

    A compaction that drops a row also drops the event that ended it. A job that began before the
    compaction may write another event of the row, which then looks like the first one.
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
    """Return which ended rows have no next row, or one that began in the same version.

    This is true of every row that was visible. Raises FormatError for any other row, unless
    `may_lack` is true for it.
    """
    came_with_it = versions_of(begun, next_rows.segment) == ended.version
    is_right: BoolArray = ~next_rows.is_row | came_with_it
    wrong = np.flatnonzero(~is_right & ~may_lack)
    if len(wrong):
        row = wrong[0]
        raise FormatError(
            f"a segment log of version {ended.version[row]} says that row {ended.offset[row]} of "
            f"segment {ended.segment[row]} was replaced by a row of another version; "
            "run `opal check`"
        )
    return is_right


def _last_rows(rows: RowIds, through: EndedRows, next_rows: RowIds) -> RowIds:
    """Return the last row of the chain of replacements that each of `rows` begins.

    `next_rows` are the rows that replaced `through`, in their order. A row that is not among
    `through` ends the chain.
    """
    segments = np.unique(np.concatenate([part.segment for part in (rows, through, next_rows)]))
    # A word is the position of a row's segment among `segments`, and the row's offset
    replaced = row_words(segments, through.segment, through.offset)
    leads_to = _words_or_no_row(segments, next_rows)
    last = _words_or_no_row(segments, rows)
    # Each round takes twice as many steps along the chains as the one before
    for _ in range(_MAX_ROUNDS):
        position, is_replaced = _positions(replaced, leads_to)
        if not is_replaced.any():
            break
        leads_to[is_replaced] = leads_to[position[is_replaced]]
    else:
        raise FormatError(
            "segment logs say that rows replaced each other in a circle; run `opal check`"
        )
    position, is_replaced = _positions(replaced, last)
    last[is_replaced] = leads_to[position[is_replaced]]
    is_row = last != NO_ROW
    segment_position = np.where(is_row, last >> 32, 0)
    segment = np.where(is_row, segments[segment_position], NO_ROW)
    offset = (last & _OFFSET_BITS).astype(np.uint32).view(np.int32)
    return RowIds(segment=segment, offset=offset)


def _words_or_no_row(segments: Int64Array, rows: RowIds) -> Int64Array:
    """Return the word of each row; NO_ROW for an id of no row."""
    return np.where(rows.is_row, row_words(segments, rows.segment, rows.offset), NO_ROW)


def _positions(words: Int64Array, wanted: Int64Array) -> tuple[IndexArray, BoolArray]:
    """Return the positions of wanted words among sorted ones, and which exist."""
    at = np.minimum(np.searchsorted(words, wanted), len(words) - 1)
    return at, words[at] == wanted


def _restored_spans(before: Snapshot, restored: Snapshot) -> Iterator[ChangeSpan]:
    """Yield the changes of a restore: the rows that only one of the two states shows.

    Commits do not list these rows, because the two states do not build on each other.
    """
    changed = difference(before, restored)
    version = restored.version
    if changed.gone:
        ended = EndedRows.at(version, changed.gone)
        yield ChangeSpan(snapshot=before, ended=ended, begun={}, never_visible={})
    if changed.come:
        # All other rows of the segments did not begin
        never_visible: Bitmaps = {}
        for number, rows in changed.come.items():
            all_rows = BitMap(range(restored.segments[number].rows))
            never_visible[number] = all_rows - rows
        yield ChangeSpan(
            snapshot=restored,
            ended=EndedRows.at(version, {}),
            begun=dict.fromkeys(changed.come, version),
            never_visible=never_visible,
        )


def _without_unchanged(
    spans: Sequence[ChangeSpan], earlier: Snapshot, last: Snapshot
) -> list[ChangeSpan]:
    """Return the spans without rows that both states show.

    Such rows ended, and a restore began them again.
    """
    segments: set[int] = set()
    for span in spans:
        segments |= span.begun.keys() | span.marks.keys()
    before, after = visible_rows(earlier, segments), visible_rows(last, segments)
    unchanged: Bitmaps = {}
    for number in before.keys() & after.keys():
        unchanged[number] = before[number] & after[number]
    marks = Marks.of(unchanged)
    changed: list[ChangeSpan] = []
    for span in spans:
        hidden = {**span.never_visible}
        add_bitmaps(hidden, _of_segments(unchanged, span.begun))
        ended = span.ended.take(~marks.at(span.ended.segment, span.ended.offset))
        changed.append(replace(span, ended=ended, never_visible=hidden))
    return changed


def begun_reads(plan: ChangePlan) -> list[FileRead]:
    """Return the reads of files with rows that began.

    All other rows of these files are hidden: rows of other segments, and rows that no version
    showed.
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
    """Return the version in which each row's segment began; 0 if `begun` lacks it."""
    segments = np.unique(segment)
    versions = np.array([begun.get(number, 0) for number in segments.tolist()], np.int64)
    return versions[np.searchsorted(segments, segment)]


def _first_events(read: ReadEvents, commits: Sequence[Commit]) -> EndedRows:
    """Return the rows with events in some commits, each with its first event.

    Merged logs are left out: they hold older events.
    """
    logs: list[LogFile] = []
    versions: list[int] = []
    for commit in commits:
        for log in own_logs(commit):
            logs.append(log)
            versions.append(commit.version)
    with ThreadPoolExecutor(READERS) as pool:
        parts = [*pool.map(read, logs)]
    events = concat_events(parts)
    counts = [len(part) for part in parts]
    version_of_event = np.repeat(np.array(versions, np.int64), counts)
    words = row_words(np.unique(events.segment), events.segment, events.offset)
    # A stable sort is fast for logs that are sorted already, and keeps versions ascending
    order = np.argsort(words, kind="stable")
    is_first_of_row = np.append(True, np.diff(words[order]) != 0)[: len(order)]
    chosen = order[is_first_of_row]
    first = events.take(chosen)
    return EndedRows(
        segment=first.segment,
        offset=first.offset,
        version=version_of_event[chosen],
        next_rows=first.next_rows,
    )


def _ended_before(earlier: Snapshot, rows: EndedRows, chosen: BoolArray) -> BoolArray:
    """Return a mask of the chosen rows that had an event at the earlier version."""
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
    """Return the last version of each span, ascending.

    The rows of a span must be in the files of its last version. So a span ends before each major
    compaction that drops rows, and with version `last`.
    """
    ends = {last}
    for commit in commits:
        rewrite = commit.actions.rewrite
        if rewrite and rewrite.dropped_rows and commit.version > commits[0].version:
            ends.add(commit.version - 1)
    return sorted(ends)
