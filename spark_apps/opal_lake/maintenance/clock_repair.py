"""Find versions whose recorded times are wrong, and repair them (FORMAT, clocks).

After one commit with a time in the future, every later commit follows it a microsecond apart until
that time has passed. A file's own time is no earlier than its commit, unless a tool set it: copies
and archives may. So a version whose time is after its file's time by more than the bound is *ahead*
only with further evidence, one of:

1. its time is in the future by more than the bound;
2. the file of an older version has an earlier time, and agrees with that version's own time;
3. the file of this or a later version and that version's writer's clock agree on a time that is
   earlier by more than the bound, and that version's own time is not after its file's time, or
   follows its predecessor by a microsecond;
4. the file of a later version that is ahead by 2 has a time that is earlier by more than the bound;
5. it belongs to a chain of uncorrected versions a microsecond apart, while their files' times, or
   three or more rising times of their writers' clocks, span more than twice the bound.

"Agree" means within the bound. Otherwise the table counts as a copy, and times stay. (If all
writers were ahead by as much for longer than that, nothing tells the table from a copy.)

The corrected time of a version is its writer's, if that is within the bound of its file's, else its
file's. A copied table is one where this holds for fewer than half of the commits that give
evidence. There it is the writer's, if that is not before the predecessor and not after the file's
time, or not after now where the file's time itself is before the predecessor by more than the
bound; else it follows the predecessor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opal_lake import layout
from opal_lake.clock import Clock, moment_text
from opal_lake.errors import count_text
from opal_lake.log.commit import Actions, Commit, CorrectedTimes
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import clock_bound_us, store_now_us
from opal_lake.result import JobResult
from opal_lake.storage.protocol import Storage

OPERATION = "repair_clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """When a commit was made: its recorded time, its writer's own clock if that differs, and the latest possible time."""

    version: int
    recorded_us: int
    writer_us: int | None
    latest_us: int
    now_us: int
    follows: bool = (
        False  # a microsecond after its predecessor, as happens if that had a time in the future
    )

    def agrees(self, bound_us: int) -> bool:
        return (
            abs((self.recorded_us if self.writer_us is None else self.writer_us) - self.latest_us)
            <= bound_us
        )

    def is_late(self, bound_us: int) -> bool:
        """Its file is older: a clock was ahead, or a copy gave its file an older time."""
        return self.recorded_us > self.latest_us + bound_us

    def is_to_come(self, bound_us: int) -> bool:
        return self.recorded_us > self.now_us + bound_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to correct, if anything; and how many versions are later than their files although no clock is known to have been ahead."""

    corrected: CorrectedTimes | None
    backdated: int


def repair_clock(log: CommitLog, *, dry_run: bool = False) -> JobResult:
    """Correct the times of all versions since the first one that is ahead of the store's time; if none is, nothing is committed."""
    started_us, base = log.clock.now_us(), log.head()
    if dry_run:
        result = _result(log, base, plan_repair(log, base))
        return replace(result, notes=("nothing was changed: this was a dry run", *result.notes))

    unchanged: list[JobResult] = []

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        plan = plan_repair(log, head)
        result = _result(log, head, plan)
        if plan.corrected is None:
            unchanged.append(result)
            return None
        return Draft(actions=Actions(corrected_times=plan.corrected), result=result)

    done = log.commit(
        base, Proposal(operation=OPERATION, number=None, build=build, started_us=started_us)
    )
    return unchanged[-1] if done.version is None else done


def plan_repair(log: CommitLog, head: Snapshot) -> Plan:
    """What the times of readable versions should be."""
    evidence = gather(
        log.storage, log.clock, head, log.commits_after(head.root.oldest_version - 1, head.version)
    )
    bound_us = clock_bound_us(head.spec)
    corrected = correct(evidence, bound_us)
    before = [item for item in evidence if corrected is None or item.version < corrected.first]
    return Plan(corrected=corrected, backdated=sum(item.is_late(bound_us) for item in before))


def gather(
    storage: Storage, clock: Clock, head: Snapshot, commits: Sequence[Commit]
) -> list[Evidence]:
    """A commit was made no later than the store's time of its file, unless a copy set that; without a store's time, no later than now."""
    now_us, times = store_now_us(storage, clock), CommitTimes(head)
    stored = _stored(storage, head.root.oldest_version) if storage.now_us() is not None else {}
    before_us = {commit.version + 1: commit.timestamp_us for commit in commits}
    readable = [commit for commit in commits if commit.version >= head.root.oldest_version]
    recorded = {
        commit.version: times.corrected(commit.version, commit.timestamp_us) for commit in readable
    }
    return [
        Evidence(
            version=commit.version,
            recorded_us=recorded[commit.version],
            writer_us=commit.writer_us,
            latest_us=min(stored.get(commit.version, now_us), now_us),
            now_us=now_us,
            follows=recorded[commit.version]
            == commit.timestamp_us
            == before_us.get(commit.version, commit.timestamp_us) + 1,
        )
        for commit in readable
    ]


