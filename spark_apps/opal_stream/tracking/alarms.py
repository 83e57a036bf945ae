"""What is wrong with a stream: lag, stall, loss and duplicates, from its status and from the tracking events of the last day."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from opal_lake.errors import InvalidInputError, count_text
from opal_stream.tracking.status import PartitionStatus

EVENTS_OF = timedelta(days=1)  # an older loss is history
Place = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmLimits:
    """From where on lag, in messages, and stall, in seconds, are alarms; None for never."""

    lag: int | None = None
    stall_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """`kind` is lag, stall, loss or duplicates."""

    kind: str
    stream: str
    topic: str
    partition: int
    message: str

    @property
    def place(self) -> Place:
        return self.stream, self.topic, self.partition


def find_alarms(entries: Sequence[PartitionStatus], limits: AlarmLimits, events: Iterable[Mapping[str, Any]] = ()) -> list[Alarm]:
    """By kind, stream and partition. Of the events, those of other topics, or of topics that were made anew, do not count."""
    known = {(entry.stream, entry.topic_id, entry.topic, entry.partition) for entry in entries}
    by_place: dict[Place, list[Mapping[str, Any]]] = {}
    for event in events:
        if (event["stream"], event["topic_id"], event["topic"], event["partition"]) in known:
            by_place.setdefault((event["stream"], event["topic"], event["partition"]), []).append(event)
    alarms = [alarm for entry in entries for alarm in _of_status(entry, limits)]
    alarms += [alarm for place, told in by_place.items() for alarm in _of_events(place, told)]
    return sorted(alarms, key=lambda alarm: (alarm.kind, alarm.place))


def read_events(folder: str, now: datetime | None = None) -> list[dict[str, Any]]:
    """Those of the last day. A last line that is being written is left out."""
    if not Path(folder).is_dir():
        raise InvalidInputError(f"--tracking {folder!r}: there is no such folder; give the one that the stream writes its events into")
    since = ((now or datetime.now(UTC)) - EVENTS_OF).isoformat(timespec="milliseconds")
    lines = [line for path in sorted(Path(folder).glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines(keepends=True)]
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in events if event["at"] >= since and "topic_id" in event]


def _of_status(entry: PartitionStatus, limits: AlarmLimits) -> Iterator[Alarm]:
    where = f"{entry.stream} {entry.topic}/{entry.partition}"
    lag = entry.lag or 0
    if limits.lag is not None and lag > limits.lag:
        yield _alarm("lag", entry, f"{where} is {count_text(lag, 'message')} behind, more than {limits.lag:,}")
    if limits.stall_s is not None and lag and entry.waiting_s is not None and entry.waiting_s >= limits.stall_s and not entry.has_moved:
        yield _alarm("stall", entry, f"{where} stays at {entry.position:,}, and its next message waits since {entry.waiting_s:,.0f} s")
    if entry.lost:
        yield _alarm(
            "loss",
            entry,
            f"{where}: Kafka has deleted {count_text(entry.lost, 'offset')} from {entry.position + entry.gathered:,} on unread",
        )


def _alarm(kind: str, entry: PartitionStatus, message: str) -> Alarm:
    return Alarm(kind=kind, stream=entry.stream, topic=entry.topic, partition=entry.partition, message=message)


def _of_events(place: Place, events: Sequence[Mapping[str, Any]]) -> Iterator[Alarm]:
    """A range that two commits have, or one commit more than once, is there twice."""
    stream, topic, partition = place
    where = f"{stream} {topic}/{partition}"
    if lost := sum(event["high"] - event["low"] for event in events if event["event"] == "gap"):
        first = min(event["low"] for event in events if event["event"] == "gap")
        message = f"{where}: {count_text(lost, 'offset')} from {first:,} on were passed over in the last day"
        yield Alarm(kind="loss", stream=stream, topic=topic, partition=partition, message=message)
    flushes = sorted((event["low"], event["high"], event["repeated"]) for event in events if event["event"] == "flush")
    repeated = sum(again for _, _, again in flushes)
    reached = 0
    for low, high, _ in flushes:
        repeated += max(0, min(reached, high) - low)
        reached = max(reached, high)
    if repeated:
        message = f"{where}: {count_text(repeated, 'message')} came twice in the last day"
        yield Alarm(kind="duplicates", stream=stream, topic=topic, partition=partition, message=message)
