"""Partition triggers: is this partition there, as far as its tags say so? They remember nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakechime.answers import Interest, table_name
from lakechime.errors import ExpiredError
from lakechime.event import (
    DEFAULT_CLUSTER,
    DataChangeEvent,
    JsonValue,
    check_name,
    checked_partition,
    checked_tags,
    partition_text,
)
from lakechime.triggers.reader import Reader, read_all
from lakechime.triggers.schedule import FrequencyUnit, tick_at, tick_number


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTrigger:
    """Evaluated at start_ts + n x frequency; fires when any event that is registered by then matches, whenever it was registered."""

    table: str
    partition: tuple[JsonValue, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    cluster: str = DEFAULT_CLUSTER
    start_ts: int = 0
    frequency: int = 1
    unit: FrequencyUnit = FrequencyUnit.MINUTE

    def __post_init__(self) -> None:
        check_name("table", self.table)
        check_name("cluster", self.cluster)
        object.__setattr__(self, "partition", checked_partition(self.partition))
        object.__setattr__(self, "tags", checked_tags(self.tags))
        tick_at(
            self.start_ts, self.frequency, self.unit, 0
        )  # a frequency or unit that is none is refused

    @property
    def interest(self) -> Interest:
        """To ask of many triggers at once, by `find`."""
        return Interest(
            tables=((self.cluster, self.table),), partition=self.partition, tags=self.tags
        )

    def is_due(self, now_ts: int, evaluated_ts: int | None = None) -> bool:
        """Whether there was a tick since it was evaluated last."""
        newest = tick_number(self.start_ts, self.frequency, self.unit, now_ts)
        if newest is None:
            return False
        return (
            evaluated_ts is None
            or tick_at(self.start_ts, self.frequency, self.unit, newest) > evaluated_ts
        )

    def evaluate(self, reader: Reader, now_ts: int) -> tuple[DataChangeEvent, ...]:
        """All that are registered; none, and it does not fire. Before start_ts it never fires.

        ExpiredError where the partition had events and all of them expired: waiting would last for ever.
        """
        return self.look(reader, now_ts).events

    def look(self, reader: Reader, now_ts: int) -> "PartitionLook":
        """The same, with what of the partition has expired."""
        if now_ts < self.start_ts:
            return PartitionLook(events=(), expired_seq=0)
        return look_at_partition(reader, self.interest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLook:
    """The events of a partition that match; where there are none, the seq of its last event that expired, or 0."""

    events: tuple[DataChangeEvent, ...]
    expired_seq: int

    def warning(self, interest: Interest) -> str | None:
        """Return what somebody who goes on waiting has to know."""
        if self.events or not self.expired_seq:
            return None
        return (
            f"{_expired_text(interest, self.expired_seq)}; whether one of them had the tags {dict(interest.tags)} is not known any more. "
            "If it had, nobody will see it: register it again, and keep events for longer than anybody waits for them"
        )


def look_at_partition(reader: Reader, interest: Interest) -> PartitionLook:
    """Return the events of a partition; ExpiredError where it had some, and all that match for certain expired."""
    found = tuple(registered.event for registered in read_all(reader, interest))
    if found:
        return PartitionLook(events=found, expired_seq=0)
    page = reader.events(interest.tables, until=0, partition=interest.partition, limit=1)
    if page.expired and not interest.tags:
        raise ExpiredError(
            f"{_expired_text(interest, page.expired)}. Read the table, or register the partition again; keep events for longer than "
            "anybody waits for them"
        )
    return PartitionLook(events=(), expired_seq=page.expired)


def _expired_text(interest: Interest, expired_seq: int) -> str:
    named = ", ".join(name for _, name in map(table_name, interest.tables))
    partition = partition_text(interest.partition or ())
    return f"partition {partition} of {named} was registered, and its events up to seq {expired_seq} have expired"
