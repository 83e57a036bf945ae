"""Find versions whose recorded times are wrong, and repair them (FORMAT, clocks).

After a commit with a time in the future, every later commit follows its predecessor by a
microsecond, until that time has passed. A version has three times: its recorded time, the time of
its writer's clock, and the time that the store gave its file. A file is not older than its commit,
unless a tool set its time, as copies and archives may. Two times *agree* if they differ by no more
than the bound.

A version is *late* if its recorded time is after its file's time by more than the bound. It is
*ahead* if its recorded time is in the future by more than the bound (evidence 1). It is also ahead
if it is late and there is further evidence:

2. The file of an older version has an earlier time, and agrees with that version's recorded time.
3. The file and the writer's clock of this or a later version agree on a time that is before the
   recorded time by more than the bound. That version is not late, or follows its predecessor by a
   microsecond.
4. The file of a later version that is ahead by evidence 2 has a time that is before the recorded
   time by more than the bound.
5. The version belongs to a chain of uncorrected versions a microsecond apart. The times of their
   files, or three or more rising times of their writers' clocks, span more than twice the bound.

Without such evidence the table counts as a copy, and times stay. (If all writers were ahead by as
much for as long, the table looks exactly like a copy.)

The corrected time of a version is its writer's, if that agrees with its file's, otherwise its
file's. A table where they agree for fewer than half of the commits that give evidence is a copy.
In a copy, the corrected time is the writer's if that is neither before the predecessor nor after
the file's time. If the file's time is itself before the predecessor by more than the bound, the
limit is now instead of the file's time. Otherwise the version follows its predecessor by a
microsecond.
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
    """The times of a commit.

    - `recorded_us`: the commit's own time.
    - `writer_us`: the time of its writer's clock, if that differs.
    - `latest_us`: the latest time at which the commit can have been made.
    - `follows`: whether its time is a microsecond after its predecessor's. That happens if the
      predecessor had a time in the future.
    """

    version: int
    recorded_us: int
    writer_us: int | None
    latest_us: int
    now_us: int
    follows: bool = False

    @property
    def by_writer_us(self) -> int:
        """The commit's time by its writer's clock."""
        return self.recorded_us if self.writer_us is None else self.writer_us

    def agrees(self, bound_us: int) -> bool:
        """Return whether the writer's clock and the file's time agree."""
        return abs(self.by_writer_us - self.latest_us) <= bound_us

    def is_late(self, bound_us: int) -> bool:
        """Return whether the file is older than the recorded time.

        A clock was ahead, or a copy gave the file an older time.
        """
        return self.recorded_us > self.latest_us + bound_us

    def is_in_future(self, bound_us: int) -> bool:
        """Return whether the recorded time is in the future."""
        return self.recorded_us > self.now_us + bound_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A planned repair: the times to correct, if any.

    `backdated` counts versions whose recorded times are after those of their files, although no
    clock is known to have been ahead.
    """

    corrected: CorrectedTimes | None
    backdated: int


def repair_clock(log: CommitLog, *, dry_run: bool = False) -> JobResult:
    """Correct the times of all versions from the first one that is ahead.

    Commits nothing if no version is ahead of the store's time.
    """
    started_us = log.clock.now_us()
    base = log.head()
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

    proposal = Proposal(operation=OPERATION, number=None, build=build, started_us=started_us)
    done = log.commit(base, proposal)
    return unchanged[-1] if done.version is None else done


def plan_repair(log: CommitLog, head: Snapshot) -> Plan:
    """Plan the corrected times of readable versions."""
    commits = log.commits_after(head.root.oldest_version - 1, head.version)
    evidence = gather(log.storage, log.clock, head, commits)
    bound_us = clock_bound_us(head.spec)
    corrected = correct(evidence, bound_us)
    uncorrected = evidence
    if corrected is not None:
        uncorrected = [item for item in evidence if item.version < corrected.first]
    backdated = sum(item.is_late(bound_us) for item in uncorrected)
    return Plan(corrected=corrected, backdated=backdated)


def gather(
    storage: Storage, clock: Clock, head: Snapshot, commits: Sequence[Commit]
) -> list[Evidence]:
    """Return the times of readable versions, the oldest first.

    A commit was made no later than the store's time of its file, unless a copy set that time. If
    the store has no time of its own, the commit was made no later than now.
    """
    now_us = store_now_us(storage, clock)
    times = CommitTimes(head)
    file_us: Mapping[int, int] = {}
    if storage.now_us() is not None:
        file_us = _file_times(storage, head.root.oldest_version)
    predecessors_us = {commit.version + 1: commit.timestamp_us for commit in commits}
    evidence: list[Evidence] = []
    for commit in commits:
        if commit.version < head.root.oldest_version:
            continue
        recorded_us = times.corrected(commit.version, commit.timestamp_us)
        is_uncorrected = recorded_us == commit.timestamp_us
        predecessor_us = predecessors_us.get(commit.version)
        evidence.append(
            Evidence(
                version=commit.version,
                recorded_us=recorded_us,
                writer_us=commit.writer_us,
                latest_us=min(file_us.get(commit.version, now_us), now_us),
                now_us=now_us,
                follows=is_uncorrected and predecessor_us == commit.timestamp_us - 1,
            )
        )
    return evidence


