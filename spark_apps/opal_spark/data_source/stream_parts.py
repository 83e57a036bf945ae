"""The partitions of a micro-batch: files of rows, or versions of a change feed.

Only bits distinguish a row from the others of its file, so rows are cut by files. The two rows of
an update lie in two files, so a change feed is cut by versions; but by files where a large version,
as a first load, ended no row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from opal_lake.definition.schema import Field
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.operations.read import Changes
from opal_lake.read.change_range import version_range
from opal_lake.read.changed_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    INSERT,
    read_changes,
)
from opal_lake.read.changes import begun_reads, plan_changes
from opal_lake.read.read import FileRead, read_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The work of one task: bytes of files, or changed rows of a feed."""

    task_bytes: int = 64 << 20
    task_rows: int = 1 << 20


@dataclass(frozen=True)
class FilesPartition(InputPartition):
    """A partition of the rows of some files.

    `inserted` are the version and the time of the inserts of a change feed; None in a stream of
    rows.
    """

    reads: tuple[FileRead, ...]
    fields: tuple[Field, ...]
    inserted: tuple[int, int] | None = None

    def tables(self) -> Iterator[pa.Table]:
        for read in self.reads:
            rows = read_fields(read, self.fields)
            if self.inserted is not None:
                rows = _as_inserts(rows, *self.inserted)
            yield rows


@dataclass(frozen=True)
class VersionsPartition(InputPartition):
    """A partition of the changes of the versions `first` to `last`."""

    log: CommitLog
    first: int
    last: int
    fields: tuple[Field, ...]
    feed: Changes

    def tables(self) -> Iterator[pa.Table]:
        plan = plan_changes(self.log, version_range(self.log, self.first, self.last))
        yield read_changes(plan, self.feed, self.fields)


def _as_inserts(rows: pa.Table, version: int, time_us: int) -> pa.Table:
    """Add the columns of a change feed to inserted rows."""
    count = rows.num_rows
    change_types = pa.repeat(pa.scalar(INSERT), count)
    versions = pa.repeat(pa.scalar(version, pa.int64()), count)
    times = pa.repeat(pa.scalar(time_us, pa.timestamp("us", "UTC")), count)
    columns = [*rows.columns, change_types, versions, times]
    names = [*rows.column_names, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]
    return pa.table(columns, names=names)


def by_size(reads: Sequence[FileRead], tuning: Tuning) -> list[tuple[FileRead, ...]]:
    """Return the files of each task: a large one, or several small ones."""
    tasks: list[list[FileRead]] = []
    room = 0
    for read in reads:
        if not tasks or read.file.size > room:
            # A file larger than a task's bytes has a task of its own
            tasks.append([])
            room = tuning.task_bytes
        tasks[-1].append(read)
        room -= read.file.size
    return [tuple(files) for files in tasks]


def of_versions(
    log: CommitLog,
    commits: Sequence[Commit],
    fields: tuple[Field, ...],
    feed: Changes,
    tuning: Tuning,
) -> list[InputPartition]:
    """Return the partitions of a change feed."""
    by_version = {commit.version: commit for commit in commits}
    partitions: list[InputPartition] = []
    for first, last in by_versions(commits, tuning):
        commit = by_version[first]
        is_large = _changed_rows(commit) > tuning.task_rows
        inserts = []
        # To plan a version reads its events: not where they are many
        if is_large and _ended_rows(commit) <= tuning.task_rows:
            inserts = _inserts(log, first, fields, tuning)
        partitions += inserts or [VersionsPartition(log, first, last, fields, feed)]
    return partitions


def _inserts(
    log: CommitLog, version: int, fields: tuple[Field, ...], tuning: Tuning
) -> list[FilesPartition]:
    """Return a version's partitions if it only inserted rows, otherwise none."""
    plan = plan_changes(log, version_range(log, version, version))
    if any(len(span.ended) for span in plan.spans):
        return []
    inserted = (version, plan.times_us[version])
    tasks = by_size(begun_reads(plan), tuning)
    return [FilesPartition(files, fields, inserted) for files in tasks]


def by_versions(commits: Sequence[Commit], tuning: Tuning) -> list[tuple[int, int]]:
    """Return each task's first and last version; small versions share a task.

    Versions that change nothing are left out.
    """
    spans: list[tuple[int, int]] = []
    room = 0
    for commit in commits:
        if not commit.changes_view:
            continue
        rows = _changed_rows(commit)
        if spans and rows <= room:
            first, _ = spans[-1]
            spans[-1] = (first, commit.version)
        else:
            spans.append((commit.version, commit.version))
            room = tuning.task_rows
        room -= rows
    return spans


def _changed_rows(commit: Commit) -> int:
    """Estimate the rows that a commit showed, by its result, and hid, by its logs."""
    counts = commit.result.get("counts", {})
    begun = sum(int(counts.get(name, 0)) for name in ("rows", "rows_restored", "rows_removed"))
    return begun + _ended_rows(commit)


def _ended_rows(commit: Commit) -> int:
    """Estimate the rows that a commit hid, among them those that no version showed."""
    return sum(log.events for log in commit.actions.add_logs if log.version < 0)
