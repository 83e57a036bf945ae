"""What the service takes and answers. Events are checked by the event itself, so that its rules and words are the same everywhere."""

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
MAX_MOMENT_TS = (
    253_370_764_800_000  # the calendar of months ends with the year 9999, and a tick may lie beyond
)
MAX_FREQUENCY = 1_000_000


class Strict(BaseModel):
    """Takes nothing that it does not know: a mistyped name would be lost without a word."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _says_what_is_unknown(cls, value: Any) -> Any:
        if isinstance(value, dict) and (
            unknown := sorted(str(name)[:80] for name in set(value) - set(cls.model_fields))
        ):
            near = difflib.get_close_matches(unknown[0], cls.model_fields, n=1)
            meant = (
                f"did you mean {near[0]!r}?"
                if near
                else f"there are {', '.join(cls.model_fields) or 'none'}"
            )
            raise ValueError(f"there is no field {unknown[0]!r}; {meant}")
        return value


def _table(value: Any) -> tuple[str, str]:
    """A name, or {"cluster": ..., "table": ...}."""
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
_STEP_IN_URL = {  # where null cannot be written
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
    """How far the producer's log is registered once these events are. `expected` is the position that was read, null for none. `seen`: what
    the producer has to remember by item.
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
    """Events, which get their places in this order."""

    events: list[Event] = Field(max_length=MAX_ENTRIES)
    outbox: OutboxBody | None = None


class Registered(BaseModel):
    """An event with its place. `duplicate`: it was there before. `gap`: nobody registered its predecessor."""

    event: RegisteredEvent
    duplicate: bool
    gap: bool


class RegisteredAnswer(BaseModel):
    """One answer an event, in the order given."""

    registered: list[Registered]


class Meant(Strict):
    """Which events: of any of these tables (of all when none is named), of this partition, with all of these tags."""

    tables: list[Table] = Field(default=[], max_length=MAX_ENTRIES)
    partition: Partition = None
    tags: Tags = Field(default={})


class Query(Meant):
    """Events with after < seq <= until and start_ts <= event_ts < end_ts, ascending by seq."""

    after: Long = 0
    until: Long | None = None
    start_ts: Long | None = None
    end_ts: Long | None = None
    limit: Annotated[int, Field(strict=True, ge=1, le=MAX_LIMIT)] = 1000


class Tail(Strict):
    """What is new for everybody."""

    after: LongText = 0
    limit: Limit = 1000


class Page(BaseModel):
    """Ask again after `next_after`; at once if there is `more`. `expired`: the greatest seq of these tables' events that expired.

    Of a range of times: no event from `covered_from_ts` on and before `covered_until_ts` is missing, and none will come. Earlier ones
    expired.
    """

    events: list[Registered]
    next_after: Long
    more: bool
    head: Long
    expired: Long
    covered_from_ts: Long | None = None
    covered_until_ts: Long | None = None


class InterestBody(Meant):
    """The first event after `after` that matches."""

    tables: list[Table] = Field(min_length=1, max_length=MAX_ENTRIES)
    after: Long = 0

    def interest(self) -> Interest:
        tables: tuple[TableName, ...] = tuple(self.tables)
        return Interest(tables=tables, partition=self.partition, tags=self.tags, after=self.after)


class Find(Strict):
    """What many wait for: one query answers all."""

    interests: list[InterestBody] = Field(max_length=MAX_ENTRIES)

    @model_validator(mode="after")
    def _is_one_query(self) -> Self:
        if (count := sum(len(interest.tables) for interest in self.interests)) > MAX_TABLES:
            raise ValueError(
                f"the interests name {count:,} tables, and one request takes {MAX_TABLES:,}; send several"
            )
        return self


class Found(BaseModel):
    """For each interest the first seq that matches, or null."""

    seqs: list[Long | None]
    head: Long


class Head(BaseModel):
    """The greatest seq that a watermark may take now."""

    head: Long


class TableQuery(Strict):
    """Which table."""

    table: Name
    cluster: Name = DEFAULT_CLUSTER


class TableState(BaseModel):
    """What is known of a table, and how far its producer's log is registered."""

    table: str
    cluster: str
    depth: int | None
    last_seq: Long | None
    last_snapshot_id: str | None
    position: JsonValue


class SeenQuery(TableQuery):
    """`after` is the `next_after` of the page before."""

    after: Annotated[str, Field(max_length=DIGEST_CHARS, pattern=r"^[A-Za-z0-9_-]*$")] = ""


