"""Z-order from the plan to the last commit: the rows of a place (a group's files in one folder) sorted along the curve, whoever sorts them.

Every batch of places commits by itself, under a number of its own, so that a failure loses one batch at most. Rows keep their ids and none
is left out: all versions and event times read as before, and upserts go on meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise

import numpy as np
import pyarrow as pa

from opal_lake.claim import claim_number
from opal_lake.data_file import decode_parts
from opal_lake.errors import FormatError, count_text
from opal_lake.job import JobResult
from opal_lake.layout import folder_of
from opal_lake.rewrite import Bin
from opal_lake.rewrite_job import RewriteDone, RewriteRun, commit_rewrite
from opal_lake.rewrite_task import FILES_A_BIN, RewriteTask, Rewritten, Target, write_files
from opal_lake.schema import OFFSET, Field
from opal_lake.segment import Cluster, DataFile
from opal_lake.snapshot import Snapshot
from opal_lake.storage.verified import read_verified
from opal_lake.table import Table
from opal_lake.z_value import interleave, plan_curve, tie_shift
from opal_lake.zorder_plan import ZOrderOptions, ZOrderPlan, plan_batches, plan_zorder

OPERATION = "zorder"
_COUNTED = ("files_read", "files_written", "bytes_read", "bytes_written", "rows")
_ROOM = 2  # the curve's cuts say how large files are; this keeps the writer from cutting them again


@dataclass(frozen=True, slots=True, kw_only=True)
class ZOrderWork:
    """Bins of one commit, and how to write them."""

    base: Snapshot
    bins: tuple[Bin, ...]
    columns: tuple[Field, ...]
    target_bytes: int
    task: RewriteTask

    @property
    def cluster(self) -> Cluster:
        return Cluster(number=self.task.number, columns=tuple(field.id for field in self.columns))

    @property
    def tie_shift(self) -> int:
        """By how much offsets are shifted to fit below the ranks."""
        return tie_shift(max(self.base.segments[segment].rows for one in self.bins for segment in one.segments))

    def files_of(self, one: Bin) -> float:
        return one.size / self.target_bytes

    def target(self, one: Bin, sequence: int, attempt: str) -> Target:
        return Target(
            beside=one.files[0],
            sequence=sequence * FILES_A_BIN,
            attempt=attempt,
            codec=one.codec,
            cluster=self.cluster,
            floor=one.floor,
        )


Arrange = Callable[[ZOrderWork], Sequence[Rewritten]]


def arrange_here(work: ZOrderWork) -> list[Rewritten]:
    """In this process, which holds the rows of one bin."""
    sequences = count()
    return [_arranged(work, one, sequences) for one in work.bins]


def _arranged(work: ZOrderWork, one: Bin, sequences: Iterator[int]) -> Rewritten:
    spec, storage = work.task.spec, work.task.storage
    rows = pa.concat_tables(part for file in one.files for part in decode_parts(read_verified(storage, file), spec, file.path))
    columns = [rows[field.physical].combine_chunks() for field in work.columns]
    ties = rows[OFFSET].to_numpy().astype(np.int64) >> work.tie_shift
    curve = plan_curve(columns, ties, work.files_of(one))
    z = interleave(columns, curve.knots) | ties
    order = np.argsort(z, kind="stable")
    ends = [*np.searchsorted(z[order], curve.cuts).tolist(), len(order)]
    files: list[DataFile] = []
    for start, end in pairwise([0, *ends]):
        files += write_files([rows.take(pa.array(order[start:end]))], work.task, work.target(one, next(sequences), "0"))
    return Rewritten(replaced=tuple(file.path for file in one.files), files=tuple(files))


def zorder(table: Table, columns: tuple[Field, ...], options: ZOrderOptions, arrange: Arrange = arrange_here) -> JobResult:
    """Cluster what is not clustered by these columns yet."""
    head, started_us = table.log.head(), table.log.clock.now_us()
    plan = plan_zorder(head, options)
    due_percent = head.spec.integer("unclustered_share") if options.only_if_due else 0
    result = JobResult(operation=OPERATION, table=table.uri)
    if plan.unclustered_percent < due_percent:
        return replace(result, notes=(_not_due(plan, columns, due_percent),))
    counts: Counter[str] = Counter()
    lost = 0
    for bins in plan_batches(plan.bins):
        done = _commit_batch(table, bins, _Asked(columns=columns, options=options, arrange=arrange))
        lost += done.lost
        if done.result.version is not None:
            counts.update({name: done.result.counts[name] for name in _COUNTED}, commits=1)
            result = replace(result, version=done.result.version, counts=dict(counts))
    notes = (_lost(lost),) if lost else ()
    return replace(result, notes=notes, timings_ms={"total": max(0, table.log.clock.now_us() - started_us) // 1000})


def _not_due(plan: ZOrderPlan, columns: tuple[Field, ...], due_percent: int) -> str:
    names = ", ".join(field.name for field in columns)
    share = f"{plan.unclustered_percent:.0f}% of {plan.settled_bytes:,} bytes"
    return f"not due: {share} are not clustered by {names}; due from {due_percent}% on (unclustered_share)"


def _lost(bins: int) -> str:
    return f"{count_text(bins, 'bin')} of files were rewritten by other jobs meanwhile; what is left of them waits for the next run"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    columns: tuple[Field, ...]
    options: ZOrderOptions
    arrange: Arrange


def _commit_batch(table: Table, bins: Sequence[Bin], asked: _Asked) -> RewriteDone:
    """Bins whose files are gone when their turn comes are lost, as those are that go later."""
    log, base = table.log, table.log.head()
    left = tuple(one for one in bins if all(file.path in base.files for file in one.files))
    run = RewriteRun(
        operation=OPERATION,
        number=claim_number(log.storage, base.root, OPERATION, log.clock),
        base=base,
        started_us=log.clock.now_us(),
    )
    target_bytes = asked.options.target_of(base.spec)
    task = RewriteTask(storage=log.storage, spec=base.spec, number=run.number, target_bytes=_ROOM * target_bytes)
    work = ZOrderWork(base=base, bins=left, columns=asked.columns, target_bytes=target_bytes, task=task)
    outputs = asked.arrange(work) if left else ()
    _check_rows(table, left, outputs)
    done = commit_rewrite(log, run, outputs)
    return replace(done, lost=done.lost + len(bins) - len(left))


def _check_rows(table: Table, bins: Sequence[Bin], outputs: Sequence[Rewritten]) -> None:
    """A Z-order leaves no row out."""
    for one, output in zip(bins, outputs, strict=True):
        read, written = sum(file.rows for file in one.files), sum(file.rows for file in output.files)
        if read != written:
            place = folder_of(one.files[0].path)
            raise FormatError(f"{table.uri}/{place}: the data files hold {read:,} rows, the job met {written:,}; run `opal check`")
