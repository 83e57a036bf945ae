"""A compaction from the plan to the last commit.

It rewrites data files, merges segment logs and runs of the key store, and writes a checkpoint. Each
step is a commit, under a number of its own, and a large table's files take several commits. So a
compaction that starts again after a failure does only the missing steps. Upserts go on meanwhile.
A failure between two commits does no harm: rows are deleted before the events that hide them, never
after. `compaction_plan` chooses the files.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
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
    settled_files,
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
ARCHIVED_BY = ("archive_after", "archive_codec")  # properties that are arguments of a compaction
_MAX_PASSES = 3  # over the files, as long as other rewrites take some of them
_DAY_US = 86_400_000_000

PlanActions = Callable[[Snapshot], Actions]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReads:
    """The input of a compaction: data files to rewrite, and logs and runs to merge."""

    files: Sequence[DataFile]
    logs: Sequence[LogFile]
    runs: Sequence[RunFile]


@dataclass(slots=True, kw_only=True)
class Compaction:
    """A compaction: its arguments, and its counts and notes so far.

    `floor` replaces a look-back, and is in the delta's order form. `target_bytes` replaces
    `target_mb`, for sizes of files that are not whole megabytes.
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
        """Return the snapshot with which the next step begins.

        The snapshot is read once, and refreshed after each commit of this compaction.
        """
        if self.base is None:
            self.base = self.table.log.head()
        elif self.version is not None and self.base.version < self.version:
            self.base = self._refreshed(self.base)
        return self.base

    def _refreshed(self, base: Snapshot) -> Snapshot:
        """Return the head; raise ConflictError if an older version was restored meanwhile.

        A restore may bring back rows that this compaction dropped, and their events have to stay.
        """
        head = self.table.log.refresh(base)
        if head.root.epoch != base.root.epoch:
            raise ConflictError(
                f"{self.table.uri}: an older version was restored while compact ran; run it again"
            )
        return head

    def run(self) -> JobResult:
        """Join small files, logs and runs, and drop rows that no readable time shows."""
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
        why = (
            f"nothing to do: no partition has several files below {small_mb:g} MB to join, "
            "and there are few logs and runs"
        )
        if not base.root.pending:
            return why
        pending = count_text(base.root.pending, "file")
        return f"{why}; {pending} of pending rows must first be processed by a MetaGen"

    def planned_reads(self) -> CompactionReads:
        """Return the files, logs and runs that a compaction would read now."""
        base = self._newest()
        floor = self._floor()
        droppable = _droppable(base, floor)
        rewritten_segments: set[int] = set()
        files: list[DataFile] = []
        for bin_ in self._bins(base, floor, droppable):
            rewritten_segments |= bin_.segments
            files += bin_.files
        forgotten: Bitmaps = {}
        loses_segments = False
        for number, rows in droppable.items():
            segment = base.segments.get(number)
            if segment is None:
                forgotten[number] = rows
            elif number in rewritten_segments:
                forgotten[number] = rows
                loses_segments |= len(rows) == segment.rows
        logs: list[LogFile] = []
        for work in plan_log_bins(base, forgotten, loses_segments=loses_segments):
            logs += work.logs
        runs = _runs_to_merge(base, is_raised=_is_raised(base, floor))
        return CompactionReads(files=files, logs=logs, runs=runs)

    def _floor(self) -> int | None:
        if self.floor is not None:
            return self.floor
        return plan_floor(self._newest(), self.asked.look_back, self._now_us())

    def _run(self) -> None:
        head = self._newest()
        floor = self._floor()
        forgotten = self._rewrite_files(floor)
        # Events are removed only after the rows that they hide
        self._merge_logs(forgotten)
        self._merge_runs(is_raised=_is_raised(head, floor))
        if self.version is not None:
            log = self.table.log
            with log.derived():
                write_checkpoint(log.storage, self._newest(), tuning=log.tuning)

    def _rewrite_files(self, floor: int | None) -> Bitmaps:
        """Rewrite data files; return the rows that no longer are in a file."""
        forgotten: Bitmaps = {}
        written: set[str] = set()  # paths
        lost = 0
        for _ in range(_MAX_PASSES):
            base = self._newest()
            droppable = _droppable(base, floor)
            planned = self._bins(base, floor, droppable)
            # Files that an earlier pass has written are not rewritten again
            bins = [bin_ for bin_ in planned if not _has_any(bin_, written)]
            # Earlier compactions dropped all rows of these segments, but may have left their events
            gone = droppable.keys() - base.segments.keys()
            add_bitmaps(forgotten, {number: droppable[number] for number in gone})
            lost = 0
            for batch in _batches(bins):
                done = self._rewrite(base, batch, droppable, floor)
                add_bitmaps(forgotten, done.forgotten)
                written.update(done.made)
                lost += done.lost
            if not lost:
                break
            self.base = self._refreshed(base)
        if lost:
            self.notes.append(
                f"other jobs rewrote files of {count_text(lost, 'bin')} meanwhile; the next "
                "compaction rewrites the other files of these bins"
            )
        self._raise_floor(floor)
        return forgotten

    def _bins(self, base: Snapshot, floor: int | None, droppable: Bitmaps) -> list[Bin]:
        target = self._target_bytes(base)
        cold = self._cold_bins(base, target)
        archived: set[str] = set()
        for bin_ in cold:
            archived.update(file.path for file in bin_.files)
        bins = _minor_or_major(base, target, floor, droppable)
        warm = [bin_ for bin_ in bins if not _has_any(bin_, archived)]
        return warm + cold

    def _cold_bins(self, base: Snapshot, target: int) -> list[Bin]:
        if self.asked.archive_after is None:
            return []
        if base.spec.file_format == "orc":
            raise InvalidInputError(
                "archive_after has no effect on a table of ORC files, which have one codec only: "
                "leave out archive_after"
            )
        given = base.spec.with_given(vars(self.asked))
        return plan_cold(base, self.asked.archive_after, given, target, self._now_us())

    def _now_us(self) -> int:
        """Return the store's time: a machine's clock must not decide what is dropped."""
        return store_now_us(self.table.storage, self.table.log.clock)

    def _target_bytes(self, base: Snapshot) -> int:
        if self.target_bytes is not None:
            return self.target_bytes
        given = base.spec.with_given(vars(self.asked))
        return given.integer("target_mb") << 20

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
        works: list[BinWork] = []
        for index, bin_ in enumerate(bins):
            works.append(
                BinWork(
                    position=index,
                    bin=bin_,
                    row_bases=row_bases_of(base, bin_.files),
                    droppable=_droppable_in(bin_, droppable),
                )
            )
        outputs = self.table.executor.run(partial(rewrite_bin, task), works)
        done = commit_rewrite(self.table.log, run, outputs)
        self._count(done.result)
        return done

    def _raise_floor(self, floor: int | None) -> None:
        """Raise the floor in a commit of its own if no rewrite has raised it."""
        if floor is None:
            return
        head = self._newest()
        if _is_raised(head, floor):
            done = commit_rewrite(self.table.log, self._started(head, floor), [])
            self._count(done.result)
        kind = head.spec.delta.type
        assert isinstance(kind, Atomic)
        standing = head.root.floor
        effective = floor if standing is None else max(floor, standing)
        self.notes.append(f"the oldest readable event time is {from_order(effective, kind)}")

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

    def _merge_logs(self, forgotten: Bitmaps) -> None:
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
            "events_forgotten": sum(merged.forgotten for merged in done),
        }
        self._commit(base, number, lambda head: log_actions(head, done), counts)

    def _merge_runs(self, *, is_raised: bool) -> None:
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
        runs_of_slots = self.table.executor.run(partial(merge_slot, task), range(task.slots))
        runs = [*chain.from_iterable(runs_of_slots)]
        counts = {"runs_read": len(merged), "runs_written": len(runs)}
        self._commit(base, number, lambda head: run_actions(head, merged, runs), counts)

    def _claimed(self, base: Snapshot) -> int:
        return claim_number(self.table.storage, base.root, "compact", self.table.log.clock)

    def _commit(
        self, base: Snapshot, number: int, plan_actions: PlanActions, counts: dict[str, int]
    ) -> None:
        def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
            planned = plan_actions(head)
            if planned == Actions():
                return None
            result = JobResult(operation="compact", table=self.table.uri, counts=counts)
            return Draft(actions=planned, result=result)

        started_us = self.table.log.clock.now_us()
        proposal = Proposal(
            operation="compact",
            number=number,
            build=build,
            started_us=started_us,
            skips_refresh=True,
        )
        self._count(self.table.log.commit(base, proposal))

    def _count(self, result: JobResult) -> None:
        if result.version is not None:
            self.version = result.version
            self.counts.update(result.counts)
            self.counts["commits"] += 1


