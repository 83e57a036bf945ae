"""The partitions of a micro-batch: files of rows, or versions of a change feed.

A row is told from the others of its file by bits alone, so rows are cut by files. The two rows of an update lie in two files, so a change
feed is cut by versions; but by files where a large one, as a first load, ended no row.
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

TASK_BYTES = 64 << 20
TASK_ROWS = 1 << 20


@dataclass(frozen=True)
class FilesPartition(InputPartition):
    """Rows of some files. `inserted` are the version and the time that a change feed says of each; None in a stream of rows."""

    reads: tuple[FileRead, ...]
    fields: tuple[Field, ...]
    inserted: tuple[int, int] | None = None

    def tables(self) -> Iterator[pa.Table]:
        for read in self.reads:
            rows = read_fields(read, self.fields)
            yield rows if self.inserted is None else _with_marks(rows, *self.inserted)


@dataclass(frozen=True)
class VersionsPartition(InputPartition):
    """The changes of the versions `first` to `last`."""

    log: CommitLog
    first: int
    last: int
    fields: tuple[Field, ...]
    feed: Changes

    def tables(self) -> Iterator[pa.Table]:
        plan = plan_changes(self.log, version_range(self.log, self.first, self.last))
        yield read_changes(plan, self.feed, self.fields)


def _with_marks(rows: pa.Table, version: int, time_us: int) -> pa.Table:
    """Every row as an insert."""
    values = [
        pa.scalar(INSERT),
        pa.scalar(version, pa.int64()),
        pa.scalar(time_us, pa.timestamp("us", "UTC")),
    ]
    names = [*rows.column_names, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]
    return pa.table(
        [*rows.columns, *(pa.repeat(value, rows.num_rows) for value in values)], names=names
    )


def by_size(reads: Sequence[FileRead]) -> list[tuple[FileRead, ...]]:
    """Which files one task reads: a large one, or several small ones."""
    bins: list[list[FileRead]] = []
    room = 0
    for read in reads:
        if not bins or read.file.size > room:
            bins.append([])
            room = TASK_BYTES
        bins[-1].append(read)
        room -= read.file.size
    return [tuple(files) for files in bins]


def of_versions(
    log: CommitLog, commits: Sequence[Commit], fields: tuple[Field, ...], feed: Changes
) -> list[InputPartition]:
    """The tasks of a change feed."""
    by_version, parts = {commit.version: commit for commit in commits}, list[InputPartition]()
    for first, last in by_versions(commits):
        is_large = _changes_about(by_version[first]) > TASK_ROWS >= _ended_about(by_version[first])
        inserts = _inserts(log, first, fields) if is_large else []
        parts += inserts or [VersionsPartition(log, first, last, fields, feed)]
    return parts


def _inserts(log: CommitLog, version: int, fields: tuple[Field, ...]) -> list[FilesPartition]:
    """The tasks of a version that only inserted rows; none if it did more."""
    plan = plan_changes(log, version_range(log, version, version))
    if any(len(span.ended) for span in plan.spans):
        return []
    return [
        FilesPartition(files, fields, (version, plan.times_us[version]))
        for files in by_size(begun_reads(plan))
    ]


def by_versions(commits: Sequence[Commit]) -> list[tuple[int, int]]:
    """Which ranges of versions one task reads: of small changes several versions. Versions that change nothing are left out."""
    spans: list[tuple[int, int]] = []
    room = 0
    for commit in commits:
        if commit.changes_view:
            rows = _changes_about(commit)
            if spans and rows <= room:
                spans[-1] = (spans[-1][0], commit.version)
            else:
                spans.append((commit.version, commit.version))
                room = TASK_ROWS
            room -= rows
    return spans


def _changes_about(commit: Commit) -> int:
    """About how many rows it made visible, as its result counts them, and hid, as its logs say."""
    counts = commit.result.get("counts", {})
    begun = sum(int(counts.get(name, 0)) for name in ("rows", "rows_restored", "rows_removed"))
    return begun + _ended_about(commit)


def _ended_about(commit: Commit) -> int:
    """About how many rows it hid, those among them that no version showed."""
    return sum(log.events for log in commit.actions.add_logs if log.version < 0)
