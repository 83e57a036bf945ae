"""What tasks made of the rule, on its way into the log: of a MetaGen, or of an ingest that does it inline."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from opal_lake import layout
from opal_lake.data.segment import DataFile, RunFile
from opal_lake.events.segment_log import concat_events, least_events
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.merge import plan_merge
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.metagen import rule_between
from opal_lake.rule.slot import LogOutput, SegmentGroups, SlotOutput, SlotWriter, write_log

REDO_ROWS = 1 << 20


def slot_writer(
    snapshot: Snapshot, number: int, cache: RunCache, *, hurried: bool = False
) -> SlotWriter:
    """What the tasks of a job need to know of the table. A hurried one leaves large merges of runs to others, for a while."""
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
    if len(snapshot.root.groups) <= 1:
        return SegmentGroups(
            segments=np.empty(0, np.int64),
            groups=np.array([*snapshot.root.groups, 0][:1], np.int64),
        )
    ids = np.array(sorted(snapshot.segments), np.int64)
    return SegmentGroups(
        segments=ids,
        groups=np.array([snapshot.segments[int(number)].group for number in ids], np.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutputs:
    """The outputs of a job's tasks. What was added against a winner is kept, so that a race lost again costs only the new winner."""

    writer: SlotWriter
    outputs: tuple[SlotOutput, ...]
    slots: int | None = None
    redone: dict[int, tuple[LogOutput, ...]] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        return sum((Counter(dict(output.counts)) for output in self.outputs), Counter())

    def actions(
        self, head: Snapshot, winners: Sequence[Commit], ingested: Sequence[DataFile] = ()
    ) -> Actions:
        """The logs and runs. Against a winner only the rows of both sides are compared again. `ingested` are the job's own, placed."""
        runs = tuple(run for output in self.outputs for run in output.runs)
        for winner in winners:
            if winner.version not in self.redone and winner.actions.processed:
                self.redone[winner.version] = redo(runs, winner, head, self.writer)
        logs = [log for output in self.outputs for log in output.logs]
        logs += [log for version in sorted(self.redone) for log in self.redone[version]]
        groups = {segment: file.group for file in ingested for segment in file.segments}
        return Actions(
            add_logs=tuple(log.placed(groups) for log in logs),
            add_runs=runs,
            remove_runs=self._merged(head),
        )

    def _merged(self, head: Snapshot) -> tuple[str, ...]:
        """The runs that ours hold all of: if every slot was there. A winner may have merged some of them as well."""
        slots = {output.slot for output in self.outputs}
        if self.slots is None or len(slots) != self.slots:
            return ()
        return tuple(run.path for run in self.writer.merged if run.path in head.runs)


def redo(
    own: Sequence[RunFile], winner: Commit, head: Snapshot, writer: SlotWriter
) -> tuple[LogOutput, ...]:
    """Events between our rows and a winner's: the winner's are put to the rule as if they came after ours."""
    outputs = []
    processed = np.array(sorted(winner.actions.processed_ids), np.int64)
    for run in winner.actions.add_runs:
        near = [
            mine
            for mine in own
            if mine.hash_low <= run.hash_high and mine.hash_high >= run.hash_low
        ]
        for rows in writer.cache.slices(run, REDO_ROWS) if near else ():
            theirs = rows.take(
                np.isin(rows.segment, processed)
            )  # its run may hold older ones, which it merged
            outputs.append(rule_between(theirs, writer.cache.neighbours(near, theirs)))
    now = replace(writer, groups=segment_groups(head))
    return (
        write_log(
            now,
            least_events(concat_events(outputs)),
            layout.job_file_name(writer.number, winner.version, "redo"),
        )
        if outputs
        else ()
    )


def rule_counts(counts: Counter[str], segments: int) -> dict[str, int]:
    names = ("rows", "updates", "deletes", "late", "ambiguous", "events")
    return {name: counts[name] for name in names} | {"segments": segments}


def rule_notes(counts: Counter[str]) -> tuple[str, ...]:
    if not counts["ambiguous"]:
        return ()
    have = "row of one ingest has" if counts["ambiguous"] == 1 else "rows of one ingest have"
    alike = f"{counts['ambiguous']} {have} the same key, delta and tie-break as another row: "
    return (alike + "which of them is visible is not specified; add a tie-break column to decide",)
