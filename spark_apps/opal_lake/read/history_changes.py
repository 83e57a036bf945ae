"""The change feed of the history view: how versions changed its rows, past rows included.

A version changes the history of a key only if it made rows of the key visible. A restore may change
the history of any key. The key store shows when the rows of such keys were valid before and after
the version. Only rows whose validity differs are read.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from opal_lake.arrays import BoolArray, IndexArray
from opal_lake.data.column_read import read_near
from opal_lake.data.columns import physical_schema, to_fields
from opal_lake.data.data_file import existing_names
from opal_lake.data.segment import DataFile
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.schema import SEGMENT, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.events.segment_log import row_words
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.change_range import VersionRange, commits_of
from opal_lake.read.changed_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    FEED_COLUMNS,
    kind_names,
    labelled,
)
from opal_lake.read.get import Hashes, rows_of_entries
from opal_lake.read.history_view import (
    VIEW_COLUMNS,
    Intervals,
    concat_intervals,
    entries_of_keys,
    intervals_of,
    with_times,
)
from opal_lake.read.result_columns import fields_beside
from opal_lake.storage.protocol import READERS

if TYPE_CHECKING:
    from opal_lake.operations.read import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Rows whose validity a version changed, in the state before or after it."""

    snapshot: Snapshot
    version: int
    is_after: bool
    times: Intervals


