"""From a table's own log to registered events: what the log holds after the kept position, in its order, each once.

The position lies beside the events and moves in their transaction, and only from where it was read. So whoever is killed leaves either
both or none, and of several that look at once the slower ones begin again from where the fastest is.
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
MOST_AT_ONCE = 5_000  # of one snapshot that touches very many partitions
_LOST_RACES = 100

Position = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Under which name a table's events are registered."""

    table: str
    cluster: str = DEFAULT_CLUSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The events of one snapshot, none where nothing changed, and where the log is after it. A note says what people should know.

    `seen`: what to remember from now on by item, beside the position.
    """

    position: Position
    events: tuple[DataChangeEvent, ...] = ()
    note: str | None = None
    seen: Mapping[str, JsonValue] = field(default_factory=dict)


class Source(Protocol):
    """A table whose own metadata tell what happened to it."""

    @property
    def target(self) -> Target: ...

    def steps(self, position: Position | None) -> Iterator[Step]:
        """What happened after a position; None: from the beginning. Nothing where nothing is new."""
        ...


@runtime_checkable
class RememberingSource(Protocol):
    """A table without a log: what is new shows by comparison with what was seen, item by item."""

    def remembering(self, seen: Callable[[], Mapping[str, JsonValue]]) -> Source:
        """Asks for it where something is new."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What a look at a table registered. `last` is the last snapshot among it."""

    table: str
    cluster: str = DEFAULT_CLUSTER
    events: int = 0
    snapshots: int = 0
    last: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        names = ("table", "cluster", "events", "snapshots", "last")
        return {**{name: getattr(self, name) for name in names}, "notes": list(self.notes)}


def sync(client: LakeChime, source: Source, *, stop: Callable[[], bool] = lambda: False) -> Synced:
    """Register what a table's log holds and is not registered yet. With nothing new this is one request.

    It ends early, with what it has registered, once `stop` says so.
    """
    target = source.target
    synced = Synced(table=target.table, cluster=target.cluster)
    if isinstance(source, RememberingSource):
        source = source.remembering(lambda: client.seen(target.table, target.cluster))
    for _ in range(_LOST_RACES):
        state = client.table_state(target.table, target.cluster)
        position, depth = (None, None) if state is None else (state.position, state.depth)
        if position is not None and not isinstance(position, Mapping):
            raise InvalidEventError(
                f"the position of {target.table} is {position!r}, which this version cannot read; a newer one may have written it: upgrade"
            )
        register = _Registering(
            client=client, target=target, position=position, depth=depth, synced=synced, stop=stop
        )
        try:
            return register.all_of(source.steps(position))
        except ConflictError:
            synced = register.synced  # another one was faster: go on from where it is
    raise ConflictError(
        f"{target.table}: other watchers were first to register its events, {_LOST_RACES} times in a row. Nothing is lost: run it again, "
        "with fewer watchers of one table"
    )


@dataclass(slots=True, kw_only=True)
class _Registering:
    """One pass over the steps, from a position that was read."""

    client: LakeChime
    target: Target
    position: JsonValue
    depth: int | None
    synced: Synced
    stop: Callable[[], bool]

    def all_of(self, steps: Iterator[Step]) -> Synced:
        """Several small snapshots go in one transaction."""
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
        """A table's partitions may get other levels. A store has one number of levels a table, so a snapshot says once that
        others changed.
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
        note = f"{count:,} partitions have other levels than the {self.depth} of {self.target.table}; their events name no partition"
        events += map(_one_of, others.values())
        return replace(
            step, events=tuple(events), note=note if step.note is None else f"{step.note}; {note}"
        )

    def _register(self, steps: Sequence[Step]) -> None:
        """A very large snapshot in portions: only with the last one the position moves, and a repeated portion is known again."""
        events, position = [event for step in steps for event in step.events], steps[-1].position
        while len(events) > MOST_AT_ONCE:
            self._count(self.client.register(events[:MOST_AT_ONCE]), ())
            del events[:MOST_AT_ONCE]
        seen = {item: value for step in steps for item, value in step.seen.items()}
        named = {"table": self.target.table, "cluster": self.target.cluster}
        outbox = Outbox(**named, position=dict(position), expected=self.position, seen=seen)
        registered = self.client.register(events, outbox=outbox)
        self.position = dict(position)
        self._count(registered, steps)

    def _count(self, registered: Sequence[Registered], steps: Sequence[Step]) -> None:
        new = [answer.event for answer in registered if not answer.duplicate]
        last = next(
            (event.snapshot_id for event in reversed(new) if event.snapshot_id is not None),
            self.synced.last,
        )
        notes = dict.fromkeys(
            (*self.synced.notes, *(step.note for step in steps if step.note is not None))
        )
        self.synced = replace(
            self.synced,
            events=self.synced.events + len(new),
            snapshots=self.synced.snapshots + sum(bool(step.events) for step in steps),
            last=last,
            notes=tuple(notes),
        )


def _weight(step: Step) -> int:
    """How much of a registration a step takes: its events, what is to be remembered, or itself."""
    return max(len(step.events), len(step.seen), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which table a position is of: its format, where it lies, and its own id."""

    table_format: TableFormat
    at: str
    id: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"format": str(self.table_format), "at": self.at, "id": self.id}

    def is_of(self, position: Position, target: Target) -> bool:
        """False: another table is at this place now. InvalidEventError where the name is that of a table elsewhere, or of another format."""
        check_format(position, target, self.table_format, self.at)
        if position.get("id") == self.id:
            return True
        if position.get("at") == self.at:
            return False
        raise InvalidEventError(
            f"{target.table!r} of cluster {target.cluster!r} is the {position.get('format')} table at {position.get('at')}, and this the "
            f"{self.table_format} table at {self.at}; register it under another name, or in another cluster"
        )


def check_format(position: Position, target: Target, table_format: TableFormat, at: str) -> None:
    """Refuse a name that another format has. Ask before a position is read: each format has its own members there."""
    before = position.get("format")
    if before != str(table_format):
        raise InvalidEventError(
            f"{target.table!r} of cluster {target.cluster!r} was the {before} table at {position.get('at')}, and is the {table_format} table "
            f"at {at} now: one name has events of one format. Nothing was registered; register the table under another name, or in another "
            "cluster, and point its consumers there"
        )


def place_of(uri: str) -> str:
    """The same for everybody who writes the place in another way."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme != "file":
        return f"s3://{rest}" if scheme == "s3a" else uri
    return os.path.abspath(rest if separator else uri)


def _one_of(events: Sequence[DataChangeEvent]) -> DataChangeEvent:
    """Of all partitions of a snapshot that no event can name: what is true of each of them."""
    first = events[0]
    shown = json.dumps(
        first.partition if len(events) == 1 else [event.partition for event in events],
        ensure_ascii=False,
    )
    same = {
        name: value
        for name, value in first.tags.items()
        if all(event.tags.get(name) == value for event in events)
    }
    operations = {event.operation_type for event in events}
    return replace(
        first,
        partition=None,
        operation_type=first.operation_type if len(operations) == 1 else OperationType.UPDATE,
        tags={**same, OTHER_PARTITION: shown} if len(shown) <= MAX_TAG_VALUE_CHARS else same,
    )


def again_tags(again: str | None) -> dict[str, str]:
    """Of snapshots whose ids a table had before."""
    return {} if again is None else {AGAIN: again}
