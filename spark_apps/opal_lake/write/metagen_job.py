"""A MetaGen from plan to commit: pending rows to their range of the key hash, the rule in each task, one commit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from opal_lake.data.segment import DataFile
from opal_lake.engine.open_table import OpenTable
from opal_lake.engine.results import find_result, keep_result
from opal_lake.errors import FormatError
from opal_lake.job.job import JobResult
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.retention.business_snapshot import (
    finish_what_is_over,
    held_notes,
    is_over,
    segments_due,
)
from opal_lake.rule.outputs import JobOutputs, rule_counts, rule_notes, slot_writer
from opal_lake.write.metagen_task import process_entries


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaGenPlan:
    """The segments that a run takes up, and the files that hold their rows."""

    number: int
    base: Snapshot
    started_us: int
    segments: tuple[int, ...]
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def metagen(table: OpenTable, token: str | None = None) -> JobResult:
    """Apply the rule to all pending rows and make them visible: of each business snapshot in a commit of its own, the last by the token."""
    while True:
        plan = start_metagen(table, token)
        if isinstance(plan, JobResult):
            return plan
        is_last = not is_over(table.log, plan.base)
        result = commit_metagen(
            table.log, plan, apply_to_pending(table, plan), token if is_last else None
        )
        if is_last:
            return result


def start_metagen(table: OpenTable, token: str | None) -> MetaGenPlan | JobResult:
    """Claim a number and take up what is pending; or the result, if this was done before, or there is nothing to do.

    With nothing left to do for the open business snapshot, and its drift time over, it is finished first.
    """
    started_us, base = table.log.clock.now_us(), table.log.head()
    if (earlier := find_result(table.log, base, "metagen", token)) is not None:
        return earlier
    base = finish_what_is_over(table.log, base)
    if not segments_due(base):
        return nothing_pending(base, token)
    return plan_metagen(
        base, claim_number(table.storage, base.root, "metagen", table.log.clock), started_us
    )


def plan_metagen(base: Snapshot, number: int, started_us: int) -> MetaGenPlan:
    """All pending segments that are not held back. A pending segment lies in one file: no rewrite takes it."""
    pending = segments_due(base)
    files = tuple(file for file in base.files.values() if not pending.isdisjoint(file.segments))
    return MetaGenPlan(
        number=number,
        base=base,
        started_us=started_us,
        segments=tuple(sorted(pending)),
        files=files,
    )


def apply_to_pending(table: OpenTable, plan: MetaGenPlan) -> JobOutputs:
    """The tasks of a plan, one for each range of the key hash."""
    writer = slot_writer(plan.base, plan.number, table.cache)
    slots = table.executor.slots(plan.rows + writer.merged_entries)
    task = partial(process_entries, writer=writer, slots=slots)
    outputs = table.executor.stored_by_key_hash(plan.base, plan.files, slots, task)
    return JobOutputs(writer=writer, outputs=tuple(outputs), slots=slots)


def commit_metagen(
    log: CommitLog, plan: MetaGenPlan, rule_outputs: JobOutputs, token: str | None
) -> JobResult:
    """Make the processed rows visible. Where winners did it all there is nothing to commit."""
    if rule_outputs.counts["rows"] != plan.rows:
        met = f"the job met {rule_outputs.counts['rows']}"
        raise FormatError(
            f"{log.storage.uri}: the pending files hold {plan.rows} rows, {met}; run `opal check`"
        )

    seen = plan.base

    def build(head: Snapshot, winners: Sequence[Commit]) -> Draft | None:
        nonlocal seen
        seen, left = head, tuple(segment for segment in plan.segments if segment in head.pending)
        if not left:
            return None
        counts = rule_counts(rule_outputs.counts, len(left))
        notes = (*rule_notes(rule_outputs.counts), *held_notes(head))
        result = JobResult(operation="metagen", table=log.storage.uri, counts=counts, notes=notes)
        actions = replace(rule_outputs.actions(head, winners), processed=left)
        return Draft(actions=actions, result=result, changes_view=True)

    proposal = Proposal(
        operation="metagen",
        number=plan.number,
        build=build,
        started_us=plan.started_us,
        token=token,
        business_snapshot=plan.base.root.business.open,
    )
    result = log.commit(plan.base, proposal)
    return nothing_pending(seen, token) if result.version is None else result


def nothing_pending(head: Snapshot, token: str | None) -> JobResult:
    """The result of a run that has nothing to do; its version is one at which all that was to be processed is visible."""
    counts, notes = rule_counts(Counter(), 0), held_notes(head)
    done = JobResult(
        operation="metagen",
        table=head.storage.uri,
        version=head.version,
        token=token,
        counts=counts,
        notes=notes,
    )
    return keep_result(head.storage, done)