def _is_raised(base: Snapshot, floor: int | None) -> bool:
    return floor is not None and (base.root.floor is None or floor > base.root.floor)


def _droppable(base: Snapshot, floor: int | None) -> Bitmaps:
    if floor is None:
        return {}
    return droppable_rows(base, floor)


def _has_any(bin_: Bin, paths: Set[str]) -> bool:
    return any(file.path in paths for file in bin_.files)


def _minor_or_major(
    base: Snapshot, target: int, floor: int | None, droppable: Bitmaps
) -> list[Bin]:
    if floor is None:
        return plan_minor(base, target)
    return plan_major(base, target, floor, droppable)


def _runs_to_merge(base: Snapshot, *, is_raised: bool) -> tuple[RunFile, ...]:
    """Return the runs of full tiers; all, if a raised floor drops entries."""
    return tuple(base.runs.values()) if is_raised else plan_runs(base)


def _batches(bins: Sequence[Bin]) -> Iterator[Sequence[Bin]]:
    """Yield the bins that are committed together."""
    for start in range(0, len(bins), BINS_A_COMMIT):
        yield bins[start : start + BINS_A_COMMIT]


def _droppable_in(bin_: Bin, droppable: Bitmaps) -> Bitmaps:
    """Return the droppable rows of a bin's segments."""
    segments = bin_.segments & droppable.keys()
    return {segment: droppable[segment] for segment in segments}


