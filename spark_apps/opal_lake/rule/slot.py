"""One task's share of a job that applies the rule: a range of the key hash, its new rows in, a segment log and a key-store run out."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opal_lake import layout
from opal_lake.data.segment import (
    LogFile,
    RunFile,
    log_from_json,
    log_to_json,
    run_from_json,
    run_to_json,
)
from opal_lake.events.segment_log import Events, write_events
from opal_lake.ids import SEQUENCE_BITS
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.entries import Entries, merged_entries
from opal_lake.key_store.merge import hash_range
from opal_lake.key_store.run import encode_run
from opal_lake.rule.metagen import Ruling, apply_rule
from opal_lake.storage.protocol import Storage

MERGE_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOutput:
    """A segment log. Its `own` segments came with the same job: which group they join is decided when it commits."""

    log: LogFile
    own: tuple[int, ...]

    def placed(self, groups: Mapping[int, int]) -> LogFile:
        return replace(
            self.log,
            groups=tuple(sorted({*self.log.groups, *(groups[segment] for segment in self.own)})),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOutput:
    """What a task wrote and counted; a file that nothing refers to is of no harm."""

    slot: int
    logs: tuple[LogOutput, ...]
    runs: tuple[RunFile, ...]
    counts: Mapping[str, int]


def output_to_json(output: SlotOutput) -> dict[str, Any]:
    """For the way from a task to the driver."""
    logs, runs = (
        [[log_to_json(slot_log.log), list(slot_log.own)] for slot_log in output.logs],
        [*map(run_to_json, output.runs)],
    )
    return {"slot": output.slot, "logs": logs, "runs": runs, "counts": dict(output.counts)}


def output_from_json(data: Mapping[str, Any]) -> SlotOutput:
    logs = tuple(LogOutput(log=log_from_json(log), own=tuple(own)) for log, own in data["logs"])
    runs = tuple(map(run_from_json, data["runs"]))
    return SlotOutput(slot=data["slot"], logs=logs, runs=runs, counts=data["counts"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGroups:
    """Which group a segment is in; one number says it all while there is one group."""

    segments: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]

    def of(self, segments: npt.NDArray[np.int64]) -> tuple[int, ...]:
        if not len(segments):
            return ()
        if len(self.groups) == 1:
            return (int(self.groups[0]),)
        known = np.intersect1d(
            segments, self.segments
        )  # the key store may name rows that were dropped
        return tuple(
            int(group) for group in np.unique(self.groups[np.searchsorted(self.segments, known)])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWriter:
    """Where the outputs of job `number` are written, and what they are compared to. `merged` runs are merged into those that it writes."""

    number: int
    storage: Storage
    cache: RunCache
    runs: Sequence[RunFile]
    groups: SegmentGroups
    merged: Sequence[RunFile] = ()

    @property
    def merged_entries(self) -> int:
        return sum(run.entries for run in self.merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One of equal ranges of the key hash, and the stem of its files' names, which is the attempt's own."""

    number: int
    count: int
    stem: str


def process_slot(new: Entries, writer: SlotWriter, slot: Slot) -> SlotOutput:
    """Probe the runs, apply the rule, write."""
    order = np.argsort(new.high)  # sorted probes walk each run once
    probes = new.take(order)
    ruling = apply_rule(probes, writer.cache.neighbours(writer.runs, probes)) if len(new) else None
    entries = _with_merged(ruling.entries if ruling else new, writer, slot)
    logs = write_log(writer, ruling.events, slot.stem) if ruling else ()
    runs = (write_run(writer, entries, slot.stem),) if len(entries) else ()
    return SlotOutput(
        slot=slot.number, logs=logs, runs=runs, counts=counts_of(ruling) if ruling else {}
    )


def _with_merged(entries: Entries, writer: SlotWriter, slot: Slot) -> Entries:
    low, high = hash_range(slot.number, slot.count)
    near = [run for run in writer.merged if run.hash_low <= high and run.hash_high >= low]
    older = [[*writer.cache.slices(run, MERGE_ROWS, low, high)] for run in near]
    return merged_entries([[entries], *older]) if older else entries


def write_log(writer: SlotWriter, events: Events, stem: str) -> tuple[LogOutput, ...]:
    """A segment log, or none when nothing was invalidated."""
    if not len(events):
        return ()
    is_own = events.segment >> SEQUENCE_BITS == writer.number
    groups = writer.groups.of(events.segment[~is_own])
    log = write_events(writer.storage, layout.segment_log_path(stem), events, groups)
    return (LogOutput(log=log, own=tuple(np.unique(events.segment[is_own]).tolist())),)


def write_run(writer: SlotWriter, entries: Entries, stem: str) -> RunFile:
    """Into the store, and into the worker's own cache."""
    data = encode_run(entries)
    path = layout.run_path(stem)
    writer.storage.put_if_absent(path, data)
    run = RunFile(
        path=path,
        size=len(data),
        crc32=zlib.crc32(data),
        entries=len(entries),
        hash_low=int(entries.high[0]),
        hash_high=int(entries.high[-1]),
        greatest_delta=int(entries.delta.max()),
    )
    writer.cache.keep(run, entries)
    return run


def counts_of(ruling: Ruling) -> dict[str, int]:
    return {
        "rows": ruling.rows,
        "updates": ruling.updates,
        "deletes": ruling.deletes,
        "late": ruling.late,
        "ambiguous": ruling.ambiguous,
        "events": len(ruling.events),
    }
