"""The choice of an engine for a job, by the amount of data that it would read.

The amount is estimated from metadata: no data file is opened. The limit is the table's property
`local_mb`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opal_lake.data.segment import DataFile
from opal_lake.errors import count_text
from opal_lake.log.snapshot import Snapshot
from opal_lake.operations.compact import Compact
from opal_lake.operations.create import Create
from opal_lake.operations.look import Check
from opal_lake.operations.maintain import Maintain
from opal_lake.operations.metagen import MetaGen
from opal_lake.operations.read import Changes, Read, ShowChanges, ShowRows
from opal_lake.operations.rebuild_key_store import RebuildKeyStore
from opal_lake.operations.verb import Job, Operation
from opal_lake.operations.zorder import ZOrder

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable

# Memory that a job needs for a row or entry: its hash, delta and row id, and its place in the order
ROW_BYTES = 64
MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The input of a job: data files, their bytes and rows, and entries to merge.

    `entries` counts the entries of key-store runs and the events of segment logs.
    """

    files: int = 0
    size: int = 0
    rows: int = 0
    entries: int = 0

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> "Workload":
        """Return the workload of a job that reads these files."""
        listed = list(files)
        return cls(
            files=len(listed),
            size=sum(file.size for file in listed),
            rows=sum(file.rows for file in listed),
        )

    def __add__(self, other: "Workload") -> "Workload":
        return Workload(
            files=self.files + other.files,
            size=self.size + other.size,
            rows=self.rows + other.rows,
            entries=self.entries + other.entries,
        )

    def part(self, share: float) -> "Workload":
        """Return the workload of a job that reads a share of each file."""
        return replace(self, size=math.ceil(share * self.size), rows=math.ceil(share * self.rows))

    @property
    def weight(self) -> int:
        """The bytes by which the engine is chosen: at least `ROW_BYTES` a row and entry."""
        return max(self.size, ROW_BYTES * (self.rows + self.entries))

    def __str__(self) -> str:
        parts = ["no files"]
        if self.files:
            parts = [
                count_text(self.files, "file"),
                _size_text(self.size),
                count_text(self.rows, "row"),
            ]
        if self.entries:
            noun = "entry" if self.entries == 1 else "entries"
            parts.append(f"{self.entries:,} {noun} to merge")
        return ", ".join(parts)


def _size_text(size: int) -> str:
    if size >= MB:
        return f"{size / MB:,.1f} MB"
    return f"{size / 1024:,.1f} KB"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine that fits a job, and the reason."""

    on_spark: bool
    why: str


def spark_only(operation: Operation[Any]) -> str:
    """Return the argument for which an operation needs Spark, or an empty text."""
    if isinstance(operation, ShowRows | ShowChanges) and operation.to is not None:
        return "to"
    if isinstance(operation, Create) and operation.like is not None:
        return "like"
    return ""


def choose_engine(table: "OpenTable", operation: Operation[Any]) -> EngineChoice:
    """Choose the engine for an operation on the newest version of a table.

    Raises the errors of the operation for arguments that do not fit the table.
    """
    snapshot = table.snapshot_at()
    if _was_done(table, snapshot, operation):
        return EngineChoice(on_spark=False, why="done before with this token: in this process")
    bound_mb = snapshot.spec.integer("local_mb")
    workload = workload_of(table, snapshot, operation)
    bound = f"local_mb={bound_mb}"
    if workload.weight <= bound_mb * MB:
        return EngineChoice(on_spark=False, why=f"{workload}: in this process (up to {bound})")
    if workload.size <= bound_mb * MB:
        bound += f", at {ROW_BYTES} bytes a row or entry"
    return EngineChoice(on_spark=True, why=f"{workload}: on Spark (more than {bound})")


def _was_done(table: "OpenTable", snapshot: Snapshot, operation: Operation[Any]) -> bool:
    """Return whether an earlier job with the operation's token has a result."""
    from opal_lake.engine.results import find_result

    is_dry = isinstance(operation, Maintain) and operation.dry_run
    if not isinstance(operation, Job) or is_dry:
        return False
    return find_result(table.log, snapshot, operation.name, operation.token) is not None


def workload_of(table: "OpenTable", snapshot: Snapshot, operation: Operation[Any]) -> Workload:
    """Return the workload of an operation on a version."""
    match operation:
        case MetaGen():
            return _of_metagen(table, snapshot, operation)
        case Compact():
            return _of_compaction(table, operation)
        case ZOrder():
            return _of_zorder(snapshot, operation)
        case Maintain():
            return _of_maintenance(table, snapshot, operation)
        case RebuildKeyStore():
            # Pending rows have no entries in the key store
            pending = snapshot.pending
            files = snapshot.files.values()
            return Workload.of(file for file in files if pending.isdisjoint(file.segments))
        case Check(quick=False):
            return _of_check(table, snapshot, operation)
        case Read():
            return _of_read(table, operation)
        case Changes():
            return _of_changes(table, operation)
    return Workload()