def history_fields(spec: TableSpec, columns: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the table's columns in a feed of the history."""
    return fields_beside(FEED_COLUMNS | VIEW_COLUMNS, spec, columns, "a feed of the history")


def history_changes(
    log: CommitLog, cache: RunCache, versions: VersionRange, feed: "Changes"
) -> pa.Table:
    """Read the changes of the history into memory, in the order of their versions.

    A net feed shows a changed row with its validity before the range, and with that after it.
    """
    head, earlier = versions.head, versions.earlier
    fields = history_fields(head.spec, feed.columns)
    commits = [] if earlier is None else commits_of(log, versions).commits
    sides = [*_sides(cache, versions, commits, is_net=feed.is_net)]
    if not sides:
        no_keys = np.empty((0, 2), np.uint64)
        nothing = intervals_of(entries_of_keys(head, cache, no_keys), None)
        sides = [_Side(snapshot=head, version=0, is_after=True, times=nothing)]
    times = concat_intervals([side.times for side in sides])
    # From here on, arrays have an element for each row of all sides
    row_counts = [len(side.times.rows) for side in sides]
    side_of_row = np.repeat(np.arange(len(sides)), row_counts)
    version = np.array([side.version for side in sides], np.int64)[side_of_row]
    after = np.array([side.is_after for side in sides])[side_of_row]
    row_ids = [times.rows.segment, times.rows.offset.astype(np.int64)]
    ids = np.stack(row_ids, axis=1).astype(np.uint64)
    order, kinds = labelled(ids, version, after, feed)
    if feed.is_net:
        changed = _changed_ends(ids[order], times.take(order))
        order, kinds = order[changed], kinds[changed]
    ordered_times = times.take(order)
    stored = _rows_of(sides, side_of_row[order], ordered_times, fields, head.spec)
    rows = with_times(to_fields(stored, head.spec, fields), ordered_times, head.spec)
    corrected = CommitTimes(head).corrected
    committed_us = {
        commit.version: corrected(commit.version, commit.timestamp_us) for commit in commits
    }
    moments = [committed_us[committed] for committed in version[order].tolist()]
    marks = [
        kind_names(kinds),
        pa.array(version[order]),
        pa.array(moments, pa.timestamp("us", "UTC")),
    ]
    return pa.table(
        [*rows.columns, *marks],
        names=[*rows.column_names, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP],
    )


def _sides(
    cache: RunCache, versions: VersionRange, commits: Sequence[Commit], *, is_net: bool
) -> Iterator[_Side]:
    """Yield the rows that each version changed: as they were before it, and after it.

    Rows that ended up to the floor are left out. In a net feed, this is the floor at its last
    version.
    """
    if versions.earlier is None:
        return
    last_floor = versions.earlier.root.floor
    floors = [commit.actions.floor for commit in commits if commit.actions.floor is not None]
    if floors:
        last_floor = max(floors)
    for before, commit, state in _changing_commits(versions.earlier, commits):
        hashes = None  # all keys
        if not commit.actions.restored:
            hashes = _hashes_of(state, commit.actions.processed_ids)
        floor = last_floor if is_net else state.root.floor
        old = intervals_of(entries_of_keys(before, cache, hashes), floor)
        new = intervals_of(entries_of_keys(state, cache, hashes), floor)
        gone, came = _differing(old, new)
        yield _Side(snapshot=before, version=commit.version, is_after=False, times=old.take(gone))
        yield _Side(snapshot=state, version=commit.version, is_after=True, times=new.take(came))


def _changing_commits(
    earlier: Snapshot, commits: Sequence[Commit]
) -> Iterator[tuple[Snapshot, Commit, Snapshot]]:
    """Yield the commits that may change the history, with the states before and after."""
    state = earlier
    for commit in commits:
        before = state
        state = before.followed_by([commit], ("runs", "files", "segments", "pending"))
        if commit.actions.processed or commit.actions.restored:
            yield before, commit, state


@dataclass(slots=True, kw_only=True)
class HistoryReads:
    """The reads of a feed of the history: files by path, rows by segment, and entries.

    A feed reads the rows that its versions processed. For a restore, it also reads the whole key
    store: `entries` counts the entries of its runs.
    """

    files: dict[str, DataFile] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    entries: int = 0


def planned_reads(log: CommitLog, versions: VersionRange) -> HistoryReads:
    """Return what a feed of the history would read; no data file is opened."""
    reads = HistoryReads()
    if versions.earlier is None:
        return reads
    commits = commits_of(log, versions).commits
    for before, commit, state in _changing_commits(versions.earlier, commits):
        if commit.actions.restored:
            # A restore may change the history of any key
            runs = [*before.runs.values(), *state.runs.values()]
            reads.entries += sum(run.entries for run in runs)
            continue
        segments = commit.actions.processed_ids
        for file in _files_of(state, segments):
            reads.files[file.path] = file
        for number in segments:
            reads.rows[number] = state.segments[number].rows
    return reads


def _files_of(snapshot: Snapshot, segments: frozenset[int]) -> list[DataFile]:
    """Return the files that hold rows of some segments."""
    return [file for file in snapshot.files.values() if not segments.isdisjoint(file.segments)]


def _hashes_of(snapshot: Snapshot, segments: frozenset[int]) -> Hashes:
    """Return the hashes of the keys that have rows in some segments, each once."""
    spec = snapshot.spec
    physical = [*(field.physical for field in spec.keys), SEGMENT]
    files = _files_of(snapshot, segments)
    wanted = {number: BitMap(range(snapshot.segments[number].rows)) for number in segments}

    def read(file: DataFile) -> pa.Table:
        return read_near(snapshot.storage, file, spec, physical, wanted)

    with ThreadPoolExecutor(READERS) as pool:
        parts = [*pool.map(read, files)]
    empty = physical_schema(spec).empty_table().select(physical)
    rows = pa.concat_tables([empty, *parts], promote_options="default")
    # A file may also hold rows of other segments
    is_of_segments = np.isin(rows[SEGMENT].to_numpy(), [*segments])
    rows = rows.filter(pa.array(is_of_segments))
    keys = hash_keys([rows[field.physical] for field in spec.keys], spec.key_types)
    return np.unique(keys, axis=0)


def _differing(old: Intervals, new: Intervals) -> tuple[IndexArray, IndexArray]:
    """Return the positions of rows that only `old` has, and that only `new` has.

    A row with another end counts as another row.
    """
    segments = np.unique(np.concatenate([old.rows.segment, new.rows.segment]))
    old_words = row_words(segments, old.rows.segment, old.rows.offset)
    new_words = row_words(segments, new.rows.segment, new.rows.offset)
    # Positions of the rows that both have
    _, in_old, in_new = np.intersect1d(
        old_words, new_words, assume_unique=True, return_indices=True
    )
    same = _same_ends(old.take(in_old), new.take(in_new))
    has_gone = np.ones(len(old_words), np.bool_)
    has_gone[in_old[same]] = False
    has_come = np.ones(len(new_words), np.bool_)
    has_come[in_new[same]] = False
    return np.flatnonzero(has_gone), np.flatnonzero(has_come)


def _same_ends(first: Intervals, second: Intervals) -> BoolArray:
    """Return which rows of `first` end as the rows at the same positions of `second`."""
    same_kind = (first.has_end == second.has_end) & (first.deleted == second.deleted)
    same_until = ~first.has_end | (first.until == second.until)
    return np.asarray(same_kind & same_until, np.bool_)


def _changed_ends(ids: Hashes, times: Intervals) -> BoolArray:
    """Return a mask of the rows to show in a net feed.

    A row may come twice, from before and after the range. If its end is the same, neither is shown.
    """
    position = np.lexsort((ids[:, 1], ids[:, 0]))
    first, second = position[:-1], position[1:]
    is_pair = (ids[first] == ids[second]).all(axis=1)
    first, second = first[is_pair], second[is_pair]
    same = _same_ends(times.take(first), times.take(second))
    changed = np.ones(len(ids), np.bool_)
    changed[first[same]] = False
    changed[second[same]] = False
    return changed


def _rows_of(
    sides: Sequence[_Side],
    side_of_row: IndexArray,
    times: Intervals,
    fields: Sequence[Field],
    spec: TableSpec,
) -> pa.Table:
    """Return the physical columns of rows, each read from the state of its side.

    `side_of_row` has the position of each row's side.
    """
    physical = [*dict.fromkeys(field.physical for field in fields)]
    tables = [physical_schema(spec).empty_table().select(physical)]
    positions_read = [np.empty(0, np.intp)]
    for index, side in enumerate(sides):
        positions = np.flatnonzero(side_of_row == index)
        if len(positions):
            state = side.snapshot.read_as(spec)
            rows = rows_of_entries(state, times.rows.take(positions), fields)
            tables.append(rows.select(existing_names(physical, rows.schema)))
            positions_read.append(positions)
    rows = pa.concat_tables(tables, promote_options="default")
    # From the order in which rows were read back to that of `side_of_row`
    order = np.argsort(np.concatenate(positions_read))
    return rows.take(pa.array(order))
