"""Compaction from the plan to the last commit: data files, segment logs, runs of the key store, a checkpoint.

Each step commits by itself, under a number of its own, and the files of a large table in several commits: who starts again after a failure
does what is left. Upserts go on meanwhile. No failure between two commits hurts: rows go before the events that hide them, never after.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from opal_lake.bitmap import Bitmaps, add_bitmaps
from opal_lake.checkpoint import write_checkpoint
from opal_lake.claim import claim_number
from opal_lake.commit import Actions, Commit
from opal_lake.commit_log import Draft, Proposal
from opal_lake.duration import parse_duration
from opal_lake.errors import InvalidInputError
from opal_lake.job import JobResult
from opal_lake.key_store.merge import plan_merge
from opal_lake.log_rewrite import LogTask, log_actions, merge_logs, merged_from_json, merged_to_json, plan_log_bins
from opal_lake.ordering import from_order
from opal_lake.properties import check_properties
from opal_lake.read import delta_bounds
from opal_lake.rewrite import Bin, droppable_rows, plan_archive, plan_major, plan_minor
from opal_lake.rewrite_job import RewriteDone, RewriteRun, commit_rewrite
from opal_lake.rewrite_task import BinWork, RewriteTask, rewrite_bin, rewritten_from_json, rewritten_to_json
from opal_lake.ruled import segment_groups, slot_writer
from opal_lake.run_rewrite import RunTask, merge_slot, plan_run_slots, run_actions, runs_from_json, runs_to_json
from opal_lake.schema import Atomic, decimal_parts
from opal_lake.snapshot import Snapshot
from opal_lake.table import Table

MODES = ("minor", "major")
BINS_A_COMMIT = 64
_PASSES = 3
_DAY_US = 86_400_000_000

Build = Callable[[Snapshot], Actions]


class Spread(Protocol):
    """Whoever runs a job's tasks: each piece of work once, with the name of its attempt; the values are fit for JSON."""

    def __call__(self, task: Callable[[Any, str], Any], works: Sequence[Any]) -> list[Any]: ...


def in_this_process(task: Callable[[Any, str], Any], works: Sequence[Any]) -> list[Any]:
    """One after the other."""
    return [task(work, "0") for work in works]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """What to do: `major` also drops what no event time from the floor on shows.

    The floor is `look_back` before now, or given as an order word. Partitions without a row of the time since `archive_after` are
    compressed by `archive_codec`.
    """

    mode: str = "minor"
    look_back: str | int | None = None
    floor: int | None = None
    target_bytes: int | None = None
    archive_after: str | int | None = None
    archive_codec: str = "zstd:19"

    def __post_init__(self) -> None:
        check_properties({"archive_codec": self.archive_codec})
        if self.mode not in MODES:
            raise InvalidInputError(f"mode={self.mode!r} is unknown; use one of {', '.join(MODES)}")
        if (self.look_back is not None or self.floor is not None) != (self.mode == "major"):
            raise InvalidInputError(f"mode={self.mode!r} with look_back={self.look_back!r}: a major compaction needs one, a minor has none")