class SeenPage(BaseModel):
    """What the table's producer remembers, as pairs of item and value. Ask again after `next_after`, unless it is null."""

    items: list[tuple[str, JsonValue]]
    next_after: str | None


class TableAnswer(BaseModel):
    """`state` is null for a table that nobody has spoken of."""

    state: TableState | None


class ConsumerQuery(Strict):
    """Whose watermarks."""

    consumer: Name


class ConsumersQuery(Strict):
    """How many consumers."""

    limit: Limit = 1000


class WatermarkQuery(ConsumerQuery):
    """Which watermark."""

    key: Key = ""


class WatermarkDelete(WatermarkQuery):
    """`expected` is the revision that was read. `step` names this change: sent again under the same name, it is done once."""

    expected: LongText
    step: Annotated[Step | None, WithJsonSchema(_STEP_IN_URL)] = None


class WatermarkPut(Strict):
    """`expected` is the revision that was read; null when there is none yet. `step` names this change: sent again under the same name, it is
    done once.
    """

    consumer: Name
    key: Key = ""
    value: JsonValue
    expected: Long | None = None
    step: Step | None = None


class Watermark(BaseModel):
    """How far a consumer is. `revision` rises with every change."""

    consumer: str
    key: str
    value: JsonValue
    revision: Long
    updated_ts: Long


class WatermarkAnswer(BaseModel):
    """`watermark` is null when there is none."""

    watermark: Watermark | None


class Watermarks(BaseModel):
    """All of a consumer, by key."""

    watermarks: list[Watermark]


class Consumer(BaseModel):
    """How far somebody is who reads events in their order. `moved_ts`: when he moved last, or began."""

    consumer: str
    seq: int
    moved_ts: Long


class Consumers(BaseModel):
    """The furthest behind first."""

    consumers: list[Consumer]


class PartitionTriggerBody(Strict):
    """`now_ts` is the service's own time when it is null."""

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
            **{name: getattr(self, name) for name in type(self).model_fields if name != "now_ts"}
        )


class PartitionFired(BaseModel):
    """It fires when there is an event. Where none matches, `expired_seq` is that of the partition's last event that expired: one with
    the tags may be among them. Without tags that is answered by 410.
    """

    events: list[RegisteredEvent]
    expired_seq: Long


class SnapshotTriggerBody(Strict):
    """`any` fires when one of the tables changed, `all` when each of them did."""

    tables: list[Table] = Field(min_length=1, max_length=MAX_ENTRIES)
    mode: Literal["any", "all"] = "any"
    tags: Tags = Field(default={})
    after_seq: Long = 0
    max_events: Annotated[int, Field(strict=True, ge=1, le=MAX_LIMIT)] = 1000

    def trigger(self) -> SnapshotTrigger:
        return SnapshotTrigger(tables=self.tables, mode=self.mode, tags=self.tags)


class SnapshotFired(BaseModel):
    """Events with from_seq < seq <= to_seq that match. `expired`: some that were not seen may have been deleted."""

    events: list[RegisteredEvent]
    from_seq: Long
    to_seq: Long
    expired: bool


class SnapshotAnswer(BaseModel):
    """`fired` is null when it does not fire."""

    fired: SnapshotFired | None


class Expire(Strict):
    """Delete events registered before this time (milliseconds since 1970), but not what some consumer has not seen."""

    older_than_ms: Long
    keep_unseen: Annotated[bool, Field(strict=True)] = True


class Expired(BaseModel):
    """How many events were deleted."""

    expired: Long


class Check(BaseModel):
    """One line that says what is there."""

    check: str


TokenName = Annotated[
    str,
    PlainValidator(checked_token_name),
    WithJsonSchema({**NAME, "maxLength": MAX_TOKEN_NAME_CHARS}),
]


class TokenQuery(Strict):
    """Which token. A name may be one that no path can hold, such as `..`."""

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
    """The only time that the secret is shown."""

    token: str
    name: str
    role: str


class Tokens(BaseModel):
    """Revoked ones too."""

    tokens: list[Token]


class Health(BaseModel):
    """The process answers; of `/ready`, the database too."""

    status: Literal["ok"]


class ProblemAnswer(BaseModel):
    """What went wrong and what to do."""

    error: str = Field(examples=sorted({problem.name for problem in PROBLEMS}))
    message: str
