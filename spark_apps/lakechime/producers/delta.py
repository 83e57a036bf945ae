"""Delta tables: each version since the last look that changed data, read from the table's log.

A version that moves data without changing it (OPTIMIZE), cleans up or changes metadata registers
nothing. The next version names the last registered one as its predecessor. The partitions of a
version are those of the files that it added or removed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lakechime.event import DataChangeEvent, JsonValue, OperationType, TableFormat
from lakechime.producers.delta_log import (
    DeltaCommit,
    DeltaHead,
    DeltaLog,
    PartitionColumn,
    TouchedFile,
)
from lakechime.producers.outbox import (
    Origin,
    Position,
    Step,
    Target,
    again_tags,
    canonical_uri,
    check_format,
    predecessor_of_lost,
    range_text,
)
from lakechime.tags import LOST, RESTORED

_RESTORE, _DELETE = "RESTORE", "DELETE"
_MAX_OPERATION_CHARS = 64  # in a tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The registered part of a log.

    `version` is the last version that was read, and `checksum` that of its commit file. `snapshot`
    is the version of the last event. `turns` counts how often another table, whose versions have
    the same numbers, replaced the one at this path.
    """

    version: int = -1
    checksum: int | None = None
    snapshot: str | None = None
    turns: int = 0
    columns: tuple[PartitionColumn, ...] = ()

    @staticmethod
    def of(position: Position | None) -> "Progress":
        if position is None:
            return Progress()
        columns = tuple(PartitionColumn(name=name, type=kind) for name, kind in position["columns"])
        return Progress(
            version=position["version"],
            checksum=position["checksum"],
            snapshot=position["snapshot"],
            turns=position["turns"],
            columns=columns,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "checksum": self.checksum,
            "snapshot": self.snapshot,
            "turns": self.turns,
            "columns": [[column.name, column.type] for column in self.columns],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSource:
    """A Delta table at a path. `options` are deltalake's storage options."""

    path: str
    target: Target
    options: Mapping[str, str] = field(default_factory=dict)

    def steps(self, position: Position | None) -> Iterator[Step]:
        """Return the steps after a position, or from the beginning for None."""
        if position is None:
            return self._steps_from_head(DeltaLog.open(self.path, self.options), None, None)
        check_format(position, self.target, TableFormat.DELTA, canonical_uri(self.path))
        log = DeltaLog.open(self.path, self.options)
        progress = Progress.of(position)
        last_commit = log.read(progress.version)
        if last_commit is None or last_commit.checksum != progress.checksum:
            return self._steps_from_head(log, position, last_commit)
        # The log still has the last registered commit, so deltalake need not read the table
        origin = self._origin(position["id"])
        origin.is_of(position, self.target)  # raises if the name belongs to another path
        following = log.read(progress.version + 1)
        commits = []
        if following is not None:
            commits = [following, *log.after(progress.version + 1)]
        return _Events(target=self.target, origin=origin, progress=progress).steps(commits, None)

    def _steps_from_head(
        self, log: DeltaLog, position: Position | None, last_commit: DeltaCommit | None
    ) -> Iterator[Step]:
        """Return the steps after a position up to the head.

        They begin at version 0 if the table at this path is not the one of the position.
        `last_commit` is the commit that the log has now for the position's version.
        """
        progress = Progress.of(position)
        head = log.head()
        origin = self._origin(head.table_id)
        if position is not None:
            # The last registered commit differs, or was never in this log
            is_other_log = last_commit is not None or head.version < progress.version
            if not origin.is_of(position, self.target) or is_other_log:
                progress = Progress(turns=progress.turns + 1)
        commits = log.after(progress.version)
        progress = replace(progress, columns=head.columns)
        return _Events(target=self.target, origin=origin, progress=progress).steps(commits, head)

    def _origin(self, table_id: str) -> Origin:
        return Origin(table_format=TableFormat.DELTA, at=canonical_uri(self.path), id=table_id)


@dataclass(slots=True, kw_only=True)
class _Events:
    """The events of the versions, one after the other."""

    target: Target
    origin: Origin
    progress: Progress

    def steps(self, commits: Sequence[DeltaCommit], head: DeltaHead | None) -> Iterator[Step]:
        """Yield a step for the lost versions, if any, and then a step for each commit."""
        next_version = self.progress.version + 1
        first = next_version
        if commits:
            first = commits[0].version
        elif head is not None:
            first = head.version + 1
        if first > next_version:
            yield self._lost(first - 1)
        for commit in commits:
            yield self._step(commit)

    def _step(self, commit: DeltaCommit) -> Step:
        columns = self.progress.columns if commit.columns is None else commit.columns
        events = tuple(self._events(commit, columns))
        snapshot = self.progress.snapshot
        if events:
            snapshot = str(commit.version)
        self.progress = replace(
            self.progress,
            version=commit.version,
            checksum=commit.checksum,
            snapshot=snapshot,
            columns=columns,
        )
        return Step(position=self._position(), events=events)

    def _lost(self, last: int) -> Step:
        """Return the step of versions that were cleaned up before they were registered.

        Its event is of version `last`, and stands for all of them.
        """
        first = self.progress.version + 1
        lost = range_text(first, last)
        previous = predecessor_of_lost(first, last, self.progress.snapshot)
        event = replace(self._event(last, {LOST: lost}), prev_snapshot_id=previous)
        self.progress = replace(self.progress, version=last, checksum=None, snapshot=str(last))
        note = (
            f"{self.origin.at}: versions {lost} were cleaned away before they were registered; "
            f"version {last} stands for all of them"
        )
        return Step(position=self._position(), events=(event,), note=note)

    def _events(
        self, commit: DeltaCommit, columns: Sequence[PartitionColumn]
    ) -> Iterator[DataChangeEvent]:
        if not commit.files:
            return
        tags = {}
        if commit.operation:
            tags["delta.operation"] = commit.operation[:_MAX_OPERATION_CHARS]
        if commit.operation == _RESTORE:
            parameters = commit.parameters
            restored = parameters.get("version") or parameters.get("timestamp") or ""
            tags[RESTORED] = str(restored)
        event = replace(
            self._event(commit.version, tags),
            snapshot_ts=commit.timestamp_ms,
            operation_type=_operation(commit),
        )
        # Sorted, because files come in any order; by `repr`, because values have several types
        partitions = sorted({_partition(file, columns) for file in commit.files}, key=repr)
        if None in partitions:
            yield event
        for partition in partitions:
            if partition is not None:
                yield replace(event, partition=partition)

    def _event(self, version: int, tags: Mapping[str, str]) -> DataChangeEvent:
        again = {}
        if self.progress.turns:
            again = again_tags(str(self.progress.turns))
        return DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            snapshot_id=str(version),
            prev_snapshot_id=self.progress.snapshot,
            table_format=TableFormat.DELTA,
            tags={"delta.table_id": str(self.origin.id), **tags, **again},
        )

    def _position(self) -> dict[str, Any]:
        return {**self.origin.to_json(), **self.progress.to_json()}


def _partition(
    file: TouchedFile, columns: Sequence[PartitionColumn]
) -> tuple[JsonValue, ...] | None:
    """Return the partition of a file, or None if the table or the file names none."""
    values = file.partition
    if not columns or values is None:
        return None
    if not all(column.name in values for column in columns):
        return None
    return tuple(column.value(values[column.name]) for column in columns)


def _operation(commit: DeltaCommit) -> OperationType:
    """Return the kind of a commit's change; UPDATE if it is uncertain."""
    if commit.operation == _RESTORE:
        return OperationType.UPDATE
    if commit.operation == _DELETE or not any(file.added for file in commit.files):
        return OperationType.DELETE
    if all(file.added for file in commit.files):
        return OperationType.APPEND
    return OperationType.UPDATE
