"""Partition triggers, which fire once an event of a partition is registered.

They have no state.
"""

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
    """A trigger that is evaluated at start_ts + n x frequency.

    It fires if a matching event is registered by then, however old the event is.
    """

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
        # Raises for an invalid frequency or unit
        tick_at(self.start_ts, self.frequency, self.unit, 0)

    @property
    def interest(self) -> Interest:
        """The interest of this trigger. One `find` takes the interests of many triggers."""
        return Interest(
            tables=((self.cluster, self.table),), partition=self.partition, tags=self.tags
        )

    def is_due(self, now_ts: int, evaluated_ts: int | None = None) -> bool:
        """Return whether a tick has passed since the last evaluation."""
        newest = tick_number(self.start_ts, self.frequency, self.unit, now_ts)
        if newest is None:
            return False
        if evaluated_ts is None:
            return True
        return tick_at(self.start_ts, self.frequency, self.unit, newest) > evaluated_ts

    def evaluate(self, reader: Reader, now_ts: int) -> tuple[DataChangeEvent, ...]:
        """Return the registered events that match; the trigger fires if there is one.

        Before `start_ts` there is none. Raises ExpiredError if all events of the partition expired:
        a wait would never end.
        """
        return self.look(reader, now_ts).events

    def look(self, reader: Reader, now_ts: int) -> "PartitionLook":
        """Return the events of `evaluate`, and the last expired event of the partition."""
        if now_ts < self.start_ts:
            return PartitionLook(events=(), expired_seq=0)
        return look_at_partition(reader, self.interest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLook:
    """The matching events of a partition.

    If there are none, `expired_seq` is the seq of the partition's last expired event, or 0.
    """

    events: tuple[DataChangeEvent, ...]
    expired_seq: int

    def warning(self, interest: Interest) -> str | None:
        """Return a warning that a wait for the partition may never end, or None."""
        if self.events or not self.expired_seq:
            return None
        return (
            f"{_expired_text(interest, self.expired_seq)}. "
            f"One of them may have had the tags {dict(interest.tags)}, and this wait misses it. "
            "If so, register it again, and keep events for longer than a consumer waits"
        )


def look_at_partition(reader: Reader, interest: Interest) -> PartitionLook:
    """Return the matching events of a partition.

    Raises ExpiredError if all events of the partition expired and the interest has no tags. With
    tags it is unknown whether an expired event matched.
    """
    events = tuple(registered.event for registered in read_all(reader, interest))
    if events:
        return PartitionLook(events=events, expired_seq=0)
    # Asked only for `expired` of the page
    page = reader.events(interest.tables, until=0, partition=interest.partition, limit=1)
    if page.expired and not interest.tags:
        raise ExpiredError(
            f"{_expired_text(interest, page.expired)}. Read the table, or register the partition "
            "again; keep events for longer than a consumer waits"
        )
    return PartitionLook(events=(), expired_seq=page.expired)


def _expired_text(interest: Interest, expired_seq: int) -> str:
    names = [table_name(table)[1] for table in interest.tables]
    partition = partition_text(interest.partition or ())
    return (
        f"partition {partition} of {', '.join(names)} was registered, "
        f"and its events up to seq {expired_seq} have expired"
    )
