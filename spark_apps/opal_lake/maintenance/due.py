"""The maintenance steps that are due for a table, with reasons, and a run of these steps.

The caller passes the functions that run the steps.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opal_lake.definition.properties import column_list
from opal_lake.definition.table_spec import TableSpec
from opal_lake.duration import plain_duration
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import OpalError, count_text
from opal_lake.key_store.merge import is_left_over, plan_merge
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import store_now_us
from opal_lake.log.version_window import cutoff_us, oldest_kept
from opal_lake.maintenance.compaction import ARCHIVED_BY, Compaction, plan_cold, plan_floor
from opal_lake.maintenance.compaction_plan import (
    SMALL_SHARE,
    by_group_and_folder,
    dead_shares,
    droppable_rows,
    is_small,
    settled_files,
)
from opal_lake.maintenance.zorder_plan import plan_zorder
from opal_lake.result import JobResult
from opal_lake.retention.retention import GRACE

SHORT_LOG = 500_000  # events
MAX_LOGS = 64  # short logs of a group
MAX_RUNS = 64  # runs of the key store

Runner = Mapping[str, Callable[[Mapping[str, Any]], JobResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The thresholds from which on a step is due.

    They are properties of the table's spec, unless arguments replace these. `grace` is not a
    property: it is how long jobs and readers may take.
    """

    spec: TableSpec
    grace: str = GRACE

    @property
    def target_bytes(self) -> int:
        """The size of the files to write."""
        return self.spec.integer("target_mb") << 20

    @property
    def zorder(self) -> list[str]:
        """The columns of the Z-order; empty for a table without one."""
        return column_list(self.spec.word("zorder"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A due step: an operation with its arguments, and the reason with its figures."""

    operation: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    why: str


def policy_of(spec: TableSpec, given: Mapping[str, Any] | None = None) -> Policy:
    """Return the table's policy; checked arguments replace its properties."""
    arguments = given or {}
    grace = plain_duration(arguments.get("grace") or GRACE, name="grace")
    return Policy(spec=spec.with_given(arguments), grace=grace)


def plan_maintenance(snapshot: Snapshot, policy: Policy, now_us: int) -> tuple[Due, ...]:
    """Return the steps that are due at a snapshot, in the order in which to run them."""
    steps = (
        compaction_due(snapshot, policy, now_us),
        _zorder(snapshot, policy),
        _retention(snapshot, policy, now_us),
    )
    return tuple(step for step in steps if step is not None)


def compaction_due(snapshot: Snapshot, policy: Policy, now_us: int) -> Due | None:
    """Return the compaction that is due, with the reasons; None if none is due.

    It is a major one if rows can be dropped: a major compaction includes a minor one. Both archive
    cold partitions.
    """
    dead_reasons = _dead_rows(snapshot, policy, now_us)
    cold_reasons = _cold_files(snapshot, policy, now_us)
    reasons = [
        *dead_reasons,
        *_small_files(snapshot, policy),
        *_many_logs(snapshot),
        *_many_runs(snapshot),
        *cold_reasons,
    ]
    if not reasons:
        return None
    arguments: dict[str, Any] = {
        "mode": "major" if dead_reasons else "minor",
        "target_mb": policy.spec.integer("target_mb"),
    }
    if dead_reasons:
        arguments["look_back"] = policy.spec.word("look_back")
    if cold_reasons:
        arguments |= {name: policy.spec.word(name) for name in ARCHIVED_BY}
    return Due(operation="compact", arguments=arguments, why="; ".join(reasons))


def _small_files(snapshot: Snapshot, policy: Policy) -> list[str]:
    """Return a reason if a compaction would halve the many files of a partition."""
    target = policy.target_bytes
    max_files = policy.spec.integer("small_files")
    small = [file for file in settled_files(snapshot) if is_small(file, target)]
    partitions = 0
    files = 0
    for _, members in by_group_and_folder(small):
        member_bytes = sum(file.size for file in members)
        files_after = -(-member_bytes // target)  # rounded up
        if len(members) > max_files and 2 * files_after <= len(members):
            partitions += 1
            files += len(members)
    if not partitions:
        return []
    small_mb = SMALL_SHARE * policy.spec.integer("target_mb")
    reason = (
        f"{count_text(files, 'file')} below {small_mb:g} MB in "
        f"{count_text(partitions, 'partition')}, due from more than {max_files}"
    )
    return [reason if partitions == 1 else f"{reason} each"]


def _many_logs(snapshot: Snapshot) -> list[str]:
    """Return a reason if a group has many short logs.

    Readers of a past event time open all short logs.
    """
    counts: dict[int, int] = defaultdict(int)
    for log in snapshot.logs.values():
        if log.events < SHORT_LOG:
            for group in log.groups:
                counts[group] += 1
    fullest = max(counts.values(), default=0)
    if fullest <= MAX_LOGS:
        return []
    logs = count_text(fullest, "short segment log")
    return [f"{logs} in a group, due from more than {MAX_LOGS}"]


def _many_runs(snapshot: Snapshot) -> list[str]:
    """Return a reason if the key store has more runs than MetaGens merge.

    That happens if there were few MetaGens, or large ones, or if streams left a large merge.
    """
    runs = snapshot.runs.values()
    fan_in = snapshot.spec.integer("key_store_fan_in")
    count = count_text(len(runs), "key-store run")
    if is_left_over(runs, fan_in):
        return [f"{count}, and streams leave their large merges to a compaction"]
    if len(runs) <= MAX_RUNS or not plan_merge(runs, fan_in):
        return []
    return [f"{count}, due from more than {MAX_RUNS}"]


def _dead_rows(snapshot: Snapshot, policy: Policy, now_us: int) -> list[str]:
    """Return a reason if a compaction with the look-back would drop many rows."""
    look_back = policy.spec.word("look_back")
    due_percent = policy.spec.integer("dead_share")
    floor = plan_floor(snapshot, look_back or None, now_us)
    files = settled_files(snapshot)
    rows = sum(file.rows for file in files)
    if floor is None or not rows:
        return []
    shares = dead_shares(snapshot, floor, droppable_rows(snapshot, floor))
    dead = round(sum(shares[file.path] * file.rows for file in files))
    if dead * 100 < due_percent * rows or not dead:
        return []
    reason = (
        f"{100 * dead / rows:.0f}% of the rows ({dead:,} of {rows:,}) are invisible at every event "
        f"time of the last {look_back}, due from {due_percent}%"
    )
    return [reason]


def _cold_files(snapshot: Snapshot, policy: Policy, now_us: int) -> list[str]:
    """Return a reason if cold partitions are not archived yet."""
    after = policy.spec.word("archive_after") or None
    if snapshot.spec.file_format == "orc":
        return []  # ORC files have one codec only
    bins = plan_cold(snapshot, after, policy.spec, policy.target_bytes, now_us)
    if not bins:
        return []
    files = count_text(sum(len(bin_.files) for bin_ in bins), "file")
    reason = (
        f"{files} of partitions without a row of the last {after}, not yet compressed by "
        f"{bins[0].codec}"
    )
    return [reason]


def _zorder(snapshot: Snapshot, policy: Policy) -> Due | None:
    """Return a Z-order by the policy's columns if too many bytes are unclustered."""
    if not policy.zorder:
        return None
    columns = tuple(snapshot.spec.schema.field(name).id for name in policy.zorder)
    plan = plan_zorder(snapshot, columns, policy.target_bytes)
    due_percent = policy.spec.integer("unclustered_share")
    if not plan.bins or plan.unclustered_percent < due_percent:
        return None
    files = count_text(plan.unclustered_files, "file")
    why = (
        f"{plan.unclustered_percent:.0f}% of the bytes ({files}) are not in Z-order by "
        f"{', '.join(policy.zorder)}, due from {due_percent}%"
    )
    arguments = {"columns": policy.zorder, "target_mb": policy.spec.integer("target_mb")}
    return Due(operation="zorder", arguments=arguments, why=why)


def _retention(snapshot: Snapshot, policy: Policy, now_us: int) -> Due | None:
    window = policy.spec.word("window")
    cutoff = cutoff_us(window, policy.grace, now_us)
    expired = oldest_kept(snapshot, cutoff) - snapshot.root.oldest_version
    if expired <= 0:
        return None
    have = "version is" if expired == 1 else "versions are"
    return Due(
        operation="retain",
        arguments={"window": window, "grace": policy.grace},
        why=f"{expired:,} {have} older than {window}",
    )


@dataclass(slots=True, kw_only=True)
class _Done:
    """The results and failures of the steps so far."""

    results: dict[str, JobResult] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)

    def run(self, step: Due, job: Callable[[Mapping[str, Any]], JobResult]) -> None:
        """Run a step, and keep its result or its error."""
        try:
            self.results[step.operation] = job(step.arguments)
        except Exception as error:  # noqa: BLE001  # reported
            # The other steps run whatever the error is; `run_maintenance` raises it at the end
            self.failures[step.operation] = error


def run_maintenance(
    table: OpenTable,
    policy: Policy,
    runner: Runner,
    *,
    dry_run: bool = False,
    delete: bool = True,
) -> JobResult:
    """Run the due steps, one after the other; without `delete`, no retention.

    All steps run, even if one fails: the first error is raised at the end, with notes on the other
    steps. The result has the counts of every step, with the step's name as prefix.
    """
    steps = due_steps(table, policy, delete=delete)
    notes = [f"{step.operation} is due: {step.why}" for step in steps]
    if not notes:
        notes = ["nothing is due"]
    planned = JobResult(
        operation="maintain", table=table.uri, notes=tuple(notes), counts={"due": len(steps)}
    )
    if dry_run:
        return planned
    done = _Done()
    for step in steps:
        done.run(step, runner[step.operation])
    if done.failures:
        raise _failure(done)
    return _with_results(planned, done.results)


def due_steps(table: OpenTable, policy: Policy, *, delete: bool = True) -> list[Due]:
    """Return the steps that are due now, in the order in which to run them."""
    now_us = store_now_us(table.storage, table.log.clock)
    planned = plan_maintenance(table.log.head(), policy, now_us)
    return [step for step in planned if delete or step.operation != "retain"]


def _with_results(planned: JobResult, results: Mapping[str, JobResult]) -> JobResult:
    """Add the results of the steps, by their names, to the result of the plan."""
    versions: list[int] = []
    counts = {**planned.counts}
    notes = [*planned.notes]
    timings: dict[str, int] = {}
    for name, result in results.items():
        if result.version is not None:
            versions.append(result.version)
        for count, number in result.counts.items():
            counts[f"{name}_{count}"] = number
        notes += [f"{name}: {note}" for note in result.notes]
        if "total" in result.timings_ms:
            timings[name] = result.timings_ms["total"]
    return replace(
        planned,
        version=max(versions, default=None),
        counts=counts,
        notes=tuple(notes),
        timings_ms=timings,
    )


def _failure(done: _Done) -> Exception:
    """Return the first error, with the name of its step, and notes on the other steps."""
    (step, error), *others = done.failures.items()
    named: Exception = error
    if isinstance(error, OpalError):
        named = type(error)(f"the step {step} of the maintenance failed: {error}")
        named.__cause__ = error
    else:
        # An unknown class may need other arguments
        named.add_note(f"the step {step} of the maintenance failed with this error")
    for name, other in others:
        named.add_note(f"the step {name} failed too: {other}")
    for name, result in done.results.items():
        note = f"the step {name} was done"
        if result.version is not None:
            note += f", as version {result.version}"
        named.add_note(note)
    return named


def compact_if_due(job: Compaction) -> JobResult:
    """Run a compaction if it is due by the table's thresholds."""
    due = why_due(job)
    if due is None:
        policy = _policy_as_asked(job)
        small_files = policy.spec.integer("small_files")
        dead_share = policy.spec.integer("dead_share")
        why = (
            f"not due: the table is within its limits, small_files={small_files} and "
            f"dead_share={dead_share}"
        )
        return JobResult(operation="compact", table=job.table.uri, notes=(why,))
    result = job.run()
    return replace(result, notes=(f"compact was due: {due.why}", *result.notes))


def why_due(job: Compaction) -> Due | None:
    """Return why a compaction is due by the table's thresholds; None if it is not."""
    table = job.table
    now_us = store_now_us(table.storage, table.log.clock)
    return compaction_due(table.log.head(), _policy_as_asked(job), now_us)


def _policy_as_asked(job: Compaction) -> Policy:
    """Return the table's policy, with the job's arguments.

    A job without the argument `look_back` drops no rows, and without `archive_after` it archives no
    files, whatever the table's properties are.
    """
    arguments = dict(vars(job.asked))
    for name in ("look_back", "archive_after"):
        if arguments[name] is None:
            arguments[name] = ""
    return policy_of(job.table.log.head().spec, arguments)
