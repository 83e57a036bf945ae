"""The protocol of a store, its questions and its answers, the same in SQL and over HTTP."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakechime.errors import InvalidEventError
from lakechime.event import DEFAULT_CLUSTER, DataChangeEvent, JsonValue, check_name, json_text

# The key of the watermarks whose value is a seq. Snapshot triggers move them, and retention keeps
# the events after them.
SEEN_EVENTS = "events"
MAX_VALUE_BYTES = 65_536  # of a watermark
MAX_STEP_CHARS = 22
_STEP_BYTES = 16  # 22 characters in base64
TableName = str | tuple[str, str]  # a table of the default cluster, or (cluster, table)


def table_name(table: TableName) -> tuple[str, str]:
    """Return the name of a table as (cluster, table)."""
    cluster, name = (DEFAULT_CLUSTER, table) if isinstance(table, str) else table
    return check_name("cluster", cluster), check_name("table", name)


def new_step() -> str:
    """Return a new name for one change of a watermark.

    The store recognises by the name that a change was sent again.
    """
    return secrets.token_urlsafe(_STEP_BYTES)


def checked_step(step: str) -> str:
    """Return the name of a change if it is valid, or raise InvalidEventError."""
    if not 1 <= len(step) <= MAX_STEP_CHARS or not (step.isascii() and step.isprintable()):
        raise InvalidEventError(
            f"step={step[:80]!r} is not a valid name of a step; "
            f"write 1 to {MAX_STEP_CHARS} printable ASCII characters"
        )
    return step


def watermark_text(value: JsonValue) -> str:
    """Return the value of a watermark as JSON text, or raise InvalidEventError."""
    if value is None:
        raise InvalidEventError("a watermark cannot be null; delete the watermark instead")
    return json_text("the value of a watermark", value, MAX_VALUE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An event with its seq.

    `duplicate`: an equal event was registered before, and `event` is that one. `gap`: nobody
    registered the predecessor of the event's snapshot.
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
    """A filter of events: of any of the tables, of the partition, with all tags.

    A filter without tables accepts the events of all tables.
    """

    tables: tuple[tuple[str, str], ...] = ()  # (cluster, table)
    partition: tuple[JsonValue, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Events in the order that watermarks pass them.

    `next_after` is the seq after which the next page begins. A watermark may move there once these
    events are processed. `more`: the next page has events already. `head`: the greatest seq when
    the page was read.

    `expired` is the greatest seq that retention deleted of the tables in the query; of all tables
    if it names none; of the partition if it names tables and a partition. A query after a lesser
    seq may have missed events.
    """

    events: tuple[Registered, ...]
    next_after: int
    more: bool
    head: int
    expired: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsBetween:
    """The events of a time range, and the part of it that is complete and final.

    No event at or after `covered_from_ts` and before `covered_until_ts` is missing, and none will
    ever be added. `covered_from_ts` is the start of the range, or later if retention deleted events
    of the range. `covered_until_ts` is the end of the range, or earlier if the end has not passed
    by the clock that assigns times to events. Then ask again from `covered_until_ts` on.
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
    """The first matching seq of each interest, or None, in the order of the interests.

    `head` is the greatest seq when the answer was read.
    """

    seqs: tuple[int | None, ...]
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """A move of a producer's position, which says how far its log is registered.

    The position moves in the transaction of the events, and only from `expected`: the position that
    the producer read, or None if there was none. If the stored position is another one,
    ConflictError is raised. A repeat of the same move with the same events is answered as before.

    `seen` has values that the producer stores by item, such as one for each partition. They are
    stored in the same transaction. A position alone would grow with its table.
    """

    table: str
    position: JsonValue
    expected: JsonValue = None
    cluster: str = DEFAULT_CLUSTER
    seen: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPage:
    """A page of the items that a producer stored for a table.

    The next page begins after `next_after`; None is the end.
    """

    items: Mapping[str, JsonValue]
    next_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The state of a table. `depth` is its number of partition levels.

    `depth` and `last_seq` are None while the table has a position, but no event.
    """

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
        """Set a watermark. A repeat of the same step changes nothing."""
        ...

    def delete_watermark(self, consumer: str, key: str, *, expected: int, step: str) -> None:
        """Delete a watermark. A repeat of the same step changes nothing."""
        ...

    def expire(self, older_than_ms: int, *, keep_unseen: bool) -> int: ...

    def check(self) -> str: ...

    def close(self) -> None: ...
