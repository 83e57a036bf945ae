"""A MetaGen from plan to commit, whoever runs its tasks: one process over Arrow, or Spark."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opal_lake.commit import Actions, Commit
from opal_lake.commit_log import CommitLog, Draft, Proposal
from opal_lake.errors import FormatError
from opal_lake.job import JobResult
from opal_lake.ruled import Ruled, rule_counts, rule_notes
from opal_lake.segment import DataFile
from opal_lake.snapshot import Snapshot


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


def plan_metagen(base: Snapshot, number: int, started_us: int) -> MetaGenPlan:
    """All pending segments. A pending segment lies in one file: no rewrite takes it."""
    pending = base.pending
    files = tuple(file for file in base.files.values() if not pending.isdisjoint(file.segments))
    return MetaGenPlan(number=number, base=base, started_us=started_us, segments=tuple(sorted(pending)), files=files)


def commit_metagen(log: CommitLog, plan: MetaGenPlan, ruled: Ruled, token: str | None) -> JobResult:
    """Make the processed rows visible."""
    if ruled.counts["rows"] != plan.rows:
        met = f"the job met {ruled.counts['rows']}"
        raise FormatError(f"{log.storage.uri}: the pending files hold {plan.rows} rows, {met}; run `opal check`")

    def build(head: Snapshot, winners: Sequence[Commit]) -> Draft | None:
        left = tuple(segment for segment in plan.segments if segment in head.pending)
        if plan.segments and not left:  # a winner did it all; who gave a token will look for its result
            done = JobResult(operation="metagen", table=log.storage.uri, counts=rule_counts(Counter(), 0))
            return None if token is None else Draft(actions=Actions(), result=done, changes_view=False)
        counts = rule_counts(ruled.counts, len(left))
        result = JobResult(operation="metagen", table=log.storage.uri, counts=counts, notes=rule_notes(ruled.counts))
        actions = replace(ruled.actions(head, winners), processed=left)
        return Draft(actions=actions, result=result, changes_view=bool(left))

    proposal = Proposal(operation="metagen", number=plan.number, build=build, started_us=plan.started_us, token=token)
    return log.commit(plan.base, proposal)
