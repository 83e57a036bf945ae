"""The registration of a table's own log as events: each change once and in order.

The producer's position in the log is stored next to the events. It moves in their transaction, and
only from the position that was read. So a process that is killed leaves both or neither. If several
processes read one log, the slower ones continue from the position of the fastest.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from lakechime.answers import Outbox, Registered
from lakechime.client import LakeChime
from lakechime.errors import ConflictError, InvalidEventError
from lakechime.event import (
    DEFAULT_CLUSTER,
    MAX_TAG_VALUE_CHARS,
    DataChangeEvent,
    JsonValue,
    OperationType,
    TableFormat,
)
from lakechime.tags import AGAIN, OTHER_PARTITION

EVENTS_AT_ONCE = 500
MAX_AT_ONCE = 5_000  # events of one snapshot, which may touch very many partitions
_MAX_LOST_RACES = 100

Position = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The name under which a table's events are registered."""

    table: str
    cluster: str = DEFAULT_CLUSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The events of one snapshot, if any, and the log's position after it.

    A note is a text for people. `seen` has values to store by item, next to the position.
    """

    position: Position
    events: tuple[DataChangeEvent, ...] = ()
    note: str | None = None
    seen: Mapping[str, JsonValue] = field(default_factory=dict)


class Source(Protocol):
    """A table whose own metadata report its changes."""

    @property
    def target(self) -> Target: ...

    def steps(self, position: Position | None) -> Iterator[Step]:
        """Return the steps after a position, or from the beginning for None."""
        ...


@runtime_checkable
class RememberingSource(Protocol):
    """A table without a log, whose changes show by comparison with the last look."""

    def remembering(self, seen: Callable[[], Mapping[str, JsonValue]]) -> Source:
        """Return a source that reads the stored items of the last look by `seen`.

        It calls `seen` only if the table may have changed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The result of a look at a table: its counts and last registered snapshot."""

    table: str
    cluster: str = DEFAULT_CLUSTER
    events: int = 0
    snapshots: int = 0
    last: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "cluster": self.cluster,
            "events": self.events,
            "snapshots": self.snapshots,
            "last": self.last,
            "notes": list(self.notes),
        }


def sync(client: LakeChime, source: Source, *, stop: Callable[[], bool] = lambda: False) -> Synced:
    """Register the changes of a table's log that are not registered yet.

    Without new changes this is one request. Once `stop` returns True, it ends early, after the
    registration in progress.
    """
    target = source.target
    synced = Synced(table=target.table, cluster=target.cluster)
    if isinstance(source, RememberingSource):
        source = source.remembering(lambda: client.seen(target.table, target.cluster))
    for _ in range(_MAX_LOST_RACES):
        state = client.table_state(target.table, target.cluster)
        position = None if state is None else state.position
        depth = None if state is None else state.depth
        if position is not None and not isinstance(position, Mapping):
            raise InvalidEventError(
                f"the position of {target.table} is {position!r}, which this version cannot read; "
                "a newer version may have written it: upgrade lakechime"
            )
        registration = _Registration(
            client=client, target=target, position=position, depth=depth, synced=synced, stop=stop
        )
        try:
            return registration.run(source.steps(position))
        except ConflictError:
            # Another process was faster: continue from its position
            synced = registration.synced
    raise ConflictError(
        f"{target.table}: another process registered its events first, {_MAX_LOST_RACES} times in "
        "a row. Nothing is lost: try again, with fewer processes that watch this table"
    )


@dataclass(slots=True, kw_only=True)
class _Registration:
    """One pass over the steps, from a position that was read."""

    client: LakeChime
    target: Target
    position: JsonValue
    depth: int | None
    synced: Synced
    stop: Callable[[], bool]

    def run(self, steps: Iterator[Step]) -> Synced:
        """Register the steps; several small snapshots go into one transaction."""
        waiting: list[Step] = []
        for step in steps:
            waiting.append(self._fitting(step))
            if sum(map(_weight, waiting)) >= EVENTS_AT_ONCE:
                self._register(waiting)
                waiting = []
                if self.stop():
                    return self.synced
        if waiting:
            self._register(waiting)
        return self.synced

    def _fitting(self, step: Step) -> Step:
        """Return a step whose partitions have as many levels as the stored table.

        The store has one number of levels for each table, and a table may get other partitions. All
        partitions of a snapshot with other levels become one event without a partition.
        """
        misfits: dict[str | None, list[DataChangeEvent]] = {}  # by snapshot
        events: list[DataChangeEvent] = []
        for event in step.events:
            if event.partition is not None and self.depth is None:
                self.depth = len(event.partition)
            if event.partition is None or len(event.partition) == self.depth:
                events.append(event)
            else:
                misfits.setdefault(event.snapshot_id, []).append(event)
        if not misfits:
            return step
        count = sum(map(len, misfits.values()))
        note = (
            f"{count:,} partitions have other levels than the {self.depth} of {self.target.table}; "
            "their events name no partition"
        )
        if step.note is not None:
            note = f"{step.note}; {note}"
        events += map(_merged, misfits.values())
        return replace(step, events=tuple(events), note=note)

    def _register(self, steps: Sequence[Step]) -> None:
        """Register the events of steps, and move the position."""
        events: list[DataChangeEvent] = []
        for step in steps:
            events += step.events
        # Of a very large snapshot, only the last portion moves the position. After a kill, the
        # earlier portions are registered again, as duplicates.
        while len(events) > MAX_AT_ONCE:
            self._count(self.client.register(events[:MAX_AT_ONCE]), ())
            del events[:MAX_AT_ONCE]
        seen: dict[str, JsonValue] = {}
        for step in steps:
            seen.update(step.seen)
        position = dict(steps[-1].position)
        outbox = Outbox(
            table=self.target.table,
            cluster=self.target.cluster,
            position=position,
            expected=self.position,
            seen=seen,
        )
        registered = self.client.register(events, outbox=outbox)
        self.position = position
        self._count(registered, steps)

    def _count(self, registered: Sequence[Registered], steps: Sequence[Step]) -> None:
        event_count = self.synced.events
        last = self.synced.last
        for answer in registered:
            if not answer.duplicate:
                event_count += 1
                last = answer.event.snapshot_id or last
        snapshot_count = self.synced.snapshots
        notes = dict.fromkeys(self.synced.notes)
        for step in steps:
            snapshot_count += bool(step.events)
            if step.note is not None:
                notes[step.note] = None
        self.synced = replace(
            self.synced,
            events=event_count,
            snapshots=snapshot_count,
            last=last,
            notes=tuple(notes),
        )


def _weight(step: Step) -> int:
    """Return the size of a step: the number of its events or items, at least 1."""
    return max(len(step.events), len(step.seen), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The table of a position: its format, its location, and its own id."""

    table_format: TableFormat
    at: str
    id: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"format": str(self.table_format), "at": self.at, "id": self.id}

    def is_of(self, position: Position, target: Target) -> bool:
        """Return whether a position is of this table, not of an earlier one here.

        Raises InvalidEventError if the position is of a table elsewhere or of another format.
        """
        check_format(position, target, self.table_format, self.at)
        if position.get("id") == self.id:
            return True
        if position.get("at") == self.at:
            return False
        raise InvalidEventError(
            f"the name {target.table!r} in cluster {target.cluster!r} belongs to the "
            f"{position.get('format')} table at {position.get('at')}; register the "
            f"{self.table_format} table at {self.at} under another name, or in another cluster"
        )


