"""Questions to a store and its answers, in SQL and over HTTP; and the store, as a protocol."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakechime.errors import InvalidEventError
from lakechime.event import DEFAULT_CLUSTER, DataChangeEvent, JsonValue, check_name, json_text

# The key of the watermarks whose value is a seq: snapshot triggers move them, retention heeds them
SEEN_EVENTS = "events"
MAX_VALUE_BYTES = 65_536  # of a watermark
MAX_STEP_CHARS = 22
_STEP_BYTES = 16  # 22 characters
TableName = str | tuple[str, str]  # a table of the default cluster, or (cluster, table)


def table_name(table: TableName) -> tuple[str, str]:
    """Return (cluster, table) of either form."""
    cluster, name = (DEFAULT_CLUSTER, table) if isinstance(table, str) else table
    return check_name("cluster", cluster), check_name("table", name)


def new_step() -> str:
    """Return a name for one change of a watermark.

    A change that is sent again is recognised by it.
    """
    return secrets.token_urlsafe(_STEP_BYTES)


def checked_step(step: str) -> str:
    """Return the name of a change, or raise InvalidEventError."""
    if not 1 <= len(step) <= MAX_STEP_CHARS or not (step.isascii() and step.isprintable()):
        raise InvalidEventError(
            f"step={step[:80]!r} is not the name of a step; "
            f"write 1 to {MAX_STEP_CHARS} printable ASCII characters"
        )
    return step


def watermark_text(value: JsonValue) -> str:
    """Return the value of a watermark as the text that a store keeps."""
    if value is None:
        raise InvalidEventError("a watermark has a value; delete it instead of setting it to null")
    return json_text("the value of a watermark", value, MAX_VALUE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An event with its seq.

    `duplicate`: it was registered before, and this is the first one. `gap`: nobody registered its
    predecessor.
    """

    event: DataChangeEvent
    duplicate: bool = False
    gap: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"event": self.event.to_json(), "duplicate": self.duplicate, "gap": self.gap}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Registered":
        return Registered(
            event=DataChangeEvent.from_json(value["event"]),
            duplicate=bool(value["duplicate"]),
            gap=bool(value["gap"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The wanted events: of any of the tables, of a partition, with all tags.

    Without tables all are meant.
    """

    tables: tuple[tuple[str, str], ...] = ()  # (cluster, table)
    partition: tuple[JsonValue, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Events in the order that watermarks pass them.

    `next_after` is what to ask after next time. A watermark may move there once these events are
    processed, also where events in between did not match. `more`: ask again immediately. `head`:
    the greatest seq at that moment.

    `expired`: the greatest seq among the expired events of these tables: of all tables where none
    was named, and of the partition where one was named with tables. Whoever asked after a lesser
    seq may have missed some.
    """

    events: tuple[Registered, ...]
    next_after: int
    more: bool
    head: int
    expired: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsBetween:
    """The events of a time range, and the part of it that is complete and final.

    No event from `covered_from_ts` on and before `covered_until_ts` is missing, and none will ever
    come. `covered_from_ts` is the start of the range, unless retention deleted events of the table
    at that time or later: those may be missing. `covered_until_ts` is the end of the range, where
    that has passed by the clock that assigns times to events. Else ask again: more events may come
    at `covered_until_ts` or later.
    """

    events: tuple[Registered, ...]
    covered_from_ts: int
    covered_until_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """A wait for the first event after `after` that matches."""

    tables: tuple[TableName, ...]
    partition: tuple[JsonValue, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The first seq that matches each interest, or None, in the order asked.

    `head` is the head that the answer is about.
    """

    seqs: tuple[int | None, ...]
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """A producer's position: how far its log is registered.

    It moves in the transaction of the events, and only from where the producer read it. `expected`
    is the position that was read, or None where none existed. If it is another one by now,
    ConflictError is raised, unless this very call moved it: the same step with the same events is
    done once, and answered again.

    `seen`: what the producer has to remember by item, such as each partition, since a position
    should not grow with its table. It is stored in the same transaction.
    """

    table: str
    position: JsonValue
    expected: JsonValue = None
    cluster: str = DEFAULT_CLUSTER
    seen: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPage:
    """The items that a producer remembers of a table.

    Ask again after `next_after`, until it is None.
    """

    items: Mapping[str, JsonValue]
    next_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The state of a table. `last_seq` is None where only a position is known."""

    table: str
    cluster: str
    depth: int | None
    last_seq: int | None
    last_snapshot_id: str | None
    position: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """A consumer's progress. `revision` rises with every change."""

    consumer: str
    key: str
    value: JsonValue
    revision: int
    updated_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """The progress of a consumer that reads events in order; retention waits for it.

    `moved_ts` is the time of its last move, or of its start.
    """

    consumer: str
    seq: int
    moved_ts: int


class Store(Protocol):
    """The store of events. LakeChime checks arguments and asks a store.

    The SQL and the HTTP store pass one suite of tests.
    """

    def register(
        self, events: Sequence[DataChangeEvent], outbox: Outbox | None
    ) -> list[Registered]: ...

    def events(self, wanted: Filter, *, after: int, until: int | None, limit: int) -> Page: ...

    def events_between(self, wanted: Filter, start_ts: int, end_ts: int) -> EventsBetween: ...

    def find(self, interests: Sequence[Interest]) -> Found: ...

    def head(self) -> int: ...

    def table_state(self, cluster: str, table: str) -> TableState | None: ...

    def seen(self, cluster: str, table: str, *, after: str) -> SeenPage: ...

    def watermark(self, consumer: str, key: str) -> Watermark | None: ...

    def watermarks(self, consumer: str) -> dict[str, Watermark]: ...

    def consumers(self, limit: int) -> list[Consumer]: ...

    def put_watermark(
        self, consumer: str, key: str, value: JsonValue, *, expected: int | None, step: str
    ) -> Watermark:
        """Move a watermark once, however often the same step is asked for."""
        ...

    def delete_watermark(self, consumer: str, key: str, *, expected: int, step: str) -> None:
        """Delete a watermark once, however often the same step is asked for."""
        ...

    def expire(self, older_than_ms: int, *, keep_unseen: bool) -> int: ...

    def check(self) -> str: ...

    def close(self) -> None: ...
