"""Business snapshots and positions in the order of the commits (I27, I28)."""

from collections.abc import Sequence

from opal_lake import layout
from opal_lake.definition.business_snapshots import BusinessSnapshots
from opal_lake.ids import segment_part
from opal_lake.inspect.check.finding import Findings
from opal_lake.log.checkpoint import read_checkpoint
from opal_lake.log.commit import Commit
from opal_lake.log.snapshot import applications_after, business_after
from opal_lake.storage.protocol import Storage

_REMEDY = "restore the file from a backup"


def check_business(storage: Storage, commits: Sequence[Commit], findings: Findings) -> None:
    """Check the order of business snapshots and of positions.

    Business snapshots only advance, each is finished as a savepoint, and none of the rows that are
    held back is visible. Positions follow on from one another.
    """
    if all(commit.business_snapshot is None and not commit.positions for commit in commits):
        return
    state = BusinessSnapshots()
    applications: dict[str, int] = {}
    first = commits[0]
    expected = first.version
    if first.version > 0:
        # The log begins with a checkpoint, which holds the state after the first commit
        with findings.going_on("I6", layout.CHECKPOINTS):
            start = read_checkpoint(storage, first.version)
            if start is None or start.version != first.version:
                return  # I22 reports it
            state = start.root.business
            applications = dict(start.root.applications)
            commits = commits[1:]
        expected += 1
    for commit in commits:
        if commit.version != expected:
            return  # a commit is missing, which I1 reports
        _check_commit(commit, state, findings)
        _check_positions(commit, applications, findings)
        state = business_after(state, commit)
        applications = applications_after(applications, commit)
        expected += 1


def _check_commit(commit: Commit, state: BusinessSnapshots, findings: Findings) -> None:
    path = layout.commit_path(commit.version)
    finished = commit.actions.finished
    if finished is not None:
        savepoint = commit.actions.savepoints.get(finished)
        is_right = finished == state.open and savepoint == commit.version - 1
        message = (
            f"it finishes business snapshot {finished}: {state.open} was open, and its savepoint "
            f"is the version before; {_REMEDY}"
        )
        findings.expect(is_right, "I27", path, message)
    elif commit.business_snapshot is not None:
        problem = state.problem_of(commit.business_snapshot)
        if problem is not None:
            findings.add("I27", path, f"{problem}; {_REMEDY}")
    published = {segment_part(segment) for segment in commit.actions.processed_ids}
    early = sorted(published & state.held_numbers)
    message = f"it makes rows of ingests {early} visible, which were held back then; {_REMEDY}"
    findings.expect(not early, "I27", path, message)


def _check_positions(commit: Commit, applications: dict[str, int], findings: Findings) -> None:
    for name, advance in commit.positions.items():
        position = applications.get(name, -1) + 1
        message = (
            f"it takes application {name!r} on from {advance.start}, which stood at {position}: "
            f"records are missing or twice; {_REMEDY}"
        )
        # An application may begin anywhere
        is_right = position in (0, advance.start)
        findings.expect(is_right, "I28", layout.commit_path(commit.version), message)
