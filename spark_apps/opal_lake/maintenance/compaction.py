"""Compaction from the plan to the last commit: data files, segment logs, runs of the key store, a checkpoint.

Each step commits by itself, under a number of its own, and the files of a large table in several commits: who starts again after a failure
does what is left. Upserts go on meanwhile. No failure between two commits hurts: rows go before the events that hide them, never after.
Which files are joined: `opal_lake.maintenance.compaction_plan`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from opal_lake.data.segment import DataFile, LogFile, RunFile
from opal_lake.definition.ordering import from_order
from opal_lake.definition.schema import Atomic, decimal_parts, type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.duration import Duration, parse_duration
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import ConflictError, InvalidInputError, count_text
from opal_lake.events.bitmap import Bitmaps, add_bitmaps
from opal_lake.log.checkpoint import write_checkpoint
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import store_now_us
from opal_lake.maintenance.compaction_plan import (
    SMALL_SHARE,
    Bin,
    droppable_rows,
    plan_archive,
    plan_major,
    plan_minor,
)
from opal_lake.maintenance.merge_logs import LogTask, log_actions, merge_logs, plan_log_bins
from opal_lake.maintenance.merge_runs import (
    RunTask,
    merge_slot,
    plan_run_slots,
    plan_runs,
    run_actions,
)
from opal_lake.maintenance.rewrite_job import RewriteDone, RewriteRun, commit_rewrite
from opal_lake.maintenance.rewrite_task import BinWork, RewriteTask, rewrite_bin, row_bases_of
from opal_lake.read.read import delta_bounds
from opal_lake.result import JobResult
from opal_lake.rule.outputs import segment_groups, slot_writer

if TYPE_CHECKING:
    from opal_lake.operations.compact import Compact

BINS_A_COMMIT = 64
ARCHIVED_BY = ("archive_after", "archive_codec")  # the properties that a compaction is given
_PASSES = 3
_DAY_US = 86_400_000_000

Build = Callable[[Snapshot], Actions]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReads:
    """The input of a compaction: data files to rewrite, and logs and runs to merge."""

    files: Sequence[DataFile]
    logs: Sequence[LogFile]
    runs: Sequence[RunFile]


@dataclass(slots=True, kw_only=True)
class Compaction:
    """A compaction as it was asked for, and what it did so far.

    The floor may also be given as an order word, and the size of files in bytes.
    """

    table: OpenTable
    asked: "Compact"
    floor: int | None = None
    target_bytes: int | None = None
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    version: int | None = None
    base: Snapshot | None = None

    def _newest(self) -> Snapshot:
        """What the next step begins with: read once, and again behind a commit, from what is at hand."""
        if self.base is None:
            self.base = self.table.log.head()
        elif self.version is not None and self.base.version < self.version:
            self.base = self._refreshed(self.base)
        return self.base

    def _refreshed(self, base: Snapshot) -> Snapshot:
        """Rows that it dropped a restore may have brought back, and their events have to stay then."""
        head = self.table.log.refresh(base)
        if head.root.epoch != base.root.epoch:
            raise ConflictError(
                f"{self.table.uri}: an older version was restored while compact ran; run it again"
            )
        return head

    def run(self) -> JobResult:
        """Small files to the target size, few segment logs, few runs; what can be dropped is."""
        started_us = self.table.log.clock.now_us()
        self._run()
        if self.version is None and not self.notes:
            self.notes.append(self._why_nothing())
        took_us = max(0, self.table.log.clock.now_us() - started_us)
        return JobResult(
            operation="compact",
            table=self.table.uri,
            version=self.version,
            counts=dict(self.counts),
            notes=tuple(self.notes),
            timings_ms={"total": took_us // 1000},
        )

    def _why_nothing(self) -> str:
        base = self._newest()
        small_mb = SMALL_SHARE * (self._target_bytes(base) >> 20)
        pending = count_text(base.root.pending, "file")
        waiting = (
            f"; a MetaGen comes first for {pending} of pending rows" if base.root.pending else ""
        )
        return (
            f"nothing to do: no partition has several files below {small_mb:g} MB to join, "
            f"and there are few logs and runs{waiting}"
        )

    def planned_reads(self) -> CompactionReads:
        """Return what a run would read, as the table is now."""
        base, floor = self._newest(), self._floor()
        droppable = droppable_rows(base, floor) if floor is not None else {}
        bins = self._bins(base, floor, droppable)
        rewritten = {segment for bin_ in bins for segment in bin_.segments}
        forgotten: Bitmaps = {}
        loses_segments = False
        for number, rows in droppable.items():
            segment = base.segments.get(number)
            if segment is None or number in rewritten:
                forgotten[number] = rows
                loses_segments |= segment is not None and len(rows) == segment.rows
        works = plan_log_bins(base, forgotten, loses_segments=loses_segments)
        return CompactionReads(
            files=[file for bin_ in bins for file in bin_.files],
            logs=[log for work in works for log in work.logs],
            runs=_runs_to_merge(base, is_raised=_is_raised(base, floor)),
        )

    def _floor(self) -> int | None:
        if self.floor is not None:
            return self.floor
        return plan_floor(self._newest(), self.asked.look_back, self._now_us())

    def _run(self) -> None:
        head, floor = self._newest(), self._floor()
        self._logs(self._files(floor))
        self._runs(is_raised=_is_raised(head, floor))
        if self.version is not None:
            with self.table.log.derived():
                write_checkpoint(self.table.storage, self._newest())

    def _files(self, floor: int | None) -> Bitmaps:
        """Rewrite data files; the rows that are in none any more."""
        forgotten: Bitmaps = {}
        made: set[str] = set()
        lost = 0
        for _ in range(_PASSES):
            base = self._newest()
            droppable = droppable_rows(base, floor) if floor is not None else {}
            bins = [
                bin_
                for bin_ in self._bins(base, floor, droppable)
                if made.isdisjoint(file.path for file in bin_.files)
            ]
            lost = 0
            add_bitmaps(
                forgotten,
                {
                    segment: rows
                    for segment, rows in droppable.items()
                    if segment not in base.segments
                },
            )
            for batch in _batches(bins):
                done = self._rewrite(base, batch, droppable, floor)
                add_bitmaps(forgotten, done.forgotten)
                made |= set(done.made)
                lost += done.lost
            if not lost:
                break
            self.base = self._refreshed(base)
        if lost:
            self.notes.append(
                f"{lost} bins of files were rewritten by other jobs meanwhile; what is left of them waits for the next run"
            )
        self._raise_floor(floor)
        return forgotten

    def _bins(self, base: Snapshot, floor: int | None, droppable: Bitmaps) -> list[Bin]:
        target = self._target_bytes(base)
        bins = (
            plan_major(base, target, floor, droppable)
            if floor is not None
            else plan_minor(base, target)
        )
        cold = self._cold_bins(base, target)
        archived = {file.path for bin_ in cold for file in bin_.files}
        return [
            bin_ for bin_ in bins if archived.isdisjoint(file.path for file in bin_.files)
        ] + cold

    def _cold_bins(self, base: Snapshot, target: int) -> list[Bin]:
        if self.asked.archive_after is None:
            return []
        if base.spec.file_format == "orc":
            raise InvalidInputError(
                "archive_after has no effect on a table of ORC files, which are compressed in one way "
                "only; leave it out"
            )
        given = base.spec.with_given(vars(self.asked))
        return plan_cold(base, self.asked.archive_after, given, target, self._now_us())

    def _now_us(self) -> int:
        """What a floor lets go no clock of a machine alone may decide."""
        return store_now_us(self.table.storage, self.table.log.clock)

    def _target_bytes(self, base: Snapshot) -> int:
        given = base.spec.with_given(vars(self.asked))
        return self.target_bytes or given.integer("target_mb") << 20

    def _rewrite(
        self, base: Snapshot, bins: Sequence[Bin], droppable: Bitmaps, floor: int | None
    ) -> RewriteDone:
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
        works = [
            BinWork(
                position=index,
                bin=bin_,
                row_bases=row_bases_of(base, bin_.files),
                droppable=_of(droppable, bin_),
            )
            for index, bin_ in enumerate(bins)
        ]
        done = commit_rewrite(
            self.table.log, run, self.table.executor.run(partial(rewrite_bin, task), works)
        )
        self._count(done.result)
        return done

    def _raise_floor(self, floor: int | None) -> None:
        """Also where no file had to be rewritten."""
        if floor is None:
            return
        head = self._newest()
        if head.root.floor is None or head.root.floor < floor:
            self._count(commit_rewrite(self.table.log, self._started(head, floor), []).result)
        kind = head.spec.delta.type
        assert isinstance(kind, Atomic)
        self.notes.append(
            f"the oldest readable event time is {from_order(max(floor, head.root.floor or floor), kind)}"
        )

    def _started(self, base: Snapshot, floor: int | None) -> RewriteRun:
        log = self.table.log
        number = claim_number(log.storage, base.root, "compact", log.clock)
        return RewriteRun(
            operation="compact",
            number=number,
            base=base,
            started_us=log.clock.now_us(),
            floor=floor,
        )

    def _logs(self, forgotten: Bitmaps) -> None:
        base = self._newest()
        works = plan_log_bins(base, forgotten)
        if not works:
            return
        number = self._claimed(base)
        task = LogTask(
            storage=self.table.storage,
            number=number,
            groups=segment_groups(base),
            forgotten=forgotten,
        )
        done = self.table.executor.run(partial(merge_logs, task), works)
        counts = {
            "logs_read": sum(len(merged.replaced) for merged in done),
            "logs_written": sum(len(merged.logs) for merged in done),
        }
        counts |= {"events_forgotten": sum(merged.forgotten for merged in done)}
        self._commit(base, number, lambda head: log_actions(head, done), counts)

    def _runs(self, *, is_raised: bool) -> None:
        base = self._newest()
        merged = _runs_to_merge(base, is_raised=is_raised)
        if not merged:
            return
        number = self._claimed(base)
        writer = replace(slot_writer(base, number, self.table.cache), runs=merged, merged=())
        task = RunTask(
            writer=writer,
            slots=plan_run_slots(merged),
            ties=len(base.spec.tie_break),
            floor=base.root.floor,
        )
        runs = [
            run
            for made in self.table.executor.run(partial(merge_slot, task), range(task.slots))
            for run in made
        ]
        counts = {"runs_read": len(merged), "runs_written": len(runs)}
        self._commit(base, number, lambda head: run_actions(head, merged, runs), counts)

    def _claimed(self, base: Snapshot) -> int:
        return claim_number(self.table.storage, base.root, "compact", self.table.log.clock)

    def _commit(self, base: Snapshot, number: int, actions: Build, counts: dict[str, int]) -> None:
        def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
            planned = actions(head)
            result = JobResult(operation="compact", table=self.table.uri, counts=counts)
            return Draft(actions=planned, result=result) if planned != Actions() else None

        started_us = self.table.log.clock.now_us()
        proposal = Proposal(
            operation="compact", number=number, build=build, started_us=started_us, at_once=True
        )
        self._count(self.table.log.commit(base, proposal))

    def _count(self, result: JobResult) -> None:
        if result.version is not None:
            self.version = result.version
            self.counts.update(result.counts)
            self.counts["commits"] += 1


def _is_raised(base: Snapshot, floor: int | None) -> bool:
    return floor is not None and (base.root.floor is None or floor > base.root.floor)


def _runs_to_merge(base: Snapshot, *, is_raised: bool) -> tuple[RunFile, ...]:
    """Return all runs where a raised floor drops entries, otherwise those of full tiers."""
    return tuple(base.runs.values()) if is_raised else plan_runs(base)


def _batches(bins: Sequence[Bin]) -> Iterator[Sequence[Bin]]:
    return (bins[start : start + BINS_A_COMMIT] for start in range(0, len(bins), BINS_A_COMMIT))


def _of(droppable: Bitmaps, bin_: Bin) -> Bitmaps:
    return {segment: droppable[segment] for segment in bin_.segments if segment in droppable}


def plan_cold(
    base: Snapshot, after: Duration | int | None, given: TableSpec, target: int, now_us: int
) -> list[Bin]:
    """Plan which partitions to compress harder: those without a row of the time since `after`."""
    before = plan_floor(base, after, now_us, "archive_after")
    if before is None:
        return []
    return plan_archive(base, before, given.word("archive_codec"), target)


def plan_floor(
    head: Snapshot, look_back: Duration | int | None, now_us: int, name: str = "look_back"
) -> int | None:
    """`look_back`, or a span of that name, before now, or, where the delta is a number, before the greatest one; None without one."""
    if look_back is None:
        return None
    head.spec.require_keys(name)
    kind = head.spec.delta.type
    assert isinstance(kind, Atomic)
    if kind.name not in ("date", "timestamp", "timestamp_ntz"):
        return _before_greatest(head, look_back, name)
    if isinstance(look_back, int):
        raise InvalidInputError(
            f"{name}={look_back!r}: the delta column is a {type_name(kind)}; "
            "give a span of time, as '30d'"
        )
    floor_us = now_us - parse_duration(look_back, name=name)
    return floor_us // _DAY_US if kind.name == "date" else floor_us


def _before_greatest(head: Snapshot, look_back: Duration | int, name: str) -> int | None:
    """The delta's own unit."""
    text = str(look_back)
    if not text.isdecimal():
        raise InvalidInputError(
            f"{name}={look_back!r}: the delta column {head.spec.delta.name!r} is a number; give a number, as 1000"
        )
    pending = head.pending
    highs = [
        delta_bounds(file, head.spec)[1]
        for file in head.files.values()
        if pending.isdisjoint(file.segments)
    ]
    known = [high for high in highs if high is not None]
    assert isinstance(head.spec.delta.type, Atomic)
    parts = decimal_parts(head.spec.delta.type.name)
    return max(known) - int(text) * 10 ** (parts[1] if parts else 0) if known else None
