"""A merge of the key store's runs to one layer.

Each task merges a range of the key hash, and leaves out entries that no readable time needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from opal_lake import layout
from opal_lake.data.segment import RunFile
from opal_lake.key_store.entries import down_to, merged_entries, no_entries
from opal_lake.key_store.merge import hash_range, plan_merge
from opal_lake.log.commit import Actions
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.slot import SlotWriter, write_run

SLOT_ENTRIES = 1 << 20  # about as many entries are in the range of a task


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask:
    """The arguments of all tasks. They merge `writer.runs`.

    `ties` is the number of tie-break columns.
    """

    writer: SlotWriter
    slots: int
    ties: int
    floor: int | None


def plan_runs(snapshot: Snapshot) -> tuple[RunFile, ...]:
    """Return the runs to merge: those of full tiers, or all.

    All runs are merged if the full tiers have at least half of all entries.
    """
    runs = tuple(snapshot.runs.values())
    full_tiers = plan_merge(runs, snapshot.spec.integer("key_store_fan_in"))
    have_half = _entries(runs) <= 2 * _entries(full_tiers)
    return runs if have_half else full_tiers


def _entries(runs: Sequence[RunFile]) -> int:
    return sum(run.entries for run in runs)


def plan_run_slots(runs: Sequence[RunFile]) -> int:
    """Return the number of equal ranges of the key hash: a power of two."""
    entries = _entries(runs)
    return 1 << max(0, (entries // SLOT_ENTRIES).bit_length())


def merge_slot(task: RunTask, slot: int, attempt: str) -> list[RunFile]:
    """Write the run of a range; return it, or nothing if the range has no entry."""
    low, high = hash_range(slot, task.slots)
    near = [run for run in task.writer.runs if run.hash_low <= high and run.hash_high >= low]
    cache = task.writer.cache
    parts_by_run = [list(cache.slices(run, SLOT_ENTRIES, low, high)) for run in near]
    # A merge needs at least one part, also if no run is near
    nothing = no_entries(task.ties)
    entries = down_to(task.floor, merged_entries([[nothing], *parts_by_run]))
    if not len(entries):
        return []
    stem = layout.job_file_name(task.writer.number, slot, attempt)
    return [write_run(task.writer, entries, stem)]


def run_actions(head: Snapshot, merged: Sequence[RunFile], made: Sequence[RunFile]) -> Actions:
    """Return actions that replace merged runs by the runs made of them."""
    # An upsert may have merged some of these runs meanwhile: its run repeats entries, which does no
    # harm
    removed = tuple(run.path for run in merged if run.path in head.runs)
    return Actions(add_runs=tuple(made), remove_runs=removed)
