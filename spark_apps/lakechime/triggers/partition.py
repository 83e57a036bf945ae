"""Partition triggers: is this partition there, as far as its tags say so? They remember nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakechime.answers import Interest
from lakechime.event import (
    DEFAULT_CLUSTER,
    DataChangeEvent,
    JsonValue,
    check_name,
    checked_partition,
    checked_tags,
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
        """All that are registered; none, and it does not fire. Before start_ts it never fires."""
        if now_ts < self.start_ts:
            return ()
        return tuple(found.event for found in read_all(reader, self.interest))
