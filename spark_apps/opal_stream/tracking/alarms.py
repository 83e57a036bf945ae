"""Alarms of a stream: lag, stall, loss, duplicates and what stops it.

They come from its status and from its tracking events of the last day.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from opal_lake.errors import count_text
from opal_stream.tracking.status import PartitionStatus

PartitionName = tuple[str, str, int]  # stream, topic and number


class _Event(NamedTuple):
    """The part of a tracking event that alarms need; there may be millions of them."""

    kind: str
    low: int
    high: int
    repeated: int  # messages that came again


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmLimits:
    """The limits above which lag, in messages, and stall, in seconds, are alarms.

    None for no alarm of the kind.
    """

    lag: int | None = None
    stall_s: float | None = None

    @property
    def are_given(self) -> bool:
        return self.lag is not None or self.stall_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An alarm of one partition.

    `kind` is lag, stall, transaction, topic, gathered, loss or duplicates.
    """

    kind: str
    stream: str
    topic: str
    partition: int
    message: str

    @property
    def name(self) -> PartitionName:
        """The stream, the topic and the number of the partition."""
        return self.stream, self.topic, self.partition


def find_alarms(
    entries: Sequence[PartitionStatus],
    limits: AlarmLimits,
    events: Iterable[Mapping[str, Any]] = (),
) -> list[Alarm]:
    """Return the alarms by kind, stream and partition.

    Events of other topics, or of topics that were created again, do not count.
    """
    known = {(entry.stream, entry.topic_id, entry.topic, entry.partition) for entry in entries}
    by_partition: dict[PartitionName, list[_Event]] = {}
    for event in events:
        stream, topic, partition = event["stream"], event["topic"], event["partition"]
        if (stream, event["topic_id"], topic, partition) not in known:
            continue
        needed = _Event(event["event"], event["low"], event["high"], event.get("repeated", 0))
        by_partition.setdefault((stream, topic, partition), []).append(needed)
    alarms: list[Alarm] = []
    for entry in entries:
        alarms += _of_status(entry, limits)
    for name, own in by_partition.items():
        alarms += _of_events(name, own)
    return sorted(alarms, key=lambda alarm: (alarm.kind, alarm.name))


def _of_status(entry: PartitionStatus, limits: AlarmLimits) -> Iterator[Alarm]:
    where = f"{entry.stream} {entry.topic}/{entry.partition}"
    name = entry.stream, entry.topic, entry.partition
    lag = entry.lag or 0
    if limits.lag is not None and lag > limits.lag:
        behind = count_text(lag, "message")
        yield _alarm("lag", name, f"{where} is {behind} behind, more than {limits.lag:,}")
    if limits.stall_s is not None:
        yield from _stalls(entry, where, lag, limits.stall_s)
    if limits.are_given:
        for kind, problem in entry.problems.items():
            yield _alarm(kind, name, problem)
    if entry.lost:
        lost = count_text(entry.lost, "offset")
        first = (entry.position or 0) + entry.gathered
        message = f"{where}: Kafka deleted {lost} from {first:,} on before they were read"
        yield _alarm("loss", name, message)


def _stalls(entry: PartitionStatus, where: str, lag: int, limit_s: float) -> Iterator[Alarm]:
    name = entry.stream, entry.topic, entry.partition
    waiting_s, open_s = entry.waiting_s, entry.open_s
    is_late = waiting_s is not None and waiting_s >= limit_s
    if lag and is_late and not entry.has_moved:
        waits = f"message has waited for {waiting_s:,.0f} s"
        if entry.position is None:
            message = f"{where} has never been committed: its oldest {waits}"
        else:
            message = f"{where} stays at {entry.position:,}, and its next {waits}"
        yield _alarm("stall", name, message)
    if open_s and open_s >= limit_s:
        offsets = count_text(lag, "offset")
        yield _alarm(
            "transaction",
            name,
            f"{where} waits for a transaction that has been open for {open_s:,.0f} s, and "
            f"{offsets} with it: check that its producer still runs; otherwise find it by Kafka's "
            "kafka-transactions.sh find-hanging, and abort it",
        )


def _alarm(kind: str, name: PartitionName, message: str) -> Alarm:
    stream, topic, partition = name
    return Alarm(kind=kind, stream=stream, topic=topic, partition=partition, message=message)


def _of_events(name: PartitionName, events: Sequence[_Event]) -> Iterator[Alarm]:
    """Yield the alarms of a partition's events: loss and duplicates.

    Messages are in the table twice if two commits have their offsets, or if they came again within
    one commit.
    """
    stream, topic, partition = name
    where = f"{stream} {topic}/{partition}"
    gaps = [event for event in events if event.kind == "gap"]
    if lost := sum(gap.high - gap.low for gap in gaps):
        first = min(gap.low for gap in gaps)
        offsets = count_text(lost, "offset")
        message = f"{where}: {offsets} from {first:,} on were passed over in the last day"
        yield _alarm("loss", name, message)
    flushes = [event for event in events if event.kind == "flush"]
    repeated = sum(flush.repeated for flush in flushes)
    reached = 0
    for flush in sorted(flushes):
        repeated += max(0, min(reached, flush.high) - flush.low)
        reached = max(reached, flush.high)
    if repeated:
        message = f"{where}: {count_text(repeated, 'message')} came twice in the last day"
        yield _alarm("duplicates", name, message)
