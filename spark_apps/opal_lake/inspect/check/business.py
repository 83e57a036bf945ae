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

_MEND = "restore the file from a backup"


def check_business(storage: Storage, commits: Sequence[Commit], findings: Findings) -> None:
    """Business snapshots never fall, each is finished as a savepoint, and no row of one that is held back is visible.

    Positions follow on from one another. Nothing, where none is named.
    """
    if all(commit.business_snapshot is None and not commit.positions for commit in commits):
        return
    state, applications, first = BusinessSnapshots(), dict[str, int](), commits[0]
    if first.version > 0:
        with findings.going_on("I6", layout.CHECKPOINTS):
            start = read_checkpoint(storage, first.version)
            if start is None or start.version != first.version:
                return  # which others tell
            state, applications, commits = (
                start.root.business,
                dict(start.root.applications),
                commits[1:],
            )
    expected = first.version + (first.version > 0)
    for commit in commits:
        if commit.version != expected:
            return  # a commit is missing, which others tell
        _check_commit(commit, state, findings)
        _check_positions(commit, applications, findings)
        state, applications, expected = (
            business_after(state, commit),
            applications_after(applications, commit),
            expected + 1,
        )


def _check_commit(commit: Commit, state: BusinessSnapshots, findings: Findings) -> None:
    path, name, finished = (
        layout.commit_path(commit.version),
        commit.business_snapshot,
        commit.actions.finished,
    )
    if finished is not None:
        right = (
            finished == state.open and commit.actions.savepoints.get(finished) == commit.version - 1
        )
        message = f"it finishes business snapshot {finished}: {state.open} was open, and its savepoint is the version before; {_MEND}"
        findings.expect(right, "I27", path, message)
    elif name is not None and (problem := state.problem_of(name)) is not None:
        findings.add("I27", path, f"{problem}; {_MEND}")
    early = sorted(
        {segment_part(segment) for segment in commit.actions.processed_ids} & state.held_numbers
    )
    findings.expect(
        not early,
        "I27",
        path,
        f"it makes rows of ingests {early} visible, which were held back then; {_MEND}",
    )


def _check_positions(commit: Commit, applications: dict[str, int], findings: Findings) -> None:
    for name, advance in commit.positions.items():
        stood = applications.get(name, -1) + 1
        message = f"it takes application {name!r} on from {advance.start}, which stood at {stood}: records are missing or twice; {_MEND}"
        findings.expect(
            stood in (0, advance.start), "I28", layout.commit_path(commit.version), message
        )
