"""Segment logs of few events each as fewer, longer ones, by segment; without the events of rows that no file holds any more."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap

from opal_lake import layout
from opal_lake.data.segment import LogFile
from opal_lake.events.bitmap import Bitmaps, Marks
from opal_lake.events.segment_log import (
    Events,
    concat_events,
    least_events,
    read_events,
    write_events,
)
from opal_lake.log.commit import Actions
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.slot import SegmentGroups
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
    """Some logs, and their position among those of the job."""

    position: int
    logs: tuple[LogFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedLogs:
    """What stands for which logs, and how many events were left out because their rows are gone."""

    replaced: tuple[str, ...]
    logs: tuple[LogFile, ...]
    events: int
    forgotten: int


def plan_log_bins(
    snapshot: Snapshot, forgotten: Bitmaps, *, loses_segments: bool = False
) -> list[LogWork]:
    """Short logs, neighbours in time together; all that may know rows which are gone.

    `loses_segments` says that segments whose rows are all forgotten will be gone by then.
    """
    groups = {
        snapshot.segments[segment].group for segment in forgotten if segment in snapshot.segments
    }
    every = loses_segments or bool(forgotten.keys() - snapshot.segments.keys())
    logs = sorted(snapshot.logs.values(), key=lambda log: (log.version, log.path))
    has_many_short = sum(is_short(log) for log in logs) >= FEW_LOGS
    touched = {
        log.path
        for log in logs
        if forgotten and (every or not log.groups or not groups.isdisjoint(log.groups))
    }
    chosen = [log for log in logs if log.path in touched or (has_many_short and is_short(log))]
    return [
        LogWork(position=index, logs=logs_bin)
        for index, logs_bin in enumerate(_packed(chosen))
        if len(logs_bin) > 1 or logs_bin[0].path in touched
    ]


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
    """The least event of each row that still exists."""
    read = concat_events(read_events(task.storage, log) for log in work.logs)
    known = read.take(~Marks.of(task.forgotten).at(read.segment, read.offset))
    version = max(log.version for log in work.logs)
    logs = [
        replace(log, version=version)
        for part, events in enumerate(_portions(least_events(known)))
        for log in [
            _written(
                task, events, layout.job_file_name(task.number, work.position << 12 | part, attempt)
            )
        ]
    ]
    events = sum(log.events for log in work.logs)
    replaced = tuple(log.path for log in work.logs)
    return MergedLogs(
        replaced=replaced, logs=tuple(logs), events=events, forgotten=len(read) - len(known)
    )


def _written(task: LogTask, events: Events, stem: str) -> LogFile:
    return write_events(
        task.storage, layout.segment_log_path(stem), events, task.groups.of(events.segment)
    )


def _portions(events: Events) -> Iterator[Events]:
    for start in range(0, len(events), LOG_EVENTS):
        yield events.take(np.arange(start, min(start + LOG_EVENTS, len(events))))


def log_actions(head: Snapshot, done: Sequence[MergedLogs]) -> Actions:
    """Merged logs of which another job removed an input are left out."""
    ours = [merged for merged in done if all(path in head.logs for path in merged.replaced)]
    return Actions(
        add_logs=tuple(log for merged in ours for log in merged.logs),
        remove_logs=tuple(path for merged in ours for path in merged.replaced),
        removed_events=sum(merged.events for merged in ours),
        forgotten=any(merged.forgotten for merged in ours),
    )
