"""The partitions of a micro-batch: files of rows, or versions of a change feed.

A stream of rows is cut by files: which rows of a file are read depends only on the file's bits. A
change feed is cut by versions, because the two rows of an update lie in two files. A large version
that only inserted rows, such as a first load, is cut by files, too.
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
    """The work that one task should get: bytes of files, or changed rows of a feed."""

    task_bytes: int = 64 << 20
    task_rows: int = 1 << 20


@dataclass(frozen=True)
class FilesPartition(InputPartition):
    """A partition of the rows of some files.

    In a change feed all rows are inserts: `inserted` are their version and its commit time in
    microseconds. In a stream of rows it is None.
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


def files_of_tasks(reads: Sequence[FileRead], tuning: Tuning) -> list[tuple[FileRead, ...]]:
    """Return the files of each task: a large one, or several small ones."""
    tasks: list[list[FileRead]] = []
    remaining_bytes = 0
    for read in reads:
        if not tasks or read.file.size > remaining_bytes:
            # A file larger than a task's bytes has a task of its own
            tasks.append([])
            remaining_bytes = tuning.task_bytes
        tasks[-1].append(read)
        remaining_bytes -= read.file.size
    return [tuple(files) for files in tasks]


def feed_partitions(
    log: CommitLog,
    commits: Sequence[Commit],
    fields: tuple[Field, ...],
    feed: Changes,
    tuning: Tuning,
) -> list[InputPartition]:
    """Return the partitions of a change feed."""
    commit_of_version = {commit.version: commit for commit in commits}
    partitions: list[InputPartition] = []
    for first, last in versions_of_tasks(commits, tuning):
        commit = commit_of_version[first]
        is_large = _changed_rows(commit) > tuning.task_rows
        insert_partitions = []
        # Planning a version reads its events, so a version with many of them is not planned here
        if is_large and _ended_rows(commit) <= tuning.task_rows:
            insert_partitions = _insert_partitions(log, first, fields, tuning)
        if insert_partitions:
            partitions += insert_partitions
        else:
            partitions.append(VersionsPartition(log, first, last, fields, feed))
    return partitions


def _insert_partitions(
    log: CommitLog, version: int, fields: tuple[Field, ...], tuning: Tuning
) -> list[FilesPartition]:
    """Return a version's partitions if it only inserted rows, otherwise none."""
    plan = plan_changes(log, version_range(log, version, version))
    if any(len(span.ended) for span in plan.spans):
        return []
    inserted = (version, plan.times_us[version])
    tasks = files_of_tasks(begun_reads(plan), tuning)
    return [FilesPartition(files, fields, inserted) for files in tasks]


def versions_of_tasks(commits: Sequence[Commit], tuning: Tuning) -> list[tuple[int, int]]:
    """Return each task's first and last version; small versions share a task.

    Versions that change nothing are left out.
    """
    spans: list[tuple[int, int]] = []
    remaining_rows = 0
    for commit in commits:
        if not commit.changes_view:
            continue
        rows = _changed_rows(commit)
        if spans and rows <= remaining_rows:
            first, _ = spans[-1]
            spans[-1] = (first, commit.version)
        else:
            spans.append((commit.version, commit.version))
            remaining_rows = tuning.task_rows
        remaining_rows -= rows
    return spans


def _changed_rows(commit: Commit) -> int:
    """Estimate how many rows became visible or hidden with a commit.

    The commit's result counts the rows that became visible.
    """
    counts = commit.result.get("counts", {})
    begun = sum(int(counts.get(name, 0)) for name in ("rows", "rows_restored", "rows_removed"))
    return begun + _ended_rows(commit)


def _ended_rows(commit: Commit) -> int:
    """Estimate how many rows a commit hid, including rows that were never visible."""
    return sum(log.events for log in commit.actions.add_logs if log.version < 0)
