"""The bodies of requests and answers.

The event module checks events, so that its rules and messages are the same everywhere.
"""

import difflib
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from lakechime.access import MAX_TOKEN_NAME_CHARS, ROLES, checked_role, checked_token_name
from lakechime.answers import MAX_STEP_CHARS, Interest, Outbox, TableName, table_name
from lakechime.client import MAX_LIMIT, MAX_SEEN, MAX_TABLES, checked_key
from lakechime.event import (
    DEFAULT_CLUSTER,
    check_name,
    checked_partition,
    checked_tags,
    event_from_json,
)
from lakechime.remote.problems import PROBLEMS
from lakechime.service.limits import MAX_ENTRIES
from lakechime.service.schemas import EVENT, LEVELS, NAME, PARTITION, REGISTERED_EVENT, TABLE, TAGS
from lakechime.store.schema import DIGEST_CHARS
from lakechime.triggers.partition import PartitionTrigger
from lakechime.triggers.schedule import FrequencyUnit
from lakechime.triggers.snapshot import SnapshotTrigger

MAX_LONG = (1 << 63) - 1
# Earlier than the end of the year 9999, the last one of Python's calendar: the next tick of a
# trigger has to be within it
MAX_MOMENT_TS = 253_370_764_800_000
MAX_FREQUENCY = 1_000_000
_SHOWN_CHARS = 80


class Strict(BaseModel):
    """A model that refuses unknown fields: a mistyped one would be lost silently."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        unknown = sorted(str(name)[:_SHOWN_CHARS] for name in set(value) - set(cls.model_fields))
        if not unknown:
            return value
        similar = difflib.get_close_matches(unknown[0], cls.model_fields, n=1)
        if similar:
            raise ValueError(f"unknown field {unknown[0]!r}; did you mean {similar[0]!r}?")
        known = ", ".join(cls.model_fields) or "none"
        raise ValueError(f"unknown field {unknown[0]!r}; the fields are {known}")


def _table(value: Any) -> tuple[str, str]:
    """Return (cluster, table) of a name, or of {"cluster": ..., "table": ...}."""
    if isinstance(value, dict):
        if set(value) - {"cluster", "table"} or "table" not in value:
            raise ValueError('a table is a name, or {"cluster": "default", "table": "shop.orders"}')
        return table_name((value.get("cluster", DEFAULT_CLUSTER), value["table"]))
    return table_name(check_name("table", value))


def _partition(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else checked_partition(value)


Name = Annotated[str, PlainValidator(lambda value: check_name("name", value)), WithJsonSchema(NAME)]
Key = Annotated[str, PlainValidator(checked_key), WithJsonSchema({**NAME, "minLength": 0})]
_STEP_PATTERN = r"^[A-Za-z0-9_-]*$"
Step = Annotated[str, Field(min_length=1, max_length=MAX_STEP_CHARS, pattern=_STEP_PATTERN)]
_STEP_IN_URL = {  # without null, which a URL cannot express
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_STEP_CHARS,
    "pattern": _STEP_PATTERN,
}
Table = Annotated[Any, PlainValidator(_table), WithJsonSchema(TABLE)]
Partition = Annotated[Any, PlainValidator(_partition), WithJsonSchema(PARTITION)]
Tags = Annotated[Any, PlainValidator(checked_tags), WithJsonSchema(TAGS)]
Event = Annotated[Any, PlainValidator(event_from_json), WithJsonSchema(EVENT)]
RegisteredEvent = Annotated[Any, WithJsonSchema(REGISTERED_EVENT)]
Moment = Annotated[int, Field(ge=0, le=MAX_MOMENT_TS, strict=True)]
Long = Annotated[int, Field(ge=0, le=MAX_LONG, strict=True)]
LongText = Annotated[int, Field(ge=0, le=MAX_LONG)]  # in a URL everything is text
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


class OutboxBody(Strict):
    """The position in the producer's log after these events are registered.

    `expected` is the position that the producer read, null if there was none. `seen` has values
    that the producer stores by item.
    """

    cluster: Name = DEFAULT_CLUSTER
    table: Name
    position: JsonValue
    expected: JsonValue = None
    seen: dict[str, JsonValue] = Field(default={}, max_length=MAX_SEEN)

    def outbox(self) -> Outbox:
        return Outbox(
            cluster=self.cluster,
            table=self.table,
            position=self.position,
            expected=self.expected,
            seen=self.seen,
        )


class Register(Strict):
    """Events, which get their seqs in this order."""

    events: list[Event] = Field(max_length=MAX_ENTRIES)
    outbox: OutboxBody | None = None


class Registered(BaseModel):
    """An event with its seq.

    `duplicate`: an equal event was registered before. `gap`: nobody registered the predecessor of
    the event's snapshot.
    """

    event: RegisteredEvent
    duplicate: bool
    gap: bool


class RegisteredAnswer(BaseModel):
    """The answer for each event, in the given order."""

    registered: list[Registered]


class EventFilter(Strict):
    """A filter of events: of any of the tables, of the partition, with all tags.

    A filter without tables accepts the events of all tables.
    """

    tables: list[Table] = Field(default=[], max_length=MAX_ENTRIES)
    partition: Partition = None
    tags: Tags = Field(default={})


class Query(EventFilter):
    """A query of events with after < seq <= until and start_ts <= event_ts < end_ts.

    The answer is ascending by seq.
    """

    after: Long = 0
    until: Long | None = None
    start_ts: Long | None = None
    end_ts: Long | None = None
    limit: Annotated[int, Field(strict=True, ge=1, le=MAX_LIMIT)] = 1000


class Tail(Strict):
    """A query of the new events of all tables."""

    after: LongText = 0
    limit: Limit = 1000


class Page(BaseModel):
    """A page of events; the next one begins after `next_after`.

    `expired` is the greatest seq that retention deleted of these tables. For a range of times, no
    event at or after `covered_from_ts` and before `covered_until_ts` is missing, and none will be
    added.
    """

    events: list[Registered]
    next_after: Long
    more: bool
    head: Long
    expired: Long
    covered_from_ts: Long | None = None
    covered_until_ts: Long | None = None


class InterestBody(EventFilter):
    """A wait for the first event after `after` that matches."""

    tables: list[Table] = Field(min_length=1, max_length=MAX_ENTRIES)
    after: Long = 0

    def interest(self) -> Interest:
        tables: tuple[TableName, ...] = tuple(self.tables)
        return Interest(tables=tables, partition=self.partition, tags=self.tags, after=self.after)


class Find(Strict):
    """Interests, which one query answers."""

    interests: list[InterestBody] = Field(max_length=MAX_ENTRIES)

    @model_validator(mode="after")
    def _is_one_query(self) -> Self:
        count = sum(len(interest.tables) for interest in self.interests)
        if count > MAX_TABLES:
            raise ValueError(
                f"the interests name {count:,} tables, and one request may name {MAX_TABLES:,}; "
                "send several requests"
            )
        return self


class Found(BaseModel):
    """The first seq that matches each interest, or null."""

    seqs: list[Long | None]
    head: Long


class Head(BaseModel):
    """The greatest seq that a watermark may have now."""

    head: Long


class TableQuery(Strict):
    """The name of a table."""

    table: Name
    cluster: Name = DEFAULT_CLUSTER


class TableState(BaseModel):
    """The state of a table, and the position of its producer's log."""

    table: str
    cluster: str
    depth: int | None
    last_seq: Long | None
    last_snapshot_id: str | None
    position: JsonValue


