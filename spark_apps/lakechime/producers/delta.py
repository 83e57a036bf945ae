"""Delta tables, by their own log (deltalake): the versions since the last look that changed data, each once.

A version that moves data without changing it (OPTIMIZE), cleans up or changes metadata registers nothing, and the next one names the last
that did as its predecessor. The partitions of a version are those of the files that it added or took away.
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
    check_format,
    place_of,
)
from lakechime.tags import LOST, RESTORED

_RESTORE, _DELETE = "RESTORE", "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was registered: up to this version, of whose commit this is the checksum, and the version of the last event.

    `turns` counts how often another table came to this place, whose versions have the same numbers.
    """

    version: int = -1
    checksum: int | None = None
    snapshot: str | None = None
    turns: int = 0
    columns: tuple[PartitionColumn, ...] = ()

    @staticmethod
    def of(position: Position | None) -> "Kept":
        if position is None:
            return Kept()
        columns = tuple(PartitionColumn(name=name, type=kind) for name, kind in position["columns"])
        return Kept(**{name: position[name] for name in _NUMBERS}, columns=columns)

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "columns": [[column.name, column.type] for column in self.columns],
        }


_NUMBERS = ("version", "checksum", "snapshot", "turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSource:
    """A Delta table at a path. Options are deltalake's storage options."""

    path: str
    target: Target
    options: Mapping[str, str] = field(default_factory=dict)

    def steps(self, position: Position | None) -> Iterator[Step]:
        if position is not None:
            check_format(position, self.target, TableFormat.DELTA, place_of(self.path))
        log, kept = DeltaLog.open(self.path, self.options), Kept.of(position)
        at_hand = log.read(kept.version) if position is not None else None
        if position is not None and at_hand is not None and at_hand.checksum == kept.checksum:
            self._origin(position["id"]).is_of(position, self.target)
            following = log.read(kept.version + 1)
            commits = [] if following is None else [following, *log.after(kept.version + 1)]
            return _Events(
                target=self.target, origin=self._origin(position["id"]), kept=kept
            ).steps(commits, None)
        head = log.head()
        origin = self._origin(head.table_id)
        is_another = at_hand is not None or head.version < kept.version
        if position is not None and (not origin.is_of(position, self.target) or is_another):
            kept = Kept(turns=kept.turns + 1)
        commits = log.after(kept.version)
        kept = replace(kept, columns=head.columns)
        return _Events(target=self.target, origin=origin, kept=kept).steps(commits, head)

    def _origin(self, table_id: str) -> Origin:
        return Origin(table_format=TableFormat.DELTA, at=place_of(self.path), id=table_id)


@dataclass(slots=True, kw_only=True)
class _Events:
    """Makes the events of one version after the other."""

    target: Target
    origin: Origin
    kept: Kept

    def steps(self, commits: Sequence[DeltaCommit], head: DeltaHead | None) -> Iterator[Step]:
        first = (
            commits[0].version
            if commits
            else self.kept.version + 1
            if head is None
            else head.version + 1
        )
        if first > self.kept.version + 1:
            yield self._lost(first - 1)
        for commit in commits:
            yield self._step(commit)

    def _step(self, commit: DeltaCommit) -> Step:
        columns = self.kept.columns if commit.columns is None else commit.columns
        events = tuple(self._events(commit, columns))
        snapshot = str(commit.version) if events else self.kept.snapshot
        self.kept = replace(
            self.kept,
            version=commit.version,
            checksum=commit.checksum,
            snapshot=snapshot,
            columns=columns,
        )
        return Step(position=self._position(), events=events)

    def _lost(self, last: int) -> Step:
        """Versions that were cleaned away before they were registered: the last of them stands for all."""
        first = self.kept.version + 1
        lost = str(last) if first == last else f"{first}-{last}"
        previous = self.kept.snapshot if first in (0, last) else str(last - 1)
        event = replace(self._event(last, {LOST: lost}), prev_snapshot_id=previous)
        self.kept = replace(self.kept, version=last, checksum=None, snapshot=str(last))
        said = f"{self.origin.at}: versions {lost} were cleaned away before they were registered; version {last} stands for all of them"
        return Step(position=self._position(), events=(event,), note=said)

    def _events(
        self, commit: DeltaCommit, columns: Sequence[PartitionColumn]
    ) -> Iterator[DataChangeEvent]:
        if not commit.files:
            return
        tags = {"delta.operation": commit.operation[:64]} if commit.operation else {}
        if commit.operation == _RESTORE:
            tags[RESTORED] = str(
                commit.parameters.get("version") or commit.parameters.get("timestamp") or ""
            )
        event = replace(
            self._event(commit.version, tags),
            snapshot_ts=commit.timestamp_ms,
            operation_type=_operation(commit),
        )
        partitions = sorted(
            {_partition(file, columns) for file in commit.files}, key=repr
        )  # files come in any order
        if None in partitions:
            yield event
        yield from (
            replace(event, partition=partition) for partition in partitions if partition is not None
        )

    def _event(self, version: int, tags: Mapping[str, str]) -> DataChangeEvent:
        again = again_tags(str(self.kept.turns) if self.kept.turns else None)
        return DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            snapshot_id=str(version),
            prev_snapshot_id=self.kept.snapshot,
            table_format=TableFormat.DELTA,
            tags={"delta.table_id": str(self.origin.id), **tags, **again},
        )

    def _position(self) -> dict[str, Any]:
        return {**self.origin.to_json(), **self.kept.to_json()}


def _partition(
    file: TouchedFile, columns: Sequence[PartitionColumn]
) -> tuple[JsonValue, ...] | None:
    """None without partition columns, and of a file whose values are not said."""
    if (
        not columns
        or file.partition is None
        or not all(column.name in file.partition for column in columns)
    ):
        return None
    return tuple(column.value(file.partition[column.name]) for column in columns)


def _operation(commit: DeltaCommit) -> OperationType:
    """In doubt it is an update."""
    if commit.operation == _RESTORE:
        return OperationType.UPDATE
    if commit.operation == _DELETE or not any(file.added for file in commit.files):
        return OperationType.DELETE
    return (
        OperationType.APPEND if all(file.added for file in commit.files) else OperationType.UPDATE
    )
