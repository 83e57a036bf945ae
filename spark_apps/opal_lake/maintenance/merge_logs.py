"""A merge of short segment logs to fewer, longer ones.

Events are sorted by segment; those of rows that no longer are in a file are left out.
"""

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
BIN_EVENTS = 1 << 22  # that a task has in memory
FEW_LOGS = 8  # short logs: with fewer, a merge is not worth a job


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTask:
    """The arguments of all tasks; `forgotten` rows no longer are in a file."""

    storage: Storage
    number: int
    groups: SegmentGroups
    forgotten: Mapping[int, BitMap]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWork:
    """A bin of logs, and its position among those of the job."""

    position: int
    logs: tuple[LogFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedLogs:
    """The merged logs, the paths that they replace, and the counts of events.

    `events` were read, and `forgotten` were left out because their rows are gone.
    """

    replaced: tuple[str, ...]
    logs: tuple[LogFile, ...]
    events: int
    forgotten: int


def plan_log_bins(
    snapshot: Snapshot, forgotten: Bitmaps, *, loses_segments: bool = False
) -> list[LogWork]:
    """Plan which logs to merge: short ones, and all that may hold events of gone rows.

    Neighbours in time are merged with each other. `loses_segments` says that segments whose rows
    are all forgotten will be gone by then.
    """
    logs = sorted(snapshot.logs.values(), key=lambda log: (log.version, log.path))
    touched = _logs_of_forgotten(logs, snapshot, forgotten, loses_segments=loses_segments)
    has_many_short = sum(is_short(log) for log in logs) >= FEW_LOGS
    chosen = [log for log in logs if log.path in touched or (has_many_short and is_short(log))]
    return [
        LogWork(position=index, logs=logs_bin)
        for index, logs_bin in enumerate(_packed(chosen))
        if len(logs_bin) > 1 or logs_bin[0].path in touched
    ]


def _logs_of_forgotten(
    logs: Sequence[LogFile], snapshot: Snapshot, forgotten: Bitmaps, *, loses_segments: bool
) -> set[str]:
    """Return the paths of logs that may hold events of forgotten rows."""
    if not forgotten:
        return set()
    known = snapshot.segments
    # The groups of segments that are gone are unknown, so any log may hold their events
    if loses_segments or forgotten.keys() - known.keys():
        return {log.path for log in logs}
    groups = {known[segment].group for segment in forgotten}
    return {log.path for log in logs if not log.groups or not groups.isdisjoint(log.groups)}


def is_short(log: LogFile) -> bool:
    """Return whether a log has so few events that it is worth merging."""
    return log.events < LOG_EVENTS // 2


def _packed(logs: Sequence[LogFile]) -> Iterator[tuple[LogFile, ...]]:
    packed: list[LogFile] = []
    events = 0
    for log in logs:
        if packed and events + log.events > BIN_EVENTS:
            yield tuple(packed)
            packed, events = [], 0
        packed.append(log)
        events += log.events
    if packed:
        yield tuple(packed)


def merge_logs(task: LogTask, work: LogWork, attempt: str) -> MergedLogs:
    """Write the least event of each row that still exists."""
    read = concat_events(read_events(task.storage, log) for log in work.logs)
    is_forgotten = Marks.of(task.forgotten).at(read.segment, read.offset)
    known = read.take(~is_forgotten)
    version = max(log.version for log in work.logs)
    logs = []
    for part, events in enumerate(_portions(least_events(known))):
        stem = layout.job_file_name(task.number, work.position << 12 | part, attempt)
        groups = task.groups.of(events.segment)
        log = write_events(task.storage, layout.segment_log_path(stem), events, groups)
        logs.append(replace(log, version=version))
    return MergedLogs(
        replaced=tuple(log.path for log in work.logs),
        logs=tuple(logs),
        events=sum(log.events for log in work.logs),
        forgotten=len(read) - len(known),
    )


def _portions(events: Events) -> Iterator[Events]:
    for start in range(0, len(events), LOG_EVENTS):
        yield events.take(np.arange(start, min(start + LOG_EVENTS, len(events))))


def log_actions(head: Snapshot, done: Sequence[MergedLogs]) -> Actions:
    """Return actions that replace logs by merged ones.

    Merged logs of which another job removed an input are left out.
    """
    valid = [merged for merged in done if head.logs.keys() >= set(merged.replaced)]
    return Actions(
        add_logs=tuple(log for merged in valid for log in merged.logs),
        remove_logs=tuple(path for merged in valid for path in merged.replaced),
        removed_events=sum(merged.events for merged in valid),
        forgotten=any(merged.forgotten for merged in valid),
    )
