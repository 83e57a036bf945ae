"""Runs of the key store as one layer: each task merges a range of the hash, and leaves out what no readable moment needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from opal_lake import layout
from opal_lake.data.segment import RunFile
from opal_lake.key_store.entries import down_to, merged_entries, no_entries
from opal_lake.key_store.merge import hash_range, plan_merge
from opal_lake.log.commit import Actions
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.slot import SlotWriter, write_run

SLOT_ENTRIES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask:
    """What all tasks need to know; they read `writer.runs`."""

    writer: SlotWriter
    slots: int
    ties: int
    floor: int | None


def plan_runs(snapshot: Snapshot) -> tuple[RunFile, ...]:
    """Those of full tiers; all, if that writes at most twice as many entries."""
    due, runs = (
        plan_merge(snapshot.runs.values(), snapshot.spec.integer("key_store_fan_in")),
        tuple(snapshot.runs.values()),
    )
    return runs if _entries(runs) <= 2 * _entries(due) else due


def _entries(runs: Sequence[RunFile]) -> int:
    return sum(run.entries for run in runs)


def plan_run_slots(runs: Sequence[RunFile]) -> int:
    """How many equal ranges of the hash: a power of two."""
    entries = _entries(runs)
    return 1 << max(0, (entries // SLOT_ENTRIES).bit_length())


def merge_slot(task: RunTask, slot: int, attempt: str) -> list[RunFile]:
    """The run of a range, or none where no run has an entry."""
    low, high = hash_range(slot, task.slots)
    near = [run for run in task.writer.runs if run.hash_low <= high and run.hash_high >= low]
    runs = [[*task.writer.cache.slices(run, SLOT_ENTRIES, low, high)] for run in near]
    entries = down_to(task.floor, merged_entries([[no_entries(task.ties)], *runs]))
    return (
        [write_run(task.writer, entries, layout.job_file_name(task.writer.number, slot, attempt))]
        if len(entries)
        else []
    )


def run_actions(head: Snapshot, merged: Sequence[RunFile], made: Sequence[RunFile]) -> Actions:
    """Ours hold what those held. An upsert may have merged some of them meanwhile: they are the same rows."""
    return Actions(
        add_runs=tuple(made), remove_runs=tuple(run.path for run in merged if run.path in head.runs)
    )
