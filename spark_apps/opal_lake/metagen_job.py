"""A MetaGen from plan to commit, whoever runs its tasks: one process over Arrow, or Spark."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opal_lake import layout
from opal_lake.commit import Actions, Commit
from opal_lake.commit_log import CommitLog, Draft, Proposal
from opal_lake.errors import FormatError
from opal_lake.job import JobResult
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.run import neighbours
from opal_lake.metagen import rule_between
from opal_lake.segment import DataFile, LogFile, RunFile
from opal_lake.segment_log import concat_events, least_events
from opal_lake.slot import SegmentGroups, SlotOutput, SlotWriter, write_log
from opal_lake.snapshot import Snapshot

REDO_ROWS = 1 << 20


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


def slot_writer(snapshot: Snapshot, cache: RunCache) -> SlotWriter:
    """What the tasks of a job need to know of the table."""
    return SlotWriter(storage=snapshot.storage, cache=cache, runs=tuple(snapshot.runs.values()), groups=segment_groups(snapshot))


def segment_groups(snapshot: Snapshot) -> SegmentGroups:
    if len(snapshot.root.groups) <= 1:
        return SegmentGroups(segments=np.empty(0, np.int64), groups=np.array([*snapshot.root.groups, 0][:1], np.int64))
    ids = np.array(sorted(snapshot.segments), np.int64)
    return SegmentGroups(segments=ids, groups=np.array([snapshot.segments[int(number)].group for number in ids], np.int64))


def commit_metagen(log: CommitLog, plan: MetaGenPlan, outputs: Sequence[SlotOutput], cache: RunCache, token: str | None) -> JobResult:
    """Make the processed rows visible. Against a winner that processed rows meanwhile, only the rows of both sides are compared again."""
    counts = sum((Counter(dict(output.counts)) for output in outputs), Counter())
    if counts["rows"] != plan.rows:
        raise FormatError(f"{log.storage.uri}: the pending files hold {plan.rows} rows, the job met {counts['rows']}; run `opal check`")
    logs = tuple(log for output in outputs for log in output.logs)
    runs = tuple(run for output in outputs for run in output.runs)
    redone: dict[int, tuple[LogFile, ...]] = {}

    def build(head: Snapshot, winners: Sequence[Commit]) -> Draft | None:
        left = tuple(segment for segment in plan.segments if segment in head.pending)
        if plan.segments and not left:  # a winner did it all; who gave a token will look for its result
            done = JobResult(operation="metagen", table=log.storage.uri, counts=_counts(Counter(), left))
            return None if token is None else Draft(actions=Actions(), result=done, changes_view=False)
        writer = slot_writer(head, cache)
        for winner in winners:
            if winner.version not in redone and winner.actions.add_runs:
                stem = layout.job_file_name(plan.number, winner.version, "redo")
                redone[winner.version] = redo(runs, winner.actions.add_runs, writer, stem)
        more = tuple(log for version in sorted(redone) for log in redone[version])
        result = JobResult(operation="metagen", table=log.storage.uri, counts=_counts(counts, left), notes=_notes(counts))
        actions = Actions(processed=left, add_logs=logs + more, add_runs=runs)
        return Draft(actions=actions, result=result, changes_view=bool(left))

    proposal = Proposal(operation="metagen", number=plan.number, build=build, started_us=plan.started_us, token=token)
    return log.commit(plan.base, proposal)


def redo(own: Sequence[RunFile], theirs: Sequence[RunFile], writer: SlotWriter, stem: str) -> tuple[LogFile, ...]:
    """Events between our rows and a winner's: the winner's are put to the rule as if they came after ours."""
    found = []
    for run in theirs:
        for rows in writer.cache.open(run).slices(REDO_ROWS):
            near = [writer.cache.open(mine) for mine in own if mine.hash_low <= run.hash_high and mine.hash_high >= run.hash_low]
            found.append(rule_between(rows, [neighbours(mine, rows) for mine in near]))
    return write_log(writer, least_events(concat_events(found)), stem)


def _counts(counts: Counter[str], left: tuple[int, ...]) -> dict[str, int]:
    names = ("rows", "updates", "deletes", "late", "ambiguous", "events")
    return {name: counts[name] for name in names} | {"segments": len(left)}


def _notes(counts: Counter[str]) -> tuple[str, ...]:
    if not counts["ambiguous"]:
        return ()
    have = "row of one ingest has" if counts["ambiguous"] == 1 else "rows of one ingest have"
    alike = f"{counts['ambiguous']} {have} the same key, delta and tie-break as another row: "
    return (alike + "which of them is visible is not specified; add a tie-break column to decide",)