class SeenQuery(TableQuery):
    """A page of a producer's items. `after` is the `next_after` of the page before."""

    after: Annotated[str, Field(max_length=DIGEST_CHARS, pattern=r"^[A-Za-z0-9_-]*$")] = ""


class SeenPage(BaseModel):
    """Values that the table's producer stored, as pairs of item and value.

    The next page begins after `next_after`; null is the end.
    """

    items: list[tuple[str, JsonValue]]
    next_after: str | None


class TableAnswer(BaseModel):
    """The state of a table; `state` is null for an unknown one."""

    state: TableState | None


class ConsumerQuery(Strict):
    """The name of a consumer."""

    consumer: Name


class ConsumersQuery(Strict):
    """The maximum number of consumers to return."""

    limit: Limit = 1000


class WatermarkQuery(ConsumerQuery):
    """The name of a watermark."""

    key: Key = ""


class WatermarkDelete(WatermarkQuery):
    """A watermark to delete. `expected` is the revision that was read.

    `step` names this change: a repeat under the same name changes nothing.
    """

    expected: LongText
    step: Annotated[Step | None, WithJsonSchema(_STEP_IN_URL)] = None


class WatermarkPut(Strict):
    """A watermark to set, with the `expected` revision, null if there was none.

    `step` names this change: a repeat under the same name changes nothing.
    """

    consumer: Name
    key: Key = ""
    value: JsonValue
    expected: Long | None = None
    step: Step | None = None


