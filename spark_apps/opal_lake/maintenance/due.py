"""What a table is due for, and why; and doing it. The table brings the steps that rewrite files."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opal_lake.definition.properties import (
    PROPERTIES,
    check_properties,
    column_list,
    plain_properties,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.duration import parse_duration, plain_duration
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import InvalidInputError, OpalError, count_text
from opal_lake.key_store.merge import is_left_over, plan_merge
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import store_now_us
from opal_lake.log.version_window import oldest_kept
from opal_lake.maintenance.compaction import Compaction, plan_floor
from opal_lake.maintenance.rewrite_plan import (
    SMALL_SHARE,
    by_place,
    dead_shares,
    droppable_rows,
    is_small,
    plan_archive,
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
    """When something is due: the table's properties of the same names. Shares are percent; `zorder` empty: no Z-order.

    `grace` is no property: it is a retention's, how long jobs and readers may take.
    """

    target_mb: int
    small_files: int
    dead_share: int
    unclustered_share: int
    zorder: tuple[str, ...]
    window: str
    look_back: str
    archive_after: str
    archive_codec: str
    grace: str = GRACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A step: an operation with its arguments, and why it is due, in words with figures."""

    operation: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    why: str


def policy_of(spec: TableSpec, given: Mapping[str, Any] | None = None) -> Policy:
    """The table's properties, but for what is given. A share may be given as a fraction, 0.3 for 30 percent."""
    if unknown := sorted(set(given or {}) - set(Policy.__dataclass_fields__)):
        raise InvalidInputError(
            f"a policy has no {', '.join(unknown)}; known are {', '.join(Policy.__dataclass_fields__)}"
        )
    given_values = {
        name: _percent(name, value) for name, value in (given or {}).items() if value is not None
    }
    grace = plain_duration(given_values.pop("grace", GRACE), name="grace")
    names = [name for name in Policy.__dataclass_fields__ if name != "grace"]
    properties = plain_properties(given_values)
    check_properties(properties, spec.schema)
    values: dict[str, Any] = {
        name: properties.get(name, spec.properties.get(name, PROPERTIES[name].kind.default))
        for name in names
    }
    return Policy(**{**values, "zorder": tuple(column_list(values["zorder"])), "grace": grace})


def _percent(name: str, value: Any) -> Any:
    return (
        round(value * 100)
        if name.endswith("_share") and isinstance(value, float) and 0 <= value <= 1
        else value
    )


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
        "target_mb": policy.target_mb,
    }
    arguments |= {"look_back": policy.look_back} if dead else {}
    arguments |= (
        {"archive_after": policy.archive_after, "archive_codec": policy.archive_codec}
        if cold
        else {}
    )
    return Due(operation="compact", arguments=arguments, why="; ".join(reasons))


def _small_files(snapshot: Snapshot, policy: Policy) -> list[str]:
    """Partitions with many files that would become half as many or fewer."""
    target = policy.target_mb << 20
    small = [file for file in settled_files(snapshot) if is_small(file, target)]
    places = [[file.size for file in files] for _, files in by_place(small)]
    full = [
        sizes
        for sizes in places
        if len(sizes) > policy.small_files and 2 * -(-sum(sizes) // target) <= len(sizes)
    ]
    if not full:
        return []
    files = f"{count_text(sum(map(len, full)), 'file')} below {SMALL_SHARE * policy.target_mb:g} MB"
    return [
        f"{files} in {count_text(len(full), 'partition')}, at most {policy.small_files}"
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
    floor, files = plan_floor(snapshot, policy.look_back or None, now_us), settled_files(snapshot)
    rows = sum(file.rows for file in files)
    if floor is None or not rows:
        return []
    shares = dead_shares(snapshot, floor, droppable_rows(snapshot, floor))
    dead = round(sum(shares[file.path] * file.rows for file in files))
    if dead * 100 < policy.dead_share * rows or not dead:
        return []
    share = f"{100 * dead / rows:.0f}% of the rows ({dead:,} of {rows:,})"
    return [
        f"{share} are invisible at every event time of the last {policy.look_back}, due from {policy.dead_share}%"
    ]


def _cold_files(snapshot: Snapshot, policy: Policy, now_us: int) -> list[str]:
    """ORC has one way of compression only."""
    is_orc = snapshot.spec.file_format == "orc"
    before = (
        None
        if is_orc
        else plan_floor(snapshot, policy.archive_after or None, now_us, "archive_after")
    )
    bins = (
        plan_archive(snapshot, before, policy.archive_codec, policy.target_mb << 20)
        if before is not None
        else []
    )
    files = [file for bin_ in bins for file in bin_.files]
    what = f"{count_text(len(files), 'file')} of partitions without a row of the last {policy.archive_after}"
    return [f"{what}, not yet compressed by {policy.archive_codec}"] if files else []


def _zorder(snapshot: Snapshot, policy: Policy) -> Due | None:
    """By these columns in this order: another one clusters otherwise."""
    if not policy.zorder:
        return None
    columns = tuple(snapshot.spec.schema.field(name).id for name in policy.zorder)
    plan = plan_zorder(snapshot, columns, policy.target_mb << 20)
    if not plan.bins or plan.unclustered_percent < policy.unclustered_share:
        return None
    files = count_text(plan.unclustered_files, "file")
    what = f"{plan.unclustered_percent:.0f}% of the bytes ({files}) are not in Z-order by {', '.join(policy.zorder)}"
    arguments = {"columns": list(policy.zorder), "target_mb": policy.target_mb}
    return Due(
        operation="zorder", arguments=arguments, why=f"{what}, due from {policy.unclustered_share}%"
    )


def _retention(snapshot: Snapshot, policy: Policy, now_us: int) -> Due | None:
    cutoff_us = now_us - max(
        parse_duration(policy.window, name="window"), parse_duration(policy.grace, name="grace")
    )
    expired = oldest_kept(snapshot, cutoff_us) - snapshot.root.oldest_version
    if expired <= 0:
        return None
    have = "version is" if expired == 1 else "versions are"
    return Due(
        operation="retain",
        arguments={"window": policy.window, "grace": policy.grace},
        why=f"{expired:,} {have} older than {policy.window}",
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
    planned = plan_maintenance(
        table.log.head(), policy, store_now_us(table.storage, table.log.clock)
    )
    steps = [step for step in planned if delete or step.operation != "retain"]
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
    table, archive = job.table, job.archive
    snapshot = table.log.head()
    given: dict[str, Any] = {
        "look_back": "" if job.look_back is None else job.look_back,
        "target_mb": job.target_bytes and job.target_bytes >> 20,
        "archive_after": "" if archive is None else archive.after,
        "archive_codec": None if archive is None else archive.codec,
    }
    policy = policy_of(snapshot.spec, given)
    due = compaction_due(snapshot, policy, store_now_us(table.storage, table.log.clock))
    if due is None:
        why = f"not due: small_files={policy.small_files} and dead_share={policy.dead_share} allow the table as it is"
        return JobResult(operation="compact", table=table.uri, notes=(why,))
    result = job.run()
    return replace(result, notes=(f"compact was due: {due.why}", *result.notes))
