"""What is wrong with a stream: lag, stall, loss, duplicates and what stops it, from its status and its tracking events of the last day."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opal_lake.errors import count_text
from opal_stream.tracking.status import PartitionStatus

Place = tuple[str, str, int]
Told = tuple[
    str, int, int, int
]  # of an event: its kind, low, high, and how many messages came again; there may be millions


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmLimits:
    """From where on lag, in messages, and stall, in seconds, are alarms; None for never."""

    lag: int | None = None
    stall_s: float | None = None

    @property
    def are_given(self) -> bool:
        return self.lag is not None or self.stall_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """`kind` is lag, stall, transaction, topic, gathered, loss or duplicates."""

    kind: str
    stream: str
    topic: str
    partition: int
    message: str

    @property
    def place(self) -> Place:
        return self.stream, self.topic, self.partition


def find_alarms(
    entries: Sequence[PartitionStatus],
    limits: AlarmLimits,
    events: Iterable[Mapping[str, Any]] = (),
) -> list[Alarm]:
    """By kind, stream and partition. Of the events, those of other topics, or of topics that were made anew, do not count."""
    known = {(entry.stream, entry.topic_id, entry.topic, entry.partition) for entry in entries}
    by_place: dict[Place, list[Told]] = {}
    for event in events:
        if (event["stream"], event["topic_id"], event["topic"], event["partition"]) in known:
            told = event["event"], event["low"], event["high"], event.get("repeated", 0)
            by_place.setdefault((event["stream"], event["topic"], event["partition"]), []).append(
                told
            )
    alarms = [alarm for entry in entries for alarm in _of_status(entry, limits)]
    alarms += [alarm for place, told in by_place.items() for alarm in _of_events(place, told)]
    return sorted(alarms, key=lambda alarm: (alarm.kind, alarm.place))


def _of_status(entry: PartitionStatus, limits: AlarmLimits) -> Iterator[Alarm]:
    where = f"{entry.stream} {entry.topic}/{entry.partition}"
    lag = entry.lag or 0
    if limits.lag is not None and lag > limits.lag:
        yield _alarm(
            "lag",
            entry,
            f"{where} is {count_text(lag, 'message')} behind, more than {limits.lag:,}",
        )
    if (
        limits.stall_s is not None
        and lag
        and entry.waiting_s is not None
        and entry.waiting_s >= limits.stall_s
        and not entry.has_moved
    ):
        stays = (
            "has never been committed: its oldest"
            if entry.position is None
            else f"stays at {entry.position:,}, and its next"
        )
        yield _alarm(
            "stall", entry, f"{where} {stays} message waits since {entry.waiting_s:,.0f} s"
        )
    if limits.stall_s is not None and (entry.open_s or 0) >= limits.stall_s and entry.open_s:
        yield _alarm(
            "transaction",
            entry,
            f"{where} waits for a transaction that has been open for {entry.open_s:,.0f} s, and {count_text(lag, 'offset')} with it: see "
            "whether its producer still runs; else find it by Kafka's kafka-transactions.sh find-hanging, and abort it",
        )
    for kind, problem in entry.problems.items() if limits.are_given else ():
        yield _alarm(kind, entry, problem)
    if entry.lost:
        first = (entry.position or 0) + entry.gathered
        yield _alarm(
            "loss",
            entry,
            f"{where}: Kafka has deleted {count_text(entry.lost, 'offset')} from {first:,} on unread",
        )


def _alarm(kind: str, entry: PartitionStatus, message: str) -> Alarm:
    return Alarm(
        kind=kind,
        stream=entry.stream,
        topic=entry.topic,
        partition=entry.partition,
        message=message,
    )


def _of_events(place: Place, events: Sequence[Told]) -> Iterator[Alarm]:
    """A range that two commits have, or one commit more than once, is there twice."""
    stream, topic, partition = place
    where = f"{stream} {topic}/{partition}"
    if lost := sum(high - low for kind, low, high, _ in events if kind == "gap"):
        first = min(low for kind, low, _, _ in events if kind == "gap")
        message = f"{where}: {count_text(lost, 'offset')} from {first:,} on were passed over in the last day"
        yield Alarm(kind="loss", stream=stream, topic=topic, partition=partition, message=message)
    flushes = sorted((low, high, again) for kind, low, high, again in events if kind == "flush")
    repeated = sum(again for _, _, again in flushes)
    reached = 0
    for low, high, _ in flushes:
        repeated += max(0, min(reached, high) - low)
        reached = max(reached, high)
    if repeated:
        message = f"{where}: {count_text(repeated, 'message')} came twice in the last day"
        yield Alarm(
            kind="duplicates", stream=stream, topic=topic, partition=partition, message=message
        )
