"""Segment logs of few events each as fewer, longer ones, by segment; without the events of rows that no file holds any more."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pyroaring import BitMap

from opal_lake import layout
from opal_lake.bitmap import Bitmaps, Marks
from opal_lake.commit import Actions, log_from_json, log_to_json
from opal_lake.segment import LogFile
from opal_lake.segment_log import Events, concat_events, least_events, read_events, write_events
from opal_lake.slot import SegmentGroups
from opal_lake.snapshot import Snapshot
from opal_lake.storage.protocol import Storage

LOG_EVENTS = 1 << 20  # of a merged log
BIN_EVENTS = 1 << 22  # that a task holds
FEW_LOGS = 8  # of fewer events than a merged log: not worth a job


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTask:
    """What all tasks need to know. `forgotten` are the rows that no file holds any more."""

    storage: Storage
    number: int
    groups: SegmentGroups
    forgotten: Mapping[int, BitMap]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWork:
    """Some logs, and their place among those of the job."""

    place: int
    logs: tuple[LogFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedLogs:
    """What stands for which logs, and how many events were left out because their rows are gone."""

    replaced: tuple[str, ...]
    logs: tuple[LogFile, ...]
    events: int
    forgotten: int


def merged_to_json(done: MergedLogs) -> dict[str, Any]:
    """For the way from a task to the driver. A log's version is among what is kept."""
    logs = [log_to_json(log) for log in done.logs]
    return {"replaced": list(done.replaced), "logs": logs, "events": done.events, "forgotten": done.forgotten}


def merged_from_json(data: Mapping[str, Any]) -> MergedLogs:
    logs = tuple(map(log_from_json, data["logs"]))
    return MergedLogs(replaced=tuple(data["replaced"]), logs=logs, events=data["events"], forgotten=data["forgotten"])


def plan_log_bins(snapshot: Snapshot, forgotten: Bitmaps) -> list[LogWork]:
    """Short logs, neighbours in time together; all that may know rows which are gone."""
    groups = {snapshot.segments[segment].group for segment in forgotten if segment in snapshot.segments}
    every = bool(forgotten.keys() - snapshot.segments.keys())
    logs = sorted(snapshot.logs.values(), key=lambda log: (log.version, log.path))
    has_many_short = sum(is_short(log) for log in logs) >= FEW_LOGS
    touched = {log.path for log in logs if forgotten and (every or not log.groups or not groups.isdisjoint(log.groups))}
    taken = [log for log in logs if log.path in touched or (has_many_short and is_short(log))]
    return [LogWork(place=place, logs=one) for place, one in enumerate(_packed(taken)) if len(one) > 1 or one[0].path in touched]


def is_short(log: LogFile) -> bool:
    return log.events < LOG_EVENTS // 2


def _packed(logs: Sequence[LogFile]) -> Iterator[tuple[LogFile, ...]]:
    held: list[LogFile] = []
    events = 0
    for log in logs:
        if held and events + log.events > BIN_EVENTS:
            yield tuple(held)
            held, events = [], 0
        held.append(log)
        events += log.events
    if held:
        yield tuple(held)


def merge_logs(task: LogTask, work: LogWork, attempt: str) -> MergedLogs:
    """The least event of each row that is there."""
    read = concat_events(read_events(task.storage, log) for log in work.logs)
    known = read.take(~Marks.of(task.forgotten).at(read.segment, read.offset))
    version = max(log.version for log in work.logs)
    logs = [
        replace(log, version=version)
        for part, events in enumerate(_portions(least_events(known)))
        for log in [_written(task, events, layout.job_file_name(task.number, work.place << 12 | part, attempt))]
    ]
    events = sum(log.events for log in work.logs)
    replaced = tuple(log.path for log in work.logs)
    return MergedLogs(replaced=replaced, logs=tuple(logs), events=events, forgotten=len(read) - len(known))


def _written(task: LogTask, events: Events, stem: str) -> LogFile:
    return write_events(task.storage, layout.segment_log_path(stem), events, task.groups.of(events.segment))


def _portions(events: Events) -> Iterator[Events]:
    for start in range(0, len(events), LOG_EVENTS):
        yield events.take(np.arange(start, min(start + LOG_EVENTS, len(events))))


def log_actions(head: Snapshot, done: Sequence[MergedLogs]) -> Actions:
    """Of logs that another job took away meanwhile, nothing is taken."""
    ours = [one for one in done if all(path in head.logs for path in one.replaced)]
    return Actions(
        add_logs=tuple(log for one in ours for log in one.logs),
        remove_logs=tuple(path for one in ours for path in one.replaced),
        removed_events=sum(one.events for one in ours),
        forgotten=any(one.forgotten for one in ours),
    )
