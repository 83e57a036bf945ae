"""A merge of short segment logs to fewer, longer ones.

The events of a merged log are sorted by segment. Events of rows that no longer are in a file are
left out.
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
_PART_BITS = 12  # of the sequence number in a log's name, for its position among those of a bin


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
    """Plan which logs to merge: short ones, and those with events of forgotten rows.

    Logs are merged with their neighbours in time. `loses_segments` says that the table will have
    lost whole segments when the merge begins, as all their rows are forgotten.
    """
    logs = sorted(snapshot.logs.values(), key=lambda log: (log.version, log.path))
    touched = _logs_of_forgotten(logs, snapshot, forgotten, loses_segments=loses_segments)
    has_many_short = sum(is_short(log) for log in logs) >= FEW_LOGS
    chosen = [log for log in logs if log.path in touched or (has_many_short and is_short(log))]
    works: list[LogWork] = []
    for index, logs_bin in enumerate(_packed(chosen)):
        # A single log without events to leave out would be written again as it is
        if len(logs_bin) > 1 or logs_bin[0].path in touched:
            works.append(LogWork(position=index, logs=logs_bin))
    return works


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
    """Yield bins of logs in their order, each of at most `BIN_EVENTS` or a single log."""
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
    """Merge the logs of a bin: write the least event of each row that still exists."""
    read = concat_events(read_events(task.storage, log) for log in work.logs)
    is_forgotten = Marks.of(task.forgotten).at(read.segment, read.offset)
    known = read.take(~is_forgotten)
    version = max(log.version for log in work.logs)
    logs: list[LogFile] = []
    for part, events in enumerate(_portions(least_events(known))):
        sequence = work.position << _PART_BITS | part
        stem = layout.job_file_name(task.number, sequence, attempt)
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
    """Yield events in portions, each for a log of its own."""
    for start in range(0, len(events), LOG_EVENTS):
        stop = min(start + LOG_EVENTS, len(events))
        yield events.take(np.arange(start, stop))


def log_actions(head: Snapshot, done: Sequence[MergedLogs]) -> Actions:
    """Return actions that replace logs by merged ones.

    A merge is left out if another job has removed one of the logs that it replaces.
    """
    added: list[LogFile] = []
    removed: list[str] = []
    removed_events = 0
    has_forgotten = False
    for merged in done:
        if not head.logs.keys() >= set(merged.replaced):
            continue
        added += merged.logs
        removed += merged.replaced
        removed_events += merged.events
        has_forgotten |= merged.forgotten > 0
    return Actions(
        add_logs=tuple(added),
        remove_logs=tuple(removed),
        removed_events=removed_events,
        forgotten=has_forgotten,
    )