def plan_cold(
    base: Snapshot, after: Duration | int | None, given: TableSpec, target: int, now_us: int
) -> list[Bin]:
    """Plan which partitions to archive: those whose rows are all older than `after`."""
    before = plan_floor(base, after, now_us, "archive_after")
    if before is None:
        return []
    return plan_archive(base, before, given.word("archive_codec"), target)


def plan_floor(
    head: Snapshot, look_back: Duration | int | None, now_us: int, name: str = "look_back"
) -> int | None:
    """Return the floor for a look-back, in the delta's order form.

    None without a look-back, or without a row. The floor is that long before now. If the delta
    column holds numbers, the floor is that much below the greatest of them. `name` is the
    argument's name in errors.
    """
    if look_back is None:
        return None
    head.spec.require_keys(name)
    kind = head.spec.delta.type
    assert isinstance(kind, Atomic)
    if kind.name not in ("date", "timestamp", "timestamp_ntz"):
        return _before_greatest(head, look_back, name)
    if isinstance(look_back, int):
        raise InvalidInputError(
            f"{name}={look_back!r} is not a span of time such as '30d', which a delta column of "
            f"type {type_name(kind)} needs"
        )
    floor_us = now_us - parse_duration(look_back, name=name)
    # The order form of a date is in days, that of a time in microseconds
    return floor_us // _DAY_US if kind.name == "date" else floor_us


def _before_greatest(head: Snapshot, look_back: Duration | int, name: str) -> int | None:
    """Return the greatest delta minus a span in the delta's unit; None without rows."""
    text = str(look_back)
    if not text.isdecimal():
        raise InvalidInputError(
            f"{name}={look_back!r} is not a number such as 1000, which the delta column "
            f"{head.spec.delta.name!r} needs"
        )
    greatest: int | None = None
    for file in settled_files(head):
        _, high = delta_bounds(file, head.spec)
        if high is not None and (greatest is None or high > greatest):
            greatest = high
    if greatest is None:
        return None
    assert isinstance(head.spec.delta.type, Atomic)
    # The order form of a decimal is its unscaled value
    parts = decimal_parts(head.spec.delta.type.name)
    unit: int = 10 ** parts[1] if parts else 1
    return greatest - int(text) * unit