def _of_metagen(table: "OpenTable", snapshot: Snapshot, operation: MetaGen) -> Workload:
    """Count the selected pending rows, and the key-store entries to merge."""
    from opal_lake.rule.outputs import slot_writer
    from opal_lake.write.metagen_job import plan_metagen

    plan = plan_metagen(snapshot, number=0, started_us=0, selection=operation.selection)
    if not plan.files:
        return Workload()
    merged = slot_writer(snapshot, plan.number, table.cache).merged_entries
    return Workload.of(plan.files) + Workload(entries=merged)


def _of_compaction(table: "OpenTable", operation: Compact) -> Workload:
    """Count the files to rewrite, and the entries and events to merge."""
    from opal_lake.maintenance.compaction import Compaction
    from opal_lake.maintenance.due import why_due

    job = Compaction(table=table, asked=operation)
    if operation.only_if_due and why_due(job) is None:
        return Workload()
    reads = job.planned_reads()
    entries = sum(run.entries for run in reads.runs)
    entries += sum(log.events for log in reads.logs)
    return Workload.of(reads.files) + Workload(entries=entries)


def _of_zorder(snapshot: Snapshot, operation: ZOrder) -> Workload:
    """Count the files to put in order."""
    from opal_lake.maintenance.zorder import is_due, plan_of

    plan = plan_of(snapshot, operation)
    workload = Workload()
    if is_due(plan, snapshot, operation):
        for bin_ in plan.bins:
            workload += Workload.of(bin_.files)
    return workload


def _of_maintenance(table: "OpenTable", snapshot: Snapshot, operation: Maintain) -> Workload:
    """Add up the steps that are due now; retention reads metadata only."""
    if operation.dry_run:
        return Workload()
    workload = Workload()
    for step in operation.due_steps(table):
        job = operation.job_of(step.operation, step.arguments)
        workload += workload_of(table, snapshot, job)
    return workload


def _of_check(table: "OpenTable", snapshot: Snapshot, operation: Check) -> Workload:
    """Count the files to check, or the share of them that a sample reads."""
    from opal_lake.inspect.check.sample import plan_sample
    from opal_lake.inspect.check.versions import files_of_readable_versions

    share = plan_sample(operation.sample, snapshot).share
    files: Iterable[DataFile] = snapshot.files.values()
    if operation.all:
        files = files_of_readable_versions(table.log, snapshot)
    return Workload.of(files).part(share)


def _of_read(table: "OpenTable", operation: Read) -> Workload:
    """Count the files that may hold rows to show.

    Without a condition the files that hold `limit` rows are enough.
    """
    from opal_lake.log.visibility import invalid_rows
    from opal_lake.read.partition_net import plan_net
    from opal_lake.read.read import plan_read
    from opal_lake.read.where import where_predicate

    view = operation.view(table)
    if view.net_of is not None:
        return Workload.of(plan_net(view.snapshot, view.net_of, view.as_of).files)
    invalid = view.narrowed(invalid_rows(view.snapshot, view.as_of))
    plan = plan_read(view.snapshot, view.as_of, where_predicate(view.condition), invalid)
    limit = operation.shown_rows if isinstance(operation, ShowRows) else None
    if limit is None or view.condition is not None:
        return Workload.of(plan.files)
    # All rows of plain files are visible: the read stops when it has enough rows
    opened: list[DataFile] = []
    rows = 0
    for file in plan.plain:
        opened.append(file)
        rows += file.rows
        if rows > limit:
            return Workload.of(opened)
    return Workload.of(plan.files)


def _of_changes(table: "OpenTable", operation: Changes) -> Workload:
    """Count the rows that became visible or invisible, or the rows of the history."""
    from opal_lake.read.change_range import version_range
    from opal_lake.read.changed_rows import FEED_TYPES
    from opal_lake.read.changes import plan_changes
    from opal_lake.read.history_changes import planned_reads
    from opal_lake.read.where import where_condition, where_predicate

    versions = version_range(table.log, operation.start, operation.end)
    if operation.is_of_history:
        reads = planned_reads(table.log, versions)
        files = Workload.of(reads.files.values())
        return replace(files, rows=sum(reads.rows.values()), entries=reads.entries)
    condition = where_condition(operation.where, versions.head.spec, FEED_TYPES)
    plan = plan_changes(table.log, versions, where_predicate(condition), is_net=operation.is_net)
    workload = Workload()
    for span in plan.spans:
        size = sum(span.bytes_read(file) for file in span.files)
        workload += Workload(files=len(span.files), size=size, rows=span.concerned_rows)
    return workload