class Watermark(BaseModel):
    """A consumer's progress. `revision` rises with every change."""

    consumer: str
    key: str
    value: JsonValue
    revision: Long
    updated_ts: Long


class WatermarkAnswer(BaseModel):
    """A watermark; null if it does not exist."""

    watermark: Watermark | None


class Watermarks(BaseModel):
    """The watermarks of a consumer, by key."""

    watermarks: list[Watermark]


class Consumer(BaseModel):
    """The progress of a consumer that reads events in their order.

    `moved_ts` is the time of its last move, or of its start.
    """

    consumer: str
    seq: int
    moved_ts: Long


class Consumers(BaseModel):
    """The consumers, the furthest behind first."""

    consumers: list[Consumer]


class PartitionTriggerBody(Strict):
    """A partition trigger. A `now_ts` of null is the service's own time."""

    table: Name
    partition: Annotated[Any, PlainValidator(checked_partition), WithJsonSchema(LEVELS)]
    tags: Tags = Field(default={})
    cluster: Name = DEFAULT_CLUSTER
    start_ts: Moment = 0
    frequency: Annotated[int, Field(strict=True, ge=1, le=MAX_FREQUENCY)] = 1
    unit: FrequencyUnit = FrequencyUnit.MINUTE
    now_ts: Moment | None = None

    def trigger(self) -> PartitionTrigger:
        return PartitionTrigger(
            table=self.table,
            partition=self.partition,
            tags=self.tags,
            cluster=self.cluster,
            start_ts=self.start_ts,
            frequency=self.frequency,
            unit=self.unit,
        )


class PartitionFired(BaseModel):
    """The events of a partition trigger, which fires if there is one.

    If none matches, `expired_seq` is the seq of the partition's last expired event, or 0: an
    expired event may have had the tags. Without tags in the query, the answer is then an error 410.
    """

    events: list[RegisteredEvent]
    expired_seq: Long


class SnapshotTriggerBody(Strict):
    """A snapshot trigger: it fires if `any` or `all` of the tables changed."""

    tables: list[Table] = Field(min_length=1, max_length=MAX_ENTRIES)
    mode: Literal["any", "all"] = "any"
    tags: Tags = Field(default={})
    after_seq: Long = 0
    max_events: Annotated[int, Field(strict=True, ge=1, le=MAX_LIMIT)] = 1000

    def trigger(self) -> SnapshotTrigger:
        return SnapshotTrigger(tables=self.tables, mode=self.mode, tags=self.tags)


class SnapshotFired(BaseModel):
    """The events with from_seq < seq <= to_seq that match.

    `expired`: retention deleted events after from_seq, so some may be missing.
    """

    events: list[RegisteredEvent]
    from_seq: Long
    to_seq: Long
    expired: bool


class SnapshotAnswer(BaseModel):
    """The answer of a snapshot trigger; `fired` is null when it does not fire."""

    fired: SnapshotFired | None


class Expire(Strict):
    """A request to delete events registered before a time, in milliseconds since 1970.

    Events that a consumer has not passed stay, unless `keep_unseen` is false.
    """

    older_than_ms: Long
    keep_unseen: Annotated[bool, Field(strict=True)] = True


class Expired(BaseModel):
    """The number of deleted events."""

    expired: Long


class Check(BaseModel):
    """One line about the state of the database."""

    check: str


TokenName = Annotated[
    str,
    PlainValidator(checked_token_name),
    WithJsonSchema({**NAME, "maxLength": MAX_TOKEN_NAME_CHARS}),
]


class TokenQuery(Strict):
    """The name of a token, which a path could not hold if it is `..`."""

    name: TokenName


class TokenBody(Strict):
    """A new token."""

    name: TokenName
    role: Annotated[
        str, PlainValidator(checked_role), WithJsonSchema({"type": "string", "enum": list(ROLES)})
    ]


class Token(BaseModel):
    """A token without its secret. Times are milliseconds since 1970."""

    name: str
    role: str
    created: Long
    revoked: Long | None
    last_used: Long | None


class NewToken(BaseModel):
    """A new token with its secret, which is not shown again."""

    token: str
    name: str
    role: str


class Tokens(BaseModel):
    """All tokens, revoked ones too."""

    tokens: list[Token]


class Health(BaseModel):
    """The health of the process; for `/ready` also of the database."""

    status: Literal["ok"]


class ProblemAnswer(BaseModel):
    """An error: its name, and a message with the next step."""

    error: str = Field(examples=sorted({problem.name for problem in PROBLEMS}))
    message: str