def compact(table: Table, options: CompactOptions, spread: Spread = in_this_process) -> JobResult:
    """Small files to the target size, few segment logs, few runs; what can be dropped is."""
    job = Compaction(table=table, options=options, spread=spread)
    started_us = table.log.clock.now_us()
    job.run()
    timings_ms = {"total": max(0, table.log.clock.now_us() - started_us) // 1000}
    result = JobResult(operation="compact", table=table.uri, version=job.version, counts=dict(job.counts), notes=tuple(job.notes))
    return replace(result, timings_ms=timings_ms)


@dataclass(slots=True, kw_only=True)
class Compaction:
    """A compaction on its way, and what it did so far."""

    table: Table
    options: CompactOptions
    spread: Spread
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    version: int | None = None

    def run(self) -> None:
        head = self.table.log.head()
        floor = self.options.floor
        if floor is None:
            floor = plan_floor(head, self.options.look_back, self.table.log.clock.now_us())
        self._logs(self._files(floor))
        self._runs(is_raised=floor is not None and (head.root.floor is None or floor > head.root.floor))
        if self.version is not None:
            write_checkpoint(self.table.storage, self.table.log.head())

    def _files(self, floor: int | None) -> Bitmaps:
        """Rewrite data files; the rows that are in none any more."""
        forgotten: Bitmaps = {}
        made: set[str] = set()
        lost = 0
        for _ in range(_PASSES):
            base = self.table.log.head()
            droppable = droppable_rows(base, floor) if floor is not None else {}
            bins = [one for one in self._bins(base, floor, droppable) if made.isdisjoint(file.path for file in one.files)]
            lost = 0
            add_bitmaps(forgotten, {segment: rows for segment, rows in droppable.items() if segment not in base.segments})
            for batch in _batches(bins):
                done = self._rewrite(base, batch, droppable, floor)
                add_bitmaps(forgotten, done.forgotten)
                made |= set(done.made)
                lost += done.lost
            if not lost:
                break
        if lost:
            self.notes.append(f"{lost} bins of files were rewritten by other jobs meanwhile; what is left of them waits for the next run")
        self._raise_floor(floor)
        return forgotten

    def _bins(self, base: Snapshot, floor: int | None, droppable: Bitmaps) -> list[Bin]:
        target = self._target_bytes(base)
        bins = plan_major(base, target, floor, droppable) if floor is not None else plan_minor(base, target)
        if self.options.archive_after is not None and base.spec.file_format == "orc":
            raise InvalidInputError("archive_after: ORC files are compressed in one way only; leave it out")
        before = plan_floor(base, self.options.archive_after, self.table.log.clock.now_us())
        cold = plan_archive(base, before, self.options.archive_codec, target) if before is not None else []
        archived = {file.path for one in cold for file in one.files}
        return [one for one in bins if archived.isdisjoint(file.path for file in one.files)] + cold

    def _target_bytes(self, base: Snapshot) -> int:
        return self.options.target_bytes or base.spec.integer("target_mb") << 20

    def _rewrite(self, base: Snapshot, bins: Sequence[Bin], droppable: Bitmaps, floor: int | None) -> RewriteDone:
        run = self._started(base, floor)
        task = RewriteTask(
            storage=self.table.storage,
            spec=base.spec,
            number=run.number,
            target_bytes=self._target_bytes(base),
            floor=floor,
            cache=self.table.cache,
            runs=tuple(base.runs.values()),
        )
        works = [BinWork(place=place, bin=one, droppable=_of(droppable, one)) for place, one in enumerate(bins)]
        outputs = [rewritten_from_json(output) for output in self.spread(partial(_rewrite_work, task), works)]
        done = commit_rewrite(self.table.log, run, outputs)
        self._count(done.result)
        return done

    def _raise_floor(self, floor: int | None) -> None:
        """Also where no file had to be rewritten."""
        head = self.table.log.head()
        if floor is None:
            return
        if head.root.floor is None or head.root.floor < floor:
            self._count(commit_rewrite(self.table.log, self._started(head, floor), []).result)
        kind = head.spec.delta.type
        assert isinstance(kind, Atomic)
        self.notes.append(f"the oldest readable event time is {from_order(max(floor, head.root.floor or floor), kind)}")

    def _started(self, base: Snapshot, floor: int | None) -> RewriteRun:
        log = self.table.log
        number = claim_number(log.storage, base.root, "compact", log.clock)
        return RewriteRun(operation="compact", number=number, base=base, started_us=log.clock.now_us(), floor=floor)

    def _logs(self, forgotten: Bitmaps) -> None:
        base = self.table.log.head()
        works = plan_log_bins(base, forgotten)
        if not works:
            return
        number = self._claimed(base)
        task = LogTask(storage=self.table.storage, number=number, groups=segment_groups(base), forgotten=forgotten)
        done = [merged_from_json(output) for output in self.spread(partial(_merge_work, task), works)]
        counts = {"logs_read": sum(len(one.replaced) for one in done), "logs_written": sum(len(one.logs) for one in done)}
        counts |= {"events_forgotten": sum(one.forgotten for one in done)}
        self._commit(base, number, lambda head: log_actions(head, done), counts)

    def _runs(self, *, is_raised: bool) -> None:
        """All of them, where the floor lets some entries go; else when there are many."""
        base = self.table.log.head()
        if not (is_raised and base.runs) and not plan_merge(base.runs.values(), base.spec.integer("key_store_fan_in")):
            return
        number = self._claimed(base)
        writer = replace(slot_writer(base, number, self.table.cache), merged=())
        task = RunTask(writer=writer, slots=plan_run_slots(base), ties=len(base.spec.tie_break), floor=base.root.floor)
        found = self.spread(partial(_merge_runs, task), range(task.slots))
        runs = [run for one in found for run in runs_from_json(one)]
        counts = {"runs_read": len(base.runs), "runs_written": len(runs)}
        self._commit(base, number, lambda head: run_actions(head, base, runs), counts)

    def _claimed(self, base: Snapshot) -> int:
        return claim_number(self.table.storage, base.root, "compact", self.table.log.clock)

    def _commit(self, base: Snapshot, number: int, actions: Build, counts: dict[str, int]) -> None:
        def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
            found = actions(head)
            result = JobResult(operation="compact", table=self.table.uri, counts=counts)
            return Draft(actions=found, result=result) if found != Actions() else None

        proposal = Proposal(operation="compact", number=number, build=build, started_us=self.table.log.clock.now_us())
        self._count(self.table.log.commit(base, proposal))

    def _count(self, result: JobResult) -> None:
        if result.version is not None:
            self.version = result.version
            self.counts.update(result.counts)
            self.counts["commits"] += 1


def _rewrite_work(task: RewriteTask, work: BinWork, attempt: str) -> Any:
    return rewritten_to_json(rewrite_bin(task, work, attempt))


def _merge_work(task: LogTask, work: Any, attempt: str) -> Any:
    return merged_to_json(merge_logs(task, work, attempt))


def _merge_runs(task: RunTask, slot: int, attempt: str) -> Any:
    return runs_to_json(merge_slot(task, slot, attempt))


def _batches(bins: Sequence[Bin]) -> Iterator[Sequence[Bin]]:
    return (bins[start : start + BINS_A_COMMIT] for start in range(0, len(bins), BINS_A_COMMIT))


def _of(droppable: Bitmaps, one: Bin) -> Bitmaps:
    return {segment: droppable[segment] for segment in one.segments if segment in droppable}


def plan_floor(head: Snapshot, look_back: str | int | None, now_us: int) -> int | None:
    """`look_back` before now, or, where the delta is a number, before the greatest one; None without a look-back."""
    if look_back is None:
        return None
    kind = head.spec.delta.type
    assert isinstance(kind, Atomic)
    if kind.name not in ("date", "timestamp", "timestamp_ntz"):
        return _before_greatest(head, look_back)
    if not isinstance(look_back, str):
        raise InvalidInputError(f"look_back={look_back!r}: the delta column is a {kind.name}; give a span of time, as '30d'")
    floor_us = now_us - parse_duration(look_back, name="look_back")
    return floor_us // _DAY_US if kind.name == "date" else floor_us


def _before_greatest(head: Snapshot, look_back: str | int) -> int | None:
    """The delta's own unit."""
    text = str(look_back)
    if not text.isdecimal():
        raise InvalidInputError(f"look_back={look_back!r}: the delta column {head.spec.delta.name!r} is a number; give a number, as 1000")
    pending = head.pending
    highs = [delta_bounds(file, head.spec)[1] for file in head.files.values() if pending.isdisjoint(file.segments)]
    known = [high for high in highs if high is not None]
    assert isinstance(head.spec.delta.type, Atomic)
    parts = decimal_parts(head.spec.delta.type.name)
    return max(known) - int(text) * 10 ** (parts[1] if parts else 0) if known else None