def check_format(position: Position, target: Target, table_format: TableFormat, at: str) -> None:
    """Raise InvalidEventError if a position is of a table of another format.

    Call this before a position is read: its members depend on the format.
    """
    old_format = position.get("format")
    if old_format != str(table_format):
        raise InvalidEventError(
            f"{target.table!r} of cluster {target.cluster!r} was the {old_format} table at "
            f"{position.get('at')}, and is the {table_format} table at {at} now: "
            "one name has events of one format. Nothing was registered; register the table under "
            "another name, or in another cluster, and point its consumers there"
        )


def canonical_uri(uri: str) -> str:
    """Return the canonical form of a location: an absolute path, or a URI."""
    scheme, separator, path = uri.partition("://")
    if not separator:
        return os.path.abspath(uri)
    if scheme == "file":
        return os.path.abspath(path)
    if scheme == "s3a":
        return f"s3://{path}"
    return uri


def _merged(events: Sequence[DataChangeEvent]) -> DataChangeEvent:
    """Return one event without a partition for the events of a snapshot.

    It has the tags that all events have in common, and their operation if it is the same.
    """
    first = events[0]
    common = set(first.tags.items())
    for event in events:
        common.intersection_update(event.tags.items())
    tags = {name: value for name, value in first.tags.items() if (name, value) in common}
    partitions = [event.partition for event in events]
    partition_text = json.dumps(partitions, ensure_ascii=False)
    if len(events) == 1:
        partition_text = json.dumps(first.partition, ensure_ascii=False)
    if len(partition_text) <= MAX_TAG_VALUE_CHARS:
        tags[OTHER_PARTITION] = partition_text
    operation = first.operation_type
    if any(event.operation_type != operation for event in events):
        operation = OperationType.UPDATE
    return replace(first, partition=None, operation_type=operation, tags=tags)


def range_text(first: int, last: int) -> str:
    return str(last) if first == last else f"{first}-{last}"


def predecessor_of_lost(first: int, last: int, registered: str | None) -> str | None:
    """Return the predecessor of the event for the lost versions `first` to `last`.

    It is the last registered snapshot if one version was lost, or if the loss begins at 0.
    Otherwise it is a version that nobody registered, so that the event shows a gap.
    """
    if first in (0, last):
        return registered
    return str(last - 1)


def again_tags(again: str | None) -> dict[str, str]:
    """Return the tag that distinguishes a snapshot from an earlier one of the same id."""
    return {} if again is None else {AGAIN: again}
