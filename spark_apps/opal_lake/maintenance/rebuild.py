"""The key store made again from the data files, for lost or damaged runs: no old run is read.

Each task writes the run of one range of the key hash (a slot), and then a sealed record of it,
{`slot`, `runs`, `logs` (none), `counts` {`rows`}}. The folder of the records is named by the state
that the rebuild began with: the first 32 hex digits of the SHA-256 of canonical JSON {`columns`,
`epoch`, `floor`, `processed`, `rows`, `runs`, `table_id`}. Whoever starts again while the table has
the same rows and runs takes over the number of the job that left most records, and does only what
is left. A driver that was thought dead may still be at work under that number: so its attempt is in
the names of its runs, and only one of them commits.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import numpy as np

from opal_lake import layout
from opal_lake.data.segment import DataFile
from opal_lake.decoding import decoding
from opal_lake.engine.executor import Attempt
from opal_lake.engine.open_table import OpenTable
from opal_lake.engine.results import find_result, keep_result
from opal_lake.errors import ConflictError, FormatError, NotFoundError
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.entries import Entries, down_to, greatest_of_equal, sorted_entries
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import Actions, Commit, canonical_json, seal, unseal
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.result import JobResult
from opal_lake.rule.slot import (
    SegmentGroups,
    SlotOutput,
    SlotWriter,
    output_from_json,
    output_to_json,
    write_run,
)
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.verified import read_sealed

OPERATION = "rebuild_key_store"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTask:
    """What the tasks need to know."""

    writer: SlotWriter
    state: str
    slots: int
    floor: int | None
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """The files of all processed segments, how many ranges their keys are cut into, and which of these are done already."""

    number: int
    base: Snapshot
    started_us: int
    state: str
    driver: str
    files: tuple[DataFile, ...]
    slots: int
    done: Mapping[int, SlotOutput] = field(default_factory=dict)

    @property
    def left(self) -> tuple[int, ...]:
        return tuple(slot for slot in range(self.slots) if slot not in self.done)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def task(self, cache: RunCache) -> RebuildTask:
        nothing = SegmentGroups(segments=np.empty(0, np.int64), groups=np.empty(0, np.int64))
        writer = SlotWriter(
            number=self.number, storage=self.base.storage, cache=cache, runs=(), groups=nothing
        )
        return RebuildTask(
            writer=writer,
            state=self.state,
            slots=self.slots,
            floor=self.base.root.floor,
            driver=self.driver,
        )


def rebuild_key_store(table: OpenTable, token: str | None = None) -> JobResult:
    """Make the key store anew from the data files."""
    plan = plan_rebuild(table.log, token, table.executor.slots)
    if isinstance(plan, JobResult):
        return plan
    outputs: list[SlotOutput] = []
    if plan.left:
        task = partial(_rebuild, task=plan.task(table.cache))
        outputs = table.executor.stored_by_key_hash(
            plan.base, plan.files, plan.slots, task, only=plan.left
        )
    return commit_rebuild(table.log, plan, outputs, token)


def _rebuild(entries: Entries, attempt: Attempt, *, task: RebuildTask) -> SlotOutput:
    return rebuild_slot(entries, task, attempt.part, attempt.name)


def plan_rebuild(
    log: CommitLog, token: str | None, slots_for: Callable[[int], int]
) -> RebuildPlan | JobResult:
    """Claim a number, or take over that of a job that died; the result, if this was done before."""
    started_us, base = log.clock.now_us(), log.head()
    base.spec.require_keys("a rebuild of the key store")
    if (earlier := find_result(log, base, OPERATION, token)) is not None:
        return earlier
    pending = base.pending
    files = tuple(file for file in base.files.values() if pending.isdisjoint(file.segments))
    state = state_name(base)
    number, slots, done = _left_behind(log.storage, base, state) or (
        claim_number(log.storage, base.root, OPERATION, log.clock),
        slots_for(sum(file.rows for file in files)) if files else 0,
        {},
    )
    driver = log.ids.new_id().replace("-", "")
    return RebuildPlan(
        number=number,
        base=base,
        started_us=started_us,
        state=state,
        driver=driver,
        files=files,
        slots=slots,
        done=done,
    )


def state_name(base: Snapshot) -> str:
    """The same for versions with the same processed rows, floor and runs: what a rebuild of one has done is right for the other."""
    parameters = {
        "columns": [*base.spec.key_ids, base.spec.delta.id, *base.spec.tie_break_ids],
        "epoch": base.root.epoch,
        "floor": base.root.floor,
        "processed": sorted(base.segments.keys() - base.pending),
        "rows": sum(
            file.rows for file in base.files.values() if base.pending.isdisjoint(file.segments)
        ),
        "runs": sorted(base.runs),
        "table_id": base.root.table_id,
    }
    return sha256(canonical_json(parameters)).hexdigest()[:32]


def _left_behind(
    storage: Storage, base: Snapshot, state: str
) -> tuple[int, int, dict[int, SlotOutput]] | None:
    """The number and the outputs of the job with most records; None when there is none whose number still counts."""
    slots_by_path = {
        entry.path: layout.rebuild_place(entry.path)
        for entry in storage.list(layout.rebuild_folder(state))
    }
    jobs = Counter(
        slot_of_path[:2]
        for slot_of_path in slots_by_path.values()
        if slot_of_path is not None and slot_of_path[0] not in base.root.abandoned
    )
    if not jobs:
        return None
    number, slots = max(jobs, key=lambda job: (jobs[job], job))
    paths = [
        path
        for path, slot_of_path in slots_by_path.items()
        if slot_of_path is not None and slot_of_path[:2] == (number, slots)
    ]
    there = {entry.path: entry.size for entry in storage.list(layout.runs_prefix(number))}
    with ThreadPoolExecutor(READERS) as pool:
        outputs = [
            output
            for output in pool.map(partial(_read_record, storage), paths)
            if output is not None
        ]
    whole = (
        output for output in outputs if all(there.get(run.path) == run.size for run in output.runs)
    )
    return number, slots, {output.slot: output for output in whole}


def _read_record(storage: Storage, path: str) -> SlotOutput | None:
    """None when it is not what was written: its slot is done again."""
    try:
        data = unseal(read_sealed(storage, path), path)
        with decoding(path, "a record of a rebuild"):
            return output_from_json(data)
    except (FormatError, NotFoundError):
        return None


def rebuild_slot(rows: Entries, task: RebuildTask, slot: int, attempt: str) -> SlotOutput:
    """Write the run of all rows of a slot, and a record of it."""
    entries = down_to(task.floor, greatest_of_equal(sorted_entries(rows)))
    stem = layout.job_file_name(task.writer.number, slot, f"{task.driver}.{attempt}")
    runs = (write_run(task.writer, entries, stem),) if len(entries) else ()
    output = SlotOutput(slot=slot, logs=(), runs=runs, counts={"rows": len(rows)})
    record = layout.rebuild_path(task.state, task.writer.number, task.slots, slot)
    task.writer.storage.put_if_absent(record, seal(canonical_json(output_to_json(output))))
    return output


def commit_rebuild(
    log: CommitLog, plan: RebuildPlan, outputs: Iterable[SlotOutput], token: str | None
) -> JobResult:
    """Put the new runs in the place of the old ones. Those of winners stay: their rows are in no run of ours."""
    slots = {**plan.done, **{output.slot: output for output in outputs}}
    met = sum(output.counts["rows"] for output in slots.values())
    if met != plan.rows:  # a slot without rows may have had no task
        raise FormatError(
            f"{log.storage.uri}: the data files hold {plan.rows} rows, the job met {met}; run `opal check`"
        )
    runs = tuple(run for slot in sorted(slots) for run in slots[slot].runs)

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        _check_alone(plan, head)
        removed = tuple(path for path in plan.base.runs if path in head.runs)
        if not runs and not removed:
            return None
        counts = {
            "rows": met,
            "entries": sum(run.entries for run in runs),
            "runs": len(runs),
            "runs_removed": len(removed),
        }
        counts["slots_done_before"] = len(plan.done)
        result = JobResult(operation=OPERATION, table=log.storage.uri, counts=counts)
        return Draft(actions=Actions(add_runs=runs, remove_runs=removed), result=result)

    proposal = Proposal(
        operation=OPERATION,
        number=plan.number,
        build=build,
        started_us=plan.started_us,
        token=token,
    )
    done = log.commit(plan.base, proposal)
    return keep_result(log.storage, done) if done.version is None else done


def _check_alone(plan: RebuildPlan, head: Snapshot) -> None:
    for commit in head.commits:
        if commit.version > plan.base.version and commit.number == plan.number:
            raise ConflictError(
                f"another run of this job ({plan.number}) committed version {commit.version} meanwhile; run it again"
            )
