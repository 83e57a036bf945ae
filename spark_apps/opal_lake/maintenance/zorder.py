"""A Z-order from the plan to the last commit, on any executor.

The rows of a bin (a group's files in one folder) are sorted along the Z-order curve. Every batch of
bins is a commit, under a number of its own, so that a failure loses one batch at most. Rows keep
their ids and none is left out: all versions and event times read as before. Upserts go on
meanwhile.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from opal_lake.data.segment import Cluster, DataFile
from opal_lake.data.z_value import z_fields
from opal_lake.definition.schema import Field
from opal_lake.engine.executor import Attempt, Ordering
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import FormatError, count_text
from opal_lake.layout import folder_of
from opal_lake.log.claim import claim_number
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.compaction_plan import Bin
from opal_lake.maintenance.rewrite_job import RewriteDone, RewriteRun, commit_rewrite
from opal_lake.maintenance.rewrite_task import (
    FILES_A_BIN,
    RewriteTask,
    Rewritten,
    Target,
    row_bases_of,
    write_files,
)
from opal_lake.maintenance.zorder_plan import ZOrderPlan, plan_batches, plan_zorder
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.operations.zorder import ZOrder

OPERATION = "zorder"
_COUNTED = ("files_read", "files_written", "bytes_read", "bytes_written", "rows")
# Times the target size. The cuts of the curve make the files: the writer must not begin another one
_ROOM = 2


def zorder(table: OpenTable, asked: "ZOrder", *, target_bytes: int | None = None) -> JobResult:
    """Cluster the rows that are not clustered by the requested columns yet.

    `target_bytes` replaces `target_mb`, for sizes of files that are not whole megabytes.
    """
    head = table.log.head()
    started_us = table.log.clock.now_us()
    columns = z_fields(head.spec, asked.columns)
    if target_bytes is None:
        target_bytes = _target_bytes(head, asked)
    plan = plan_of(head, asked, target_bytes)
    result = JobResult(operation=OPERATION, table=table.uri)
    if not is_due(plan, head, asked):
        due_percent = head.spec.integer("unclustered_share")
        return replace(result, notes=(_not_due_note(plan, columns, due_percent),))
    counts: Counter[str] = Counter()
    lost = 0
    for index, bins in enumerate(plan_batches(plan.bins)):
        if index:
            head = table.log.refresh(head)
        done = _commit_batch(table, head, bins, columns, target_bytes)
        lost += done.lost
        if done.result.version is not None:
            for name in _COUNTED:
                counts[name] += done.result.counts[name]
            counts["commits"] += 1
            result = replace(result, version=done.result.version, counts=dict(counts))
    notes: tuple[str, ...] = ()
    if not plan.bins:
        notes = (_nothing_to_do_note(columns),)
    elif lost:
        notes = (_lost_note(lost),)
    took_us = max(0, table.log.clock.now_us() - started_us)
    return replace(result, notes=notes, timings_ms={"total": took_us // 1000})


def plan_of(head: Snapshot, asked: "ZOrder", target_bytes: int | None = None) -> ZOrderPlan:
    """Plan which files a Z-order rewrites; `target_bytes` replaces the requested size."""
    if target_bytes is None:
        target_bytes = _target_bytes(head, asked)
    ids = tuple(field.id for field in z_fields(head.spec, asked.columns))
    return plan_zorder(head, ids, target_bytes, whole=asked.whole)


def is_due(plan: ZOrderPlan, head: Snapshot, asked: "ZOrder") -> bool:
    """Return whether to run: always, unless `only_if_due` is set and it is not due."""
    if not asked.only_if_due:
        return True
    return plan.unclustered_percent >= head.spec.integer("unclustered_share")


def _target_bytes(head: Snapshot, asked: "ZOrder") -> int:
    return head.spec.with_given(vars(asked)).integer("target_mb") << 20


def _not_due_note(plan: ZOrderPlan, columns: tuple[Field, ...], due_percent: int) -> str:
    names = ", ".join(field.name for field in columns)
    return (
        f"not due: {plan.unclustered_percent:.0f}% of {plan.settled_bytes:,} bytes are not "
        f"clustered by {names}; due from unclustered_share={due_percent}%"
    )


def _nothing_to_do_note(columns: tuple[Field, ...]) -> str:
    names = ", ".join(field.name for field in columns)
    return (
        f"nothing to do: all rows are in Z-order by {names}, or in a single file of at most "
        "target_mb"
    )


def _lost_note(bins: int) -> str:
    return (
        f"other jobs rewrote files of {count_text(bins, 'bin')} meanwhile; the next Z-order "
        "rewrites the other files of these bins"
    )


def _commit_batch(
    table: OpenTable,
    base: Snapshot,
    bins: Sequence[Bin],
    columns: tuple[Field, ...],
    target_bytes: int,
) -> RewriteDone:
    """Rewrite and commit some bins.

    A bin is lost if another rewrite replaces one of its files, before this job begins with the bin
    or later.
    """
    log = table.log
    whole = tuple(bin_ for bin_ in bins if _has_all_files(base, bin_))
    run = RewriteRun(
        operation=OPERATION,
        number=claim_number(log.storage, base.root, OPERATION, log.clock),
        base=base,
        started_us=log.clock.now_us(),
    )
    outputs: list[Rewritten] = []
    if whole:
        outputs = _written_in_order(table, run, whole, columns, target_bytes)
    _check_rows(table, whole, outputs)
    done = commit_rewrite(log, run, outputs)
    lost_before = len(bins) - len(whole)
    return replace(done, lost=done.lost + lost_before)


def _has_all_files(base: Snapshot, bin_: Bin) -> bool:
    return all(file.path in base.files for file in bin_.files)


def _written_in_order(
    table: OpenTable,
    run: RewriteRun,
    bins: tuple[Bin, ...],
    columns: tuple[Field, ...],
    target_bytes: int,
) -> list[Rewritten]:
    """Write the rows of each bin to new files, along the Z-order curve."""
    ordering = Ordering(
        base=run.base,
        bins=tuple(bin_.files for bin_ in bins),
        columns=columns,
        files=tuple(bin_.size / target_bytes for bin_ in bins),
    )
    task = RewriteTask(
        storage=table.storage,
        spec=run.base.spec,
        number=run.number,
        target_bytes=_ROOM * target_bytes,
    )
    cluster = Cluster(number=run.number, columns=tuple(field.id for field in columns))
    targets: list[Target] = []
    for bin_ in bins:
        # `_write_part` sets sequence and attempt
        target = Target(
            neighbour=bin_.files[0],
            sequence=0,
            attempt="",
            row_bases=row_bases_of(run.base, bin_.files),
            codec=bin_.codec,
            cluster=cluster,
            floor=bin_.floor,
        )
        targets.append(target)
    written = table.executor.in_order(ordering, partial(_write_part, task=task, targets=targets))
    outputs: list[Rewritten] = []
    for bin_, parts in zip(bins, written, strict=True):
        replaced = tuple(file.path for file in bin_.files)
        files = tuple(chain.from_iterable(parts))
        outputs.append(Rewritten(replaced=replaced, files=files, bytes_read=bin_.size))
    return outputs


def _write_part(
    batches: Iterable[pa.RecordBatch],
    attempt: Attempt,
    *,
    task: RewriteTask,
    targets: Sequence[Target],
) -> tuple[DataFile, ...]:
    """Write a part of a curve to a file, or a few."""
    sequence = attempt.part * FILES_A_BIN
    target = replace(targets[attempt.bin], sequence=sequence, attempt=attempt.name)
    tables = (pa.Table.from_batches([batch]) for batch in batches)
    return write_files(tables, task, target)


def _check_rows(table: OpenTable, bins: Sequence[Bin], outputs: Sequence[Rewritten]) -> None:
    """Raise FormatError if a row is missing: a Z-order leaves none out."""
    for bin_, output in zip(bins, outputs, strict=True):
        read = sum(file.rows for file in bin_.files)
        written = sum(file.rows for file in output.files)
        if read != written:
            folder = folder_of(bin_.files[0].path)
            raise FormatError(
                f"{table.uri}/{folder}: the data files hold {read:,} rows, but the job wrote "
                f"{written:,}; run `opal check`"
            )
