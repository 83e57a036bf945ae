"""The key store rebuilt from the data files, for lost or damaged runs: no old run is read.

Each task writes the run of one range of the key hash (a slot), and then a sealed record of it,
{`slot`, `runs`, `logs` (none), `counts` {`rows`}}. The folder of the records is named by the state
that the rebuild began with: the first 32 hex digits of the SHA-256 of canonical JSON {`columns`,
`epoch`, `floor`, `processed`, `rows`, `runs`, `table_id`}.

A job may start again while the table has the same rows and runs. It takes over the number of the
job that left most records, and does only the slots without a record. The earlier driver, thought
dead, may still be at work under that number. So each driver has its id in the names of its runs,
and only one of them commits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import numpy as np

from opal_lake import layout
from opal_lake.data.segment import DataFile, RunFile
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
    """The arguments of all tasks of a rebuild.

    `state` is the name of the folder of records, and `driver` the id of this try.
    """

    writer: SlotWriter
    state: str
    slots: int
    floor: int | None
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """A planned rebuild, from the files of all processed segments.

    `slots` is the number of ranges of the key hash. `done` has the outputs of the slots that an
    earlier job has finished.
    """

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
        """The slots that are not done yet."""
        return tuple(slot for slot in range(self.slots) if slot not in self.done)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def task(self, cache: RunCache) -> RebuildTask:
        """Return the arguments of the tasks of this plan."""
        # A rebuild reads no run and writes no segment log, so it needs no groups
        no_groups = SegmentGroups(segments=np.empty(0, np.int64), groups=np.empty(0, np.int64))
        writer = SlotWriter(
            number=self.number, storage=self.base.storage, cache=cache, runs=(), groups=no_groups
        )
        return RebuildTask(
            writer=writer,
            state=self.state,
            slots=self.slots,
            floor=self.base.root.floor,
            driver=self.driver,
        )


def rebuild_key_store(table: OpenTable, token: str | None = None) -> JobResult:
    """Rebuild the key store from the data files."""
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
    """Plan a rebuild under a new number, or under that of a job that died.

    Returns the job's result instead of a plan if a job with this token was done before.
    """
    started_us = log.clock.now_us()
    base = log.head()
    base.spec.require_keys("a rebuild of the key store")
    earlier = find_result(log, base, OPERATION, token)
    if earlier is not None:
        return earlier
    files = _processed_files(base)
    state = state_name(base)
    done: Mapping[int, SlotOutput] = {}
    left_behind = _left_behind(log.storage, base, state)
    if left_behind is not None:
        number, slots, done = left_behind
    else:
        number = claim_number(log.storage, base.root, OPERATION, log.clock)
        slots = 0
        if files:
            slots = slots_for(sum(file.rows for file in files))
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


def _processed_files(base: Snapshot) -> tuple[DataFile, ...]:
    pending = base.pending
    return tuple(file for file in base.files.values() if pending.isdisjoint(file.segments))


def state_name(base: Snapshot) -> str:
    """Return the name of a state, which versions with the same rows and runs share.

    If two versions have the same processed rows, floor and runs, a record of one is valid for the
    other.
    """
    parameters = {
        "columns": [*base.spec.key_ids, base.spec.delta.id, *base.spec.tie_break_ids],
        "epoch": base.root.epoch,
        "floor": base.root.floor,
        "processed": sorted(base.segments.keys() - base.pending),
        "rows": sum(file.rows for file in _processed_files(base)),
        "runs": sorted(base.runs),
        "table_id": base.root.table_id,
    }
    return sha256(canonical_json(parameters)).hexdigest()[:32]


def _left_behind(
    storage: Storage, base: Snapshot, state: str
) -> tuple[int, int, dict[int, SlotOutput]] | None:
    """Return number, number of slots and outputs by slot of the job with most records.

    None if no job has records under a number that is still valid.
    """
    paths_by_job: dict[tuple[int, int], list[str]] = {}
    for entry in storage.list(layout.rebuild_folder(state)):
        parts = layout.rebuild_place(entry.path)
        if parts is None:
            continue
        number, slots, _ = parts
        if number not in base.root.abandoned:
            paths_by_job.setdefault((number, slots), []).append(entry.path)
    if not paths_by_job:
        return None
    # Of several jobs with as many records, the newest one
    _, number, slots = max((len(paths), *job) for job, paths in paths_by_job.items())
    paths = paths_by_job[number, slots]
    run_sizes = {entry.path: entry.size for entry in storage.list(layout.runs_prefix(number))}
    with ThreadPoolExecutor(READERS) as pool:
        outputs = list(pool.map(partial(_read_record, storage), paths))
    done: dict[int, SlotOutput] = {}
    for output in outputs:
        # A retention may have deleted runs of a job that it took for dead
        if output is not None and _has_runs(output, run_sizes):
            done[output.slot] = output
    return number, slots, done


def _has_runs(output: SlotOutput, run_sizes: Mapping[str, int]) -> bool:
    return all(run_sizes.get(run.path) == run.size for run in output.runs)


def _read_record(storage: Storage, path: str) -> SlotOutput | None:
    """Return the output of a slot; None for a damaged record: the slot is done again."""
    try:
        data = unseal(read_sealed(storage, path), path)
        with decoding(path, "a record of a rebuild"):
            return output_from_json(data)
    except (FormatError, NotFoundError):
        return None


def rebuild_slot(rows: Entries, task: RebuildTask, slot: int, attempt: str) -> SlotOutput:
    """Write the run of all rows of a slot, and a record of it."""
    writer = task.writer
    newest = greatest_of_equal(sorted_entries(rows))
    entries = down_to(task.floor, newest)
    runs: tuple[RunFile, ...] = ()
    if len(entries):
        stem = layout.job_file_name(writer.number, slot, f"{task.driver}.{attempt}")
        runs = (write_run(writer, entries, stem),)
    output = SlotOutput(slot=slot, logs=(), runs=runs, counts={"rows": len(rows)})
    record = canonical_json(output_to_json(output))
    record_path = layout.rebuild_path(task.state, writer.number, task.slots, slot)
    writer.storage.put_if_absent(record_path, seal(record))
    return output


def commit_rebuild(
    log: CommitLog, plan: RebuildPlan, outputs: Iterable[SlotOutput], token: str | None
) -> JobResult:
    """Commit the new runs instead of the old ones.

    Runs that other commits have added meanwhile stay: the new runs do not hold their rows.
    """
    outputs_by_slot = dict(plan.done)
    for output in outputs:
        outputs_by_slot[output.slot] = output
    rows = 0
    runs: list[RunFile] = []
    for slot in sorted(outputs_by_slot):
        rows += outputs_by_slot[slot].counts["rows"]
        runs += outputs_by_slot[slot].runs
    # Rows are compared, not slots: a slot without rows may have had no task
    if rows != plan.rows:
        raise FormatError(
            f"{log.storage.uri}: the data files hold {plan.rows} rows, but the job read {rows}; "
            "run `opal check`"
        )

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        _check_not_committed(plan, head)
        removed = tuple(path for path in plan.base.runs if path in head.runs)
        if not runs and not removed:
            return None
        counts = {
            "rows": rows,
            "entries": sum(run.entries for run in runs),
            "runs": len(runs),
            "runs_removed": len(removed),
            "slots_done_before": len(plan.done),
        }
        result = JobResult(operation=OPERATION, table=log.storage.uri, counts=counts)
        actions = Actions(add_runs=tuple(runs), remove_runs=removed)
        return Draft(actions=actions, result=result)

    proposal = Proposal(
        operation=OPERATION,
        number=plan.number,
        build=build,
        started_us=plan.started_us,
        token=token,
    )
    done = log.commit(plan.base, proposal)
    return keep_result(log.storage, done) if done.version is None else done


def _check_not_committed(plan: RebuildPlan, head: Snapshot) -> None:
    """Raise ConflictError if another driver has committed under the job's number."""
    for commit in head.commits:
        if commit.version > plan.base.version and commit.number == plan.number:
            raise ConflictError(
                f"{plan.base.storage.uri}: another try of this rebuild (job {plan.number}) "
                f"committed version {commit.version} meanwhile; run `opal rebuild-key-store` again"
            )
