"""One task's share of a MetaGen: a range of the key hash, its new rows in, a segment log and a key-store run out."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opal_lake import layout
from opal_lake.commit import log_from_json, log_to_json, run_from_json, run_to_json
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.entries import Entries
from opal_lake.key_store.run import encode_run, neighbours
from opal_lake.metagen import Ruling, apply_rule
from opal_lake.segment import LogFile, RunFile
from opal_lake.segment_log import Events, write_events
from opal_lake.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOutput:
    """What a task wrote and counted; a file that nothing refers to is of no harm."""

    logs: tuple[LogFile, ...]
    runs: tuple[RunFile, ...]
    counts: Mapping[str, int]


NOTHING = SlotOutput(logs=(), runs=(), counts={})


def output_to_json(output: SlotOutput) -> dict[str, Any]:
    """For the way from a task to the driver."""
    return {"logs": [*map(log_to_json, output.logs)], "runs": [*map(run_to_json, output.runs)], "counts": dict(output.counts)}


def output_from_json(data: Mapping[str, Any]) -> SlotOutput:
    return SlotOutput(logs=tuple(map(log_from_json, data["logs"])), runs=tuple(map(run_from_json, data["runs"])), counts=data["counts"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGroups:
    """Which group a segment is in; one number says it all while there is one group."""

    segments: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]

    def of(self, segments: npt.NDArray[np.int64]) -> tuple[int, ...]:
        if len(self.groups) == 1:
            return (int(self.groups[0]),)
        return tuple(int(group) for group in np.unique(self.groups[np.searchsorted(self.segments, np.unique(segments))]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWriter:
    """Where the outputs of a job go."""

    storage: Storage
    cache: RunCache
    runs: Sequence[RunFile]
    groups: SegmentGroups


def process_slot(new: Entries, writer: SlotWriter, stem: str) -> SlotOutput:
    """Probe the runs, apply the rule, write. `stem` is the task's own: no other file has that name."""
    if not len(new):
        return NOTHING
    least, greatest = int(new.high.min()), int(new.high.max())
    near = [writer.cache.open(run) for run in writer.runs if run.hash_low <= greatest and run.hash_high >= least]
    order = np.argsort(new.high)  # sorted probes walk each run once
    probes = new.take(order)
    ruling = apply_rule(probes, [neighbours(run, probes) for run in near])
    logs = write_log(writer, ruling.events, stem)
    return SlotOutput(logs=logs, runs=(write_run(writer.storage, ruling.entries, stem),), counts=counts_of(ruling))


def write_log(writer: SlotWriter, events: Events, stem: str) -> tuple[LogFile, ...]:
    """A segment log, or none when nothing was invalidated."""
    if not len(events):
        return ()
    return (write_events(writer.storage, layout.segment_log_path(stem), events, writer.groups.of(events.segment)),)


def write_run(storage: Storage, entries: Entries, stem: str) -> RunFile:
    data = encode_run(entries)
    path = layout.run_path(stem)
    storage.put_if_absent(path, data)
    return RunFile(
        path=path,
        size=len(data),
        crc32=zlib.crc32(data),
        entries=len(entries),
        hash_low=int(entries.high[0]),
        hash_high=int(entries.high[-1]),
    )


def counts_of(ruling: Ruling) -> dict[str, int]:
    return {
        "rows": ruling.rows,
        "updates": ruling.updates,
        "deletes": ruling.deletes,
        "late": ruling.late,
        "ambiguous": ruling.ambiguous,
        "events": len(ruling.events),
    }