def _stored(storage: Storage, oldest: int) -> Mapping[int, int]:
    entries = storage.list(layout.LOG, layout.commit_path(oldest - 1) if oldest else "")
    return {
        version: entry.modified_us
        for entry in entries
        if (version := layout.commit_version(entry.path)) is not None
    }


def find_ahead(evidence: Sequence[Evidence], bound_us: int) -> list[Evidence]:
    """Versions whose times are too late because a clock was ahead. An older file is not enough, as a copy may have set its time.

    Either the time is in the future; or an older version agrees with its file, so that the store's times are right; or a later version's
    file and writer agree on an earlier time; or versions a microsecond apart have files or writers' clocks far apart (FORMAT, wrong times).
    """
    told_us = next(
        (item.latest_us for item in evidence if abs(item.recorded_us - item.latest_us) <= bound_us),
        None,
    )
    chained = {
        item.version for chain in _chains(evidence) if _spans(chain, bound_us) for item in chain
    }
    ahead: list[Evidence] = []
    not_before_us: int | None = None
    for item in reversed(evidence):
        is_late = item.is_late(bound_us)
        witnessed = is_late and told_us is not None and told_us < item.latest_us
        if witnessed or (item.agrees(bound_us) and (item.follows or not is_late)):
            not_before_us = (
                item.latest_us if not_before_us is None else min(not_before_us, item.latest_us)
            )
        contradicted = not_before_us is not None and item.recorded_us > not_before_us + bound_us
        if item.is_to_come(bound_us) or (is_late and (contradicted or item.version in chained)):
            ahead.append(item)
    return ahead[::-1]


def _chains(evidence: Sequence[Evidence]) -> list[list[Evidence]]:
    """Runs of versions that are a microsecond apart."""
    chains: list[list[Evidence]] = []
    for item in evidence:
        if item.follows and chains:
            chains[-1].append(item)
        else:
            chains.append([item])
    return chains


def _spans(chain: Sequence[Evidence], bound_us: int) -> bool:
    """Whether the times are further apart than correct clocks can be. Clocks that are behind by more may differ by anything."""
    stored = [item.latest_us for item in chain]
    written = [item.writer_us for item in chain if item.writer_us is not None]
    rising = written if len(written) > 2 and written == sorted(written) else []
    return any(
        max(moments) - min(moments) > 2 * bound_us for moments in (stored, rising) if moments
    )


def correct(evidence: Sequence[Evidence], bound_us: int) -> CorrectedTimes | None:
    """The times from the first version on that is ahead: its writer's clock, unless that was wrong, too; strictly increasing.

    A writer's clock is trusted if it agrees with the store's. A clock that was behind looks like a table that was copied later; the
    majority of the commits decides which it is.
    """
    ahead = find_ahead(evidence, bound_us)
    if not ahead:
        return None
    first = next(
        position for position, item in enumerate(evidence) if item.version == ahead[0].version
    )
    witnesses = [
        item
        for item in evidence
        if item.version < evidence[first].version or item.writer_us is not None
    ]
    is_copied = 2 * sum(item.agrees(bound_us) for item in witnesses) < len(witnesses)
    before_us = evidence[first - 1].recorded_us if first else 0
    times_us: list[int] = []
    for item in evidence[first:]:
        earliest_us, else_us = (
            (before_us, before_us) if is_copied else (item.latest_us - bound_us, item.latest_us)
        )
        writer_us = item.recorded_us if item.writer_us is None else item.writer_us
        is_backdated = (
            is_copied and item.writer_us is not None and item.latest_us + bound_us < before_us
        )
        latest_us = item.now_us if is_backdated else item.latest_us
        moment_us = writer_us if earliest_us <= writer_us <= latest_us + bound_us else else_us
        before_us = max(moment_us, before_us + 1)
        times_us.append(before_us)
    return CorrectedTimes(first=evidence[first].version, times_us=tuple(times_us))


def _result(log: CommitLog, head: Snapshot, plan: Plan) -> JobResult:
    corrected = plan.corrected
    copied: tuple[str, ...] = ()
    if plan.backdated:
        kept = f"{count_text(plan.backdated, 'version')} with times after those of their files are not changed"
        copied = (
            f"{kept}: no clock is known to have been ahead, so this is a copy whose files were given older times",
        )
    if corrected is None:
        notes = copied or ("no version has a wrong time: there is nothing to repair",)
        return JobResult(operation=OPERATION, table=log.storage.uri, notes=notes)
    last, count = corrected.first + len(corrected.times_us) - 1, len(corrected.times_us)
    first_us, last_us = corrected.times_us[0], corrected.times_us[-1]
    newest = f"the newest one said {moment_text(head.root.timestamp_us)}"
    spans = f"{count_text(count, 'version')}, {corrected.first} to {last}, are of {moment_text(first_us)} to {moment_text(last_us)}"
    return JobResult(
        operation=OPERATION,
        table=log.storage.uri,
        counts={"versions": count},
        notes=(f"{spans}; {newest}", *copied),
    )
