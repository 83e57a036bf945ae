"""The change feed of the history: what versions did to the rows of the history view, those of the past among them.

A version changes the history of the keys of the rows that it made visible, and of no others; a restore may change that of any. So the key
store tells when the rows of these keys were valid before the version and after it. Rows are read only where that differs.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from opal_lake.data.column_read import read_near
from opal_lake.data.columns import physical_schema, to_fields
from opal_lake.data.data_file import held_names
from opal_lake.data.segment import DataFile
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.schema import SEGMENT, Atomic, Field
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
    """Rows whose time as the valid ones a version changed, as they were in the state before it, or are in the one after it."""

    snapshot: Snapshot
    version: int
    is_after: bool
    times: Intervals


def history_fields(spec: TableSpec, columns: Sequence[str] | None) -> tuple[Field, ...]:
    """The table's columns in a feed of the history."""
    return fields_beside(FEED_COLUMNS | VIEW_COLUMNS, spec, columns, "a feed of the history")


def history_changes(
    log: CommitLog, cache: RunCache, versions: VersionRange, feed: "Changes"
) -> pa.Table:
    """Into memory, in the order of versions. In a net feed a row has its time before the range, and the one after it."""
    spec, fields = versions.head.spec, history_fields(versions.head.spec, feed.columns)
    commits = commits_of(log, versions).commits if versions.earlier is not None else []
    nothing = intervals_of(entries_of_keys(versions.head, cache, np.empty((0, 2), np.uint64)), None)
    sides = [*_sides(cache, versions, commits, is_net=feed.is_net)]
    sides = sides or [_Side(snapshot=versions.head, version=0, is_after=True, times=nothing)]
    times = concat_intervals([side.times for side in sides])
    number = np.repeat(np.arange(len(sides)), [len(side.times.rows) for side in sides])
    version = np.array([side.version for side in sides], np.int64)[number]
    ids = np.stack([times.rows.segment, times.rows.offset.astype(np.int64)], axis=1).astype(
        np.uint64
    )
    order, kinds = labelled(ids, version, np.array([side.is_after for side in sides])[number], feed)
    if feed.is_net:
        changed = _changed_ends(ids[order], times.take(order))
        order, kinds = order[changed], kinds[changed]
    moment = CommitTimes(versions.head).corrected
    told_us = {commit.version: moment(commit.version, commit.timestamp_us) for commit in commits}
    rows = with_times(
        to_fields(_rows_of(sides, number[order], times.take(order), fields, spec), spec, fields),
        times.take(order),
        spec,
    )
    marks = [
        kind_names(kinds),
        pa.array(version[order]),
        pa.array(
            [told_us[number] for number in version[order].tolist()], pa.timestamp("us", "UTC")
        ),
    ]
    return pa.table(
        [*rows.columns, *marks],
        names=[*rows.column_names, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP],
    )


def _sides(
    cache: RunCache, versions: VersionRange, commits: Sequence[Commit], *, is_net: bool
) -> Iterator[_Side]:
    """What cannot be read any more is in none of them; in a net feed, what cannot after its range."""
    if versions.earlier is None:
        return
    last_floor = max(
        (commit.actions.floor for commit in commits if commit.actions.floor is not None),
        default=versions.earlier.root.floor,
    )
    for before, commit, state in _changing_commits(versions.earlier, commits):
        hashes = (
            None if commit.actions.restored else _hashes_of(state, commit.actions.processed_ids)
        )
        floor = last_floor if is_net else state.root.floor
        old, new = (
            intervals_of(entries_of_keys(view, cache, hashes), floor) for view in (before, state)
        )
        gone, came = _differing(old, new)
        yield _Side(snapshot=before, version=commit.version, is_after=False, times=old.take(gone))
        yield _Side(snapshot=state, version=commit.version, is_after=True, times=new.take(came))


def _changing_commits(
    earlier: Snapshot, commits: Sequence[Commit]
) -> Iterator[tuple[Snapshot, Commit, Snapshot]]:
    """Yield the commits that may change the history, between the states before and after each."""
    state = earlier
    for commit in commits:
        before, state = state, state.followed_by([commit], ("runs", "files", "segments", "pending"))
        if commit.actions.processed or commit.actions.restored:
            yield before, commit, state


