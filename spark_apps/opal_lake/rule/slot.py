"""The work of one task of a job that applies the rule, for one range of the key hash.

The task gets the new rows of its range. It writes a segment log and a key-store run.
"""

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

MERGE_ROWS = 1 << 20  # rows of a run that are read at once


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOutput:
    """A segment log that a task wrote.

    The segments `own` came with the same job: their groups are decided when the job commits.
    """

    log: LogFile
    own: tuple[int, ...]

    def placed(self, groups: Mapping[int, int]) -> LogFile:
        """Return the log with all its groups; `groups` has the group of each own segment."""
        own_groups = {groups[segment] for segment in self.own}
        return replace(self.log, groups=tuple(sorted({*self.log.groups, *own_groups})))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOutput:
    """The files and counts of a task; files that nothing refers to are harmless."""

    slot: int
    logs: tuple[LogOutput, ...]
    runs: tuple[RunFile, ...]
    counts: Mapping[str, int]


def output_to_json(output: SlotOutput) -> dict[str, Any]:
    """Return an output as JSON, for its way from a task to the driver."""
    logs = [[log_to_json(item.log), list(item.own)] for item in output.logs]
    runs = [run_to_json(run) for run in output.runs]
    return {"slot": output.slot, "logs": logs, "runs": runs, "counts": dict(output.counts)}


def output_from_json(data: Mapping[str, Any]) -> SlotOutput:
    """Return the output that `output_to_json` encoded."""
    logs: list[LogOutput] = []
    for log, own in data["logs"]:
        logs.append(LogOutput(log=log_from_json(log), own=tuple(own)))
    return SlotOutput(
        slot=data["slot"],
        logs=tuple(logs),
        runs=tuple(map(run_from_json, data["runs"])),
        counts=data["counts"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGroups:
    """The groups of segments, which are in the order of their ids.

    While a table has only one group, `groups` holds that group alone and `segments` is empty.
    """

    segments: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]

    def of(self, segments: npt.NDArray[np.int64]) -> tuple[int, ...]:
        """Return the groups of these segments, each once."""
        if not len(segments):
            return ()
        if len(self.groups) == 1:
            return (int(self.groups[0]),)
        # The key store may name rows of segments that were dropped
        known = np.intersect1d(segments, self.segments)
        groups = np.unique(self.groups[np.searchsorted(self.segments, known)])
        return tuple(int(group) for group in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWriter:
    """The target of the outputs of job `number`, and the runs to compare with.

    The runs `merged` are merged into the runs that the job writes.
    """

    number: int
    storage: Storage
    cache: RunCache
    runs: Sequence[RunFile]
    groups: SegmentGroups
    merged: Sequence[RunFile] = ()

    @property
    def merged_entries(self) -> int:
        """The number of entries in the merged runs."""
        return sum(run.entries for run in self.merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A range of the key hash: number `number` of `count` equal ones.

    `stem` begins the names of its files, and no other attempt of the task has it.
    """

    number: int
    count: int
    stem: str


def process_slot(new: Entries, writer: SlotWriter, slot: Slot) -> SlotOutput:
    """Look up the neighbours of new rows, apply the rule, and write log and run."""
    if not len(new):
        entries = _with_merged(new, writer, slot)
        return SlotOutput(slot=slot.number, logs=(), runs=_runs(writer, entries, slot), counts={})
    # Sorted probes read each run from front to back, once
    probes = new.take(np.argsort(new.high))
    return process_probes(probes, writer.cache.neighbours(writer.runs, probes), writer, slot)


def process_probes(
    new: Entries, stored: Sequence[Entries], writer: SlotWriter, slot: Slot
) -> SlotOutput:
    """Apply the rule to new rows and their neighbours, and write log and run."""
    ruling = apply_rule(new, stored)
    entries = _with_merged(ruling.entries, writer, slot)
    return SlotOutput(
        slot=slot.number,
        logs=write_log(writer, ruling.events, slot.stem),
        runs=_runs(writer, entries, slot),
        counts=counts_of(ruling),
    )


def _runs(writer: SlotWriter, entries: Entries, slot: Slot) -> tuple[RunFile, ...]:
    """Write the run of a slot, unless it has no entry."""
    if not len(entries):
        return ()
    return (write_run(writer, entries, slot.stem),)


def _with_merged(entries: Entries, writer: SlotWriter, slot: Slot) -> Entries:
    """Return the entries together with those of the merged runs in the slot's range."""
    low, high = hash_range(slot.number, slot.count)
    near = [run for run in writer.merged if run.hash_low <= high and run.hash_high >= low]
    if not near:
        return entries
    older = [list(writer.cache.slices(run, MERGE_ROWS, low, high)) for run in near]
    return merged_entries([[entries], *older])


def write_log(writer: SlotWriter, events: Events, stem: str) -> tuple[LogOutput, ...]:
    """Write a segment log if there are events."""
    if not len(events):
        return ()
    is_own = events.segment >> SEQUENCE_BITS == writer.number
    groups = writer.groups.of(events.segment[~is_own])
    log = write_events(writer.storage, layout.segment_log_path(stem), events, groups)
    own_segments = np.unique(events.segment[is_own]).tolist()
    return (LogOutput(log=log, own=tuple(own_segments)),)


def write_run(writer: SlotWriter, entries: Entries, stem: str) -> RunFile:
    """Write a run into the store, and into the worker's own cache."""
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
        "statement_rows": ruling.statement_rows,
        "events": len(ruling.events),
    }
