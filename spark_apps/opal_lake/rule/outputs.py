"""The outputs of a job that applies the rule, and the actions that bring them into the log.

The job is a MetaGen, or an ingest that applies the rule inline.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from opal_lake import layout
from opal_lake.data.segment import DataFile, RunFile
from opal_lake.definition.table_spec import TableSpec
from opal_lake.events.segment_log import Events, concat_events, least_events
from opal_lake.ids import SEQUENCE_BITS
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.entries import Entries, concat_entries, has_key_of, no_entries
from opal_lake.key_store.merge import plan_merge
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.metagen import rule_between, statement_rows_between
from opal_lake.rule.slot import LogOutput, SegmentGroups, SlotOutput, SlotWriter, write_log

REDO_ROWS = 1 << 20  # rows of a winner that are in memory at once


def slot_writer(
    snapshot: Snapshot, number: int, cache: RunCache, *, hurried: bool = False
) -> SlotWriter:
    """Return the writer of a job's tasks, for the runs and groups of a snapshot.

    A hurried job leaves large merges of runs to other jobs, for a while.
    """
    runs = tuple(snapshot.runs.values())
    merged = plan_merge(runs, snapshot.spec.integer("key_store_fan_in"), hurried)
    groups = segment_groups(snapshot)
    return SlotWriter(
        number=number,
        storage=snapshot.storage,
        cache=cache,
        runs=runs,
        groups=groups,
        merged=merged,
    )


def segment_groups(snapshot: Snapshot) -> SegmentGroups:
    """Return the group of each segment."""
    if len(snapshot.root.groups) <= 1:
        # A table without rows begins with group 0
        group = next(iter(snapshot.root.groups), 0)
        return SegmentGroups(segments=np.empty(0, np.int64), groups=np.array([group], np.int64))
    ids = sorted(snapshot.segments)
    groups = [snapshot.segments[number].group for number in ids]
    return SegmentGroups(segments=np.array(ids, np.int64), groups=np.array(groups, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Redone:
    """The logs that a job writes because of a winner.

    `statement_rows` are the winner's rows of statements that the job's rows follow at the same
    delta.
    """

    logs: tuple[LogOutput, ...]
    statement_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutputs:
    """The outputs of a job's tasks.

    `slots` is the number of slots if all of them had a task. `redone` has what was redone because
    of a winner, by its version. It is done once: a race that is lost again costs only the new
    winner.
    """

    writer: SlotWriter
    outputs: tuple[SlotOutput, ...]
    slots: int | None = None
    redone: dict[int, Redone] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        """The counts of all tasks, added up."""
        total: Counter[str] = Counter()
        for output in self.outputs:
            total += Counter(dict(output.counts))
        for redone in self.redone.values():
            total["statement_rows"] += redone.statement_rows
        return total

    def actions(
        self, head: Snapshot, winners: Sequence[Commit], ingested: Sequence[DataFile] = ()
    ) -> Actions:
        """Return the actions of a commit after the winners, the commits of other jobs.

        The rule is applied again only between the rows of this job and those of winners that are
        not in `redone`. `ingested` are the data files of this job, with their groups.
        """
        runs: list[RunFile] = []
        logs: list[LogOutput] = []
        for output in self.outputs:
            runs += output.runs
            logs += output.logs
        for winner in winners:
            if winner.version not in self.redone and winner.actions.processed:
                self.redone[winner.version] = redo(runs, winner, head, self.writer)
        for version in sorted(self.redone):
            logs += self.redone[version].logs
        groups: dict[int, int] = {}  # by segment
        for file in ingested:
            groups |= dict.fromkeys(file.segments, file.group)
        return Actions(
            add_logs=tuple(log.placed(groups) for log in logs),
            add_runs=tuple(runs),
            remove_runs=self._merged(head),
        )

    def _merged(self, head: Snapshot) -> tuple[str, ...]:
        """Return the paths of the runs whose entries are all in the runs of this job."""
        done_slots = {output.slot for output in self.outputs}
        # The merge of a slot that had no task is missing: the old runs are still needed for it
        if self.slots is None or len(done_slots) != self.slots:
            return ()
        # A winner may have merged some of these runs as well
        return tuple(run.path for run in self.writer.merged if run.path in head.runs)


def redo(own: Sequence[RunFile], winner: Commit, head: Snapshot, writer: SlotWriter) -> Redone:
    """Write the events between the rows of the job and of a winner.

    The rule is applied to the winner's rows as if they came after the job's rows.
    """
    events: list[Events] = []
    statement_rows = 0
    processed = np.array(sorted(winner.actions.processed_ids), np.int64)
    for run in winner.actions.add_runs:
        near = [other for other in own if _overlap(other, run)]
        if not near:
            continue
        for rows in writer.cache.slices(run, REDO_ROWS):
            # The run may also hold older rows, which the winner merged
            theirs = rows.take(np.isin(rows.segment, processed))
            neighbours = writer.cache.neighbours(near, theirs)
            events.append(rule_between(theirs, neighbours))
            statement_rows += statement_rows_between(theirs, neighbours)
    if not events:
        return Redone(logs=())
    # The winner may have added segments and groups
    current = replace(writer, groups=segment_groups(head))
    stem = layout.job_file_name(writer.number, winner.version, "redo")
    logs = write_log(current, least_events(concat_events(events)), stem)
    return Redone(logs=logs, statement_rows=statement_rows)


def rows_touched(own: Sequence[RunFile], winner: Commit, writer: SlotWriter) -> Entries:
    """Return the job's rows that are neighbours of a winner's rows of the same key."""
    touched = [no_entries(0)]
    processed = np.array(sorted(winner.actions.processed_ids), np.int64)
    for run in winner.actions.add_runs:
        near = [other for other in own if _overlap(other, run)]
        if not near:
            continue
        for rows in writer.cache.slices(run, REDO_ROWS):
            # The run may also hold older rows, which the winner merged
            theirs = rows.take(np.isin(rows.segment, processed))
            for neighbours in writer.cache.neighbours(near, theirs):
                is_own = neighbours.segment >> SEQUENCE_BITS == writer.number
                mine = neighbours.take(is_own)
                touched.append(mine.take(has_key_of(mine, theirs)))
    return concat_entries(touched)


def _overlap(run: RunFile, other: RunFile) -> bool:
    return run.hash_low <= other.hash_high and run.hash_high >= other.hash_low


def rule_counts(counts: Counter[str], segments: int) -> dict[str, int]:
    """Return the counts of a result, in its order, including those that are 0."""
    names = ("rows", "updates", "deletes", "late", "ambiguous", "events")
    return {name: counts[name] for name in names} | {"segments": segments}


def rule_notes(counts: Counter[str], spec: TableSpec) -> tuple[str, ...]:
    """Return notes if rows were ambiguous, or replaced rows of statements."""
    return (*_ambiguous_notes(counts, spec), *_statement_notes(counts))


def statement_counts(counts: Counter[str]) -> dict[str, int]:
    """Return the count of replaced rows of statements, if there were any."""
    replaced = counts["statement_rows"]
    return {"statement_rows": replaced} if replaced else {}


def _statement_notes(counts: Counter[str]) -> tuple[str, ...]:
    replaced = counts["statement_rows"]
    if not replaced:
        return ()
    rows = "row that a statement" if replaced == 1 else "rows that statements"
    note = (
        f"{replaced:,} {rows} had written or deleted came back as in the source, because at an "
        "equal delta the later job wins; repeat the statement, and let it raise the delta if the "
        "source brings these rows again"
    )
    return (note,)


def _ambiguous_notes(counts: Counter[str], spec: TableSpec) -> tuple[str, ...]:
    ambiguous = counts["ambiguous"]
    if not ambiguous:
        return ()
    have = "row of one ingest has" if ambiguous == 1 else "rows of one ingest have"
    if spec.orders_by_commit:
        same, step = "key", "leave one row of each key in the source"
    else:
        same, step = "key, delta and tie-break", "add a tie-break column to decide"
    note = (
        f"{ambiguous} {have} the same {same} as another row: it is not specified which of the two "
        f"rows is visible; {step}"
    )
    return (note,)
