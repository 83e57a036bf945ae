"""The way from a table's own log to events: each change once and in order.

The position is stored next to the events. It moves in their transaction, and only from where it was
read. So a process that is killed leaves either both or none, and of several that look at once the
slower ones go on from where the fastest is.
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
_LOST_RACES = 100

Position = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The name under which a table's events are registered."""

    table: str
    cluster: str = DEFAULT_CLUSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The events of one snapshot, if any, and the log's position after it.

    A note says what people should know. `seen`: what to remember by item from now on, next to the
    position.
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
    """A table without a log, whose changes show by comparison with what was seen."""

    def remembering(self, seen: Callable[[], Mapping[str, JsonValue]]) -> Source:
        """Return a source that calls `seen` only where something is new."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The counts of a look at a table. `last` is the last registered snapshot."""

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

    With nothing new this is one request. Once `stop` returns True, it ends early with what it has
    registered.
    """
    target = source.target
    synced = Synced(table=target.table, cluster=target.cluster)
    if isinstance(source, RememberingSource):
        source = source.remembering(lambda: client.seen(target.table, target.cluster))
    for _ in range(_LOST_RACES):
        state = client.table_state(target.table, target.cluster)
        position = None if state is None else state.position
        depth = None if state is None else state.depth
        if position is not None and not isinstance(position, Mapping):
            raise InvalidEventError(
                f"the position of {target.table} is {position!r}, which this version cannot read; "
                "a newer one may have written it: upgrade"
            )
        registration = _Registration(
            client=client, target=target, position=position, depth=depth, synced=synced, stop=stop
        )
        try:
            return registration.run(source.steps(position))
        except ConflictError:
            # Another watcher was faster: go on from where it is
            synced = registration.synced
    raise ConflictError(
        f"{target.table}: other watchers were first to register its events, {_LOST_RACES} times in "
        "a row. Nothing is lost: run it again, with fewer watchers of one table"
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
        """Return a step whose partitions have the number of levels that the store has.

        A table's partitions may get other levels, and a store has one number of levels a table. So
        one event a snapshot stands for the partitions with other levels.
        """
        others: dict[str | None, list[DataChangeEvent]] = {}
        events: list[DataChangeEvent] = []
        for event in step.events:
            if event.partition is not None and self.depth is None:
                self.depth = len(event.partition)
            if event.partition is None or len(event.partition) == self.depth:
                events.append(event)
            else:
                others.setdefault(event.snapshot_id, []).append(event)
        if not others:
            return step
        count = sum(map(len, others.values()))
        note = (
            f"{count:,} partitions have other levels than the {self.depth} of {self.target.table}; "
            "their events name no partition"
        )
        if step.note is not None:
            note = f"{step.note}; {note}"
        events += map(_merged, others.values())
        return replace(step, events=tuple(events), note=note)

    def _register(self, steps: Sequence[Step]) -> None:
        """Register the events of steps, and move the position."""
        events = [event for step in steps for event in step.events]
        # Of a very large snapshot, only the last portion moves the position: after a kill the
        # others are registered again, as duplicates
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
    """Return a step's share of a registration: its events or items, at least one."""
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
        """Return whether a position is of this table, not of another at its location.

        Raises InvalidEventError if the name belongs to a table elsewhere or of another format.
        """
        check_format(position, target, self.table_format, self.at)
        if position.get("id") == self.id:
            return True
        if position.get("at") == self.at:
            return False
        raise InvalidEventError(
            f"{target.table!r} of cluster {target.cluster!r} is the {position.get('format')} table "
            f"at {position.get('at')}, and this is the {self.table_format} table at {self.at}; "
            "register it under another name, or in another cluster"
        )


def check_format(position: Position, target: Target, table_format: TableFormat, at: str) -> None:
    """Raise InvalidEventError for a name that belongs to a table of another format.

    Call this before a position is read: its members depend on the format.
    """
    before = position.get("format")
    if before != str(table_format):
        raise InvalidEventError(
            f"{target.table!r} of cluster {target.cluster!r} was the {before} table at "
            f"{position.get('at')}, and is the {table_format} table at {at} now: "
            "one name has events of one format. Nothing was registered; register the table under "
            "another name, or in another cluster, and point its consumers there"
        )


def canonical_uri(uri: str) -> str:
    """Return one form of a location that may be written in several ways."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme != "file":
        return f"s3://{rest}" if scheme == "s3a" else uri
    return os.path.abspath(rest if separator else uri)


def _merged(events: Sequence[DataChangeEvent]) -> DataChangeEvent:
    """Return one event without a partition for several of a snapshot.

    It has the tags and the operation that they have in common.
    """
    first = events[0]
    common = set(first.tags.items()).intersection(*(event.tags.items() for event in events))
    tags = {name: value for name, value in first.tags.items() if (name, value) in common}
    partitions = [event.partition for event in events]
    shown = json.dumps(partitions if len(events) > 1 else first.partition, ensure_ascii=False)
    if len(shown) <= MAX_TAG_VALUE_CHARS:
        tags[OTHER_PARTITION] = shown
    operations = {event.operation_type for event in events}
    operation = first.operation_type if len(operations) == 1 else OperationType.UPDATE
    return replace(first, partition=None, operation_type=operation, tags=tags)


def range_text(first: int, last: int) -> str:
    return str(last) if first == last else f"{first}-{last}"


def again_tags(again: str | None) -> dict[str, str]:
    """Return the tags of snapshots whose ids a table had before."""
    return {} if again is None else {AGAIN: again}
