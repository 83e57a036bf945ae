"""What a table is due for, and why; and doing it. The table brings the steps that rewrite files."""

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
    by_place,
    dead_shares,
    droppable_rows,
    is_small,
    settled_files,
)
from opal_lake.maintenance.zorder_plan import plan_zorder
from opal_lake.result import JobResult
from opal_lake.retention.retention import GRACE

SHORT_LOG = 500_000  # events
MOST_LOGS = 64  # short ones, of a group
MOST_RUNS = 64

Runner = Mapping[str, Callable[[Mapping[str, Any]], JobResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When something is due: the table's spec, with what was given in the place of its properties.

    `grace` is not a property: it is how long jobs and readers may take.
    """

    spec: TableSpec
    grace: str = GRACE

    @property
    def target_bytes(self) -> int:
        """The size of the files to write."""
        return self.spec.integer("target_mb") << 20

    @property
    def zorder(self) -> list[str]:
        """The columns of the Z-order; none: no Z-order."""
        return column_list(self.spec.word("zorder"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A step: an operation with its arguments, and why it is due, in words with figures."""

    operation: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    why: str


def policy_of(spec: TableSpec, given: Mapping[str, Any] | None = None) -> Policy:
    """Return the table's policy; what is given, as checked arguments, counts before its properties."""
    arguments = given or {}
    grace = plain_duration(arguments.get("grace") or GRACE, name="grace")
    return Policy(spec=spec.with_given(arguments), grace=grace)


def plan_maintenance(snapshot: Snapshot, policy: Policy, now_us: int) -> tuple[Due, ...]:
    """What is due, in the order in which to do it. The snapshot is the newest one."""
    steps = (
        compaction_due(snapshot, policy, now_us),
        _zorder(snapshot, policy),
        _retention(snapshot, policy, now_us),
    )
    return tuple(step for step in steps if step is not None)


def compaction_due(snapshot: Snapshot, policy: Policy, now_us: int) -> Due | None:
    """Why, and which one: a major one does what a minor one does, and both compress what is cold."""
    dead, cold = _dead_rows(snapshot, policy, now_us), _cold_files(snapshot, policy, now_us)
    reasons = [
        *dead,
        *_small_files(snapshot, policy),
        *_many_logs(snapshot),
        *_many_runs(snapshot),
        *cold,
    ]
    if not reasons:
        return None
    arguments: dict[str, Any] = {
        "mode": "major" if dead else "minor",
        "target_mb": policy.spec.integer("target_mb"),
    }
    arguments |= {"look_back": policy.spec.word("look_back")} if dead else {}
    arguments |= {name: policy.spec.word(name) for name in ARCHIVED_BY} if cold else {}
    return Due(operation="compact", arguments=arguments, why="; ".join(reasons))


def _small_files(snapshot: Snapshot, policy: Policy) -> list[str]:
    """Partitions with many files that would become half as many or fewer."""
    target, most = policy.target_bytes, policy.spec.integer("small_files")
    small = [file for file in settled_files(snapshot) if is_small(file, target)]
    places = [[file.size for file in files] for _, files in by_place(small)]
    full = [
        sizes
        for sizes in places
        if len(sizes) > most and 2 * -(-sum(sizes) // target) <= len(sizes)
    ]
    if not full:
        return []
    small_mb = SMALL_SHARE * policy.spec.integer("target_mb")
    files = f"{count_text(sum(map(len, full)), 'file')} below {small_mb:g} MB"
    return [
        f"{files} in {count_text(len(full), 'partition')}, at most {most}"
        + (" each" if len(full) > 1 else "")
    ]


def _many_logs(snapshot: Snapshot) -> list[str]:
    """Readers of a past event time open all of them."""
    counts: dict[int, int] = defaultdict(int)
    for log in snapshot.logs.values():
        for group in log.groups if log.events < SHORT_LOG else ():
            counts[group] += 1
    most = max(counts.values(), default=0)
    return (
        [f"{count_text(most, 'short segment log')} in a group, at most {MOST_LOGS}"]
        if most > MOST_LOGS
        else []
    )


def _many_runs(snapshot: Snapshot) -> list[str]:
    """More than merging in passing leaves: MetaGens were few, or large; or streams left a large merge."""
    runs, fan_in = snapshot.runs.values(), snapshot.spec.integer("key_store_fan_in")
    if is_left_over(runs, fan_in):
        return [
            f"{count_text(len(runs), 'key-store run')}, of which streams leave large ones to a compaction"
        ]
    if len(runs) <= MOST_RUNS or not plan_merge(runs, fan_in):
        return []
    return [f"{count_text(len(runs), 'key-store run')}, at most {MOST_RUNS}"]


def _dead_rows(snapshot: Snapshot, policy: Policy, now_us: int) -> list[str]:
    """Rows that no readable event time shows, once the floor is where the look-back wants it."""
    look_back, due_percent = policy.spec.word("look_back"), policy.spec.integer("dead_share")
    floor, files = plan_floor(snapshot, look_back or None, now_us), settled_files(snapshot)
    rows = sum(file.rows for file in files)
    if floor is None or not rows:
        return []
    shares = dead_shares(snapshot, floor, droppable_rows(snapshot, floor))
    dead = round(sum(shares[file.path] * file.rows for file in files))
    if dead * 100 < due_percent * rows or not dead:
        return []
    share = f"{100 * dead / rows:.0f}% of the rows ({dead:,} of {rows:,})"
    of_what = f"invisible at every event time of the last {look_back}"
    return [f"{share} are {of_what}, due from {due_percent}%"]


def _cold_files(snapshot: Snapshot, policy: Policy, now_us: int) -> list[str]:
    """ORC has one way of compression only."""
    after = policy.spec.word("archive_after") or None
    if snapshot.spec.file_format == "orc":
        return []
    bins = plan_cold(snapshot, after, policy.spec, policy.target_bytes, now_us)
    if not bins:
        return []
    files = count_text(sum(len(bin_.files) for bin_ in bins), "file")
    where = f"of partitions without a row of the last {after}"
    return [f"{files} {where}, not yet compressed by {bins[0].codec}"]


def _zorder(snapshot: Snapshot, policy: Policy) -> Due | None:
    """By these columns in this order: another one clusters otherwise."""
    if not policy.zorder:
        return None
    columns = tuple(snapshot.spec.schema.field(name).id for name in policy.zorder)
    plan = plan_zorder(snapshot, columns, policy.target_bytes)
    due_percent = policy.spec.integer("unclustered_share")
    if not plan.bins or plan.unclustered_percent < due_percent:
        return None
    files = count_text(plan.unclustered_files, "file")
    what = f"{plan.unclustered_percent:.0f}% of the bytes ({files}) are not in Z-order by {', '.join(policy.zorder)}"
    arguments = {"columns": policy.zorder, "target_mb": policy.spec.integer("target_mb")}
    return Due(operation="zorder", arguments=arguments, why=f"{what}, due from {due_percent}%")


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
    """What came of the steps so far."""

    results: dict[str, JobResult] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)

    def run(self, step: Due, job: Callable[[Mapping[str, Any]], JobResult]) -> None:
        try:
            self.results[step.operation] = job(step.arguments)
        except Exception as error:  # noqa: BLE001  # whatever it was, the other steps are due still; it is raised at the end
            self.failures[step.operation] = error


def run_maintenance(
    table: OpenTable,
    policy: Policy,
    runner: Runner,
    *,
    dry_run: bool = False,
    delete: bool = True,
) -> JobResult:
    """Do what is due, one step after the other; without `delete` no retention. A step that fails keeps none of the others from being done.

    The result has every step's counts, by its name. If some failed the first one's error is raised at the end, and tells of the others.
    """
    steps = due_steps(table, policy, delete=delete)
    notes = [f"{step.operation} is due: {step.why}" for step in steps] or ["nothing is due"]
    merged = JobResult(
        operation="maintain", table=table.uri, notes=tuple(notes), counts={"due": len(steps)}
    )
    if dry_run:
        return merged
    done = _Done()
    for step in steps:
        done.run(step, runner[step.operation])
    if done.failures:
        raise _failure(done)
    return _merged(merged, done.results)


def due_steps(table: OpenTable, policy: Policy, *, delete: bool = True) -> list[Due]:
    """Return what is due now, in the order in which to do it."""
    now_us = store_now_us(table.storage, table.log.clock)
    planned = plan_maintenance(table.log.head(), policy, now_us)
    return [step for step in planned if delete or step.operation != "retain"]


def _merged(merged: JobResult, results: Mapping[str, JobResult]) -> JobResult:
    counts = {
        f"{name}_{count}": number
        for name, result in results.items()
        for count, number in result.counts.items()
    }
    versions = [result.version for result in results.values() if result.version is not None]
    notes = [
        *merged.notes,
        *(f"{name}: {note}" for name, result in results.items() for note in result.notes),
    ]
    timings = {
        name: result.timings_ms["total"]
        for name, result in results.items()
        if "total" in result.timings_ms
    }
    return replace(
        merged,
        version=max(versions, default=None),
        counts={**merged.counts, **counts},
        notes=tuple(notes),
        timings_ms=timings,
    )


def _failure(done: _Done) -> Exception:
    """The first failure, with its step in words, and what came of the others."""
    (step, error), *others = done.failures.items()
    named: Exception = error
    if isinstance(error, OpalError):
        named = type(error)(f"the step {step} of the maintenance failed: {error}")
        named.__cause__ = error
    else:
        named.add_note(f"this was the step {step} of the maintenance")
    for name, other in others:
        named.add_note(f"the step {name} failed too: {other}")
    for name, result in done.results.items():
        named.add_note(
            f"the step {name} was done"
            + ("" if result.version is None else f", as version {result.version}")
        )
    return named


def compact_if_due(job: Compaction) -> JobResult:
    """Run a compaction if the table's thresholds say that it is worth it."""
    table, due = job.table, why_due(job)
    if due is None:
        policy = _policy_as_asked(job)
        allowed = [f"{name}={policy.spec.integer(name)}" for name in ("small_files", "dead_share")]
        why = f"not due: {' and '.join(allowed)} allow the table as it is"
        return JobResult(operation="compact", table=table.uri, notes=(why,))
    result = job.run()
    return replace(result, notes=(f"compact was due: {due.why}", *result.notes))


def why_due(job: Compaction) -> Due | None:
    """Return why a compaction is due by the table's thresholds; None where it is not."""
    table = job.table
    now_us = store_now_us(table.storage, table.log.clock)
    return compaction_due(table.log.head(), _policy_as_asked(job), now_us)


def _policy_as_asked(job: Compaction) -> Policy:
    """Return the table's policy without what the job is not given, whatever its properties are."""
    asked = vars(job.asked)
    not_done = {name: "" for name in ("look_back", *ARCHIVED_BY[:1]) if asked[name] is None}
    return policy_of(job.table.log.head().spec, {**asked, **not_done})