def _file_times(storage: Storage, oldest: int) -> Mapping[int, int]:
    """Return the store's time of the file of each version from the oldest on."""
    after = layout.commit_path(oldest - 1) if oldest else ""
    times: dict[int, int] = {}
    for entry in storage.list(layout.LOG, after):
        version = layout.commit_version(entry.path)
        if version is not None:
            times[version] = entry.modified_us
    return times


def find_ahead(evidence: Sequence[Evidence], bound_us: int) -> list[Evidence]:
    """Return the versions whose times are too late because a clock was ahead.

    A file that is older than the recorded time is not enough: a copy may have set the file's time.
    The docstring of this module lists the further evidence.
    """
    agreeing = (item for item in evidence if abs(item.recorded_us - item.latest_us) <= bound_us)
    first_agreeing = next(agreeing, None)
    chained: set[int] = set()
    for chain in _chains(evidence):
        if _is_spread_out(chain, bound_us):
            chained.update(item.version for item in chain)
    ahead: list[Evidence] = []
    # The earliest certain time of this version or a later one
    least_us: int | None = None
    for item in reversed(evidence):
        is_late = item.is_late(bound_us)
        # Evidence 2: the store's times are right, as an older version agrees with its file
        is_witnessed = (
            is_late and first_agreeing is not None and first_agreeing.latest_us < item.latest_us
        )
        # Evidence 3: the file and the writer agree
        is_certain = item.agrees(bound_us) and (item.follows or not is_late)
        if is_witnessed or is_certain:
            least_us = item.latest_us if least_us is None else min(least_us, item.latest_us)
        is_contradicted = least_us is not None and item.recorded_us > least_us + bound_us
        has_evidence = is_contradicted or item.version in chained
        if item.is_in_future(bound_us) or (is_late and has_evidence):
            ahead.append(item)
    return ahead[::-1]


def _chains(evidence: Sequence[Evidence]) -> list[list[Evidence]]:
    """Return runs of versions that are a microsecond apart."""
    chains: list[list[Evidence]] = []
    for item in evidence:
        if item.follows and chains:
            chains[-1].append(item)
        else:
            chains.append([item])
    return chains


def _is_spread_out(chain: Sequence[Evidence], bound_us: int) -> bool:
    """Return whether a chain took so long that its recorded times must be wrong."""
    file_us = [item.latest_us for item in chain]
    if _are_far_apart(file_us, bound_us):
        return True
    # Clocks that are behind may differ by anything, but three rising times show that time passed
    writers_us = [item.writer_us for item in chain if item.writer_us is not None]
    is_rising = len(writers_us) > 2 and writers_us == sorted(writers_us)
    return is_rising and _are_far_apart(writers_us, bound_us)


def _are_far_apart(moments_us: Sequence[int], bound_us: int) -> bool:
    return max(moments_us) - min(moments_us) > 2 * bound_us


def correct(evidence: Sequence[Evidence], bound_us: int) -> CorrectedTimes | None:
    """Return strictly increasing times from the first version on that is ahead.

    A writer's clock is trusted if it agrees with the store's time. A table whose writers' clocks
    were behind looks like a table that was copied later. The majority of the commits decides
    between the two.
    """
    ahead = find_ahead(evidence, bound_us)
    if not ahead:
        return None
    first = evidence.index(ahead[0])
    witnesses = [
        item
        for position, item in enumerate(evidence)
        if position < first or item.writer_us is not None
    ]
    agreeing = sum(item.agrees(bound_us) for item in witnesses)
    is_copied = 2 * agreeing < len(witnesses)
    before_us = evidence[first - 1].recorded_us if first else 0
    times_us: list[int] = []
    for item in evidence[first:]:
        if is_copied:
            earliest_us = default_us = before_us
            latest_us = item.latest_us
            if item.writer_us is not None and item.latest_us + bound_us < before_us:
                # The copy gave the file a time that cannot be true
                latest_us = item.now_us
        else:
            earliest_us = item.latest_us - bound_us
            default_us = latest_us = item.latest_us
        is_trusted = earliest_us <= item.by_writer_us <= latest_us + bound_us
        moment_us = item.by_writer_us if is_trusted else default_us
        # I3: times increase strictly
        before_us = max(moment_us, before_us + 1)
        times_us.append(before_us)
    return CorrectedTimes(first=evidence[first].version, times_us=tuple(times_us))


def _result(log: CommitLog, head: Snapshot, plan: Plan) -> JobResult:
    corrected = plan.corrected
    copied: tuple[str, ...] = ()
    if plan.backdated:
        versions = count_text(plan.backdated, "version")
        note = (
            f"{versions} with times after those of their files: nothing was corrected there. No "
            "clock is known to have been ahead, so the table is a copy whose files were given "
            "older times"
        )
        copied = (note,)
    if corrected is None:
        notes = copied or ("no version has a wrong time; nothing to repair",)
        return JobResult(operation=OPERATION, table=log.storage.uri, notes=notes)
    count = len(corrected.times_us)
    last = corrected.first + count - 1
    first_text = moment_text(corrected.times_us[0])
    last_text = moment_text(corrected.times_us[-1])
    note = (
        f"the right times of {count_text(count, 'version')}, {corrected.first} to {last}, are "
        f"{first_text} to {last_text}; the newest version recorded "
        f"{moment_text(head.root.timestamp_us)}"
    )
    return JobResult(
        operation=OPERATION,
        table=log.storage.uri,
        counts={"versions": count},
        notes=(note, *copied),
    )