@dataclass(slots=True, kw_only=True)
class HistoryReads:
    """What a feed of the history reads: files by path, rows by segment, and key-store entries.

    A feed reads the rows that its versions processed, and across a restore the whole key store.
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
            runs = [*before.runs.values(), *state.runs.values()]
            reads.entries += sum(run.entries for run in runs)
            continue
        segments = commit.actions.processed_ids
        reads.files |= {file.path: file for file in _files_of(state, segments)}
        reads.rows |= {number: state.segments[number].rows for number in segments}
    return reads


def _files_of(snapshot: Snapshot, segments: frozenset[int]) -> list[DataFile]:
    return [file for file in snapshot.files.values() if not segments.isdisjoint(file.segments)]


def _hashes_of(snapshot: Snapshot, segments: frozenset[int]) -> Hashes:
    """Of the keys that have rows in some segments."""
    spec = snapshot.spec
    physical = [*dict.fromkeys([*(field.physical for field in spec.keys), SEGMENT])]
    files = _files_of(snapshot, segments)
    all_of = {number: BitMap(range(snapshot.segments[number].rows)) for number in segments}
    with ThreadPoolExecutor(READERS) as pool:
        parts = [
            *pool.map(lambda file: read_near(snapshot.storage, file, spec, physical, all_of), files)
        ]
    rows = pa.concat_tables(
        [physical_schema(spec).empty_table().select(physical), *parts], promote_options="default"
    )
    rows = rows.filter(pa.array(np.isin(rows[SEGMENT].to_numpy(), [*segments])))
    keys = hash_keys(
        [rows[field.physical] for field in spec.keys],
        [field.type for field in spec.keys if isinstance(field.type, Atomic)],
    )
    return np.unique(keys, axis=0)


def _differing(old: Intervals, new: Intervals) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Positions of rows that only one of both has, or that have another end in the other."""
    segments = np.unique(np.concatenate([old.rows.segment, new.rows.segment]))
    words = [row_words(segments, times.rows.segment, times.rows.offset) for times in (old, new)]
    _, in_old, in_new = np.intersect1d(words[0], words[1], assume_unique=True, return_indices=True)
    same = _same_ends(old.take(in_old), new.take(in_new))
    left = [np.ones(len(word), np.bool_) for word in words]
    left[0][in_old[same]] = left[1][in_new[same]] = False
    return np.flatnonzero(left[0]), np.flatnonzero(left[1])


def _same_ends(first: Intervals, second: Intervals) -> npt.NDArray[np.bool_]:
    ends = (first.has_end == second.has_end) & (first.deleted == second.deleted)
    return np.asarray(ends & (~first.has_end | (first.until == second.until)), np.bool_)


def _changed_ends(ids: Hashes, times: Intervals) -> npt.NDArray[np.bool_]:
    """Without the two rows of what ends as it began."""
    position = np.lexsort((ids[:, 1], ids[:, 0]))
    first, second = position[:-1], position[1:]
    is_pair = (ids[first] == ids[second]).all(axis=1)
    first, second = first[is_pair], second[is_pair]
    same, changed = _same_ends(times.take(first), times.take(second)), np.ones(len(ids), np.bool_)
    changed[first[same]] = changed[second[same]] = False
    return changed


def _rows_of(
    sides: Sequence[_Side],
    number: npt.NDArray[np.intp],
    times: Intervals,
    fields: Sequence[Field],
    spec: TableSpec,
) -> pa.Table:
    """The physical columns, each row from the state that it is told of."""
    chosen = [(side, np.flatnonzero(number == index)) for index, side in enumerate(sides)]
    chosen = [(side, positions) for side, positions in chosen if len(positions)]
    parts = [
        rows_of_entries(side.snapshot, times.rows.take(positions), fields)
        for side, positions in chosen
    ]
    empty = (
        physical_schema(spec)
        .empty_table()
        .select([*dict.fromkeys(field.physical for field in fields)])
    )
    held = [part.select(held_names(empty.column_names, part.schema)) for part in parts]
    rows = pa.concat_tables([empty, *held], promote_options="default")
    return rows.take(
        pa.array(
            np.argsort(
                np.concatenate([np.empty(0, np.intp), *(positions for _, positions in chosen)])
            )
        )
    )
