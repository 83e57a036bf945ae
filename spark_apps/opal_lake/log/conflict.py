"""What a job has to do when another one has committed first: nothing, redo a part, or fail (FORMAT, conflicts).

The redo of a MetaGen or an inline ingest is `opal_lake.rule.outputs.redo`.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import islice

from opal_lake.errors import ConflictError
from opal_lake.log.commit import Commit
from opal_lake.log.snapshot import Root, Snapshot, newest_first
from opal_lake.spec.positions import Advance, fenced_error

_SEARCHED = 100  # commits, for the one that took a position away


class Verdict(Enum):
    """What a later commit means for a job that is about to commit."""

    CLEAR = "go on"
    REDO = "take the winner into account, then go on"


def judge(operation: str, base: Root, winners: Iterable[Commit]) -> Verdict:
    """Raises ConflictError when the job has to be planned again from the new head."""
    verdict = Verdict.CLEAR
    for winner in winners:
        if winner.epoch != base.epoch:
            raise ConflictError(f"version {winner.version} restored an older state while {operation} ran; run it again")
        _check_schema(operation, base, winner)
        if winner.actions.processed:
            verdict = Verdict.REDO  # for whoever applies the rule; an ingest of pending rows has nothing to redo
    return verdict


def _check_schema(operation: str, base: Root, winner: Commit) -> None:
    if operation != "ingest" or winner.actions.spec is None:
        return
    kept = {field.id for field in winner.actions.spec.schema.fields}
    if gone := [field.name for field in base.spec.schema.fields if field.id not in kept]:
        raise ConflictError(f"version {winner.version} dropped {', '.join(gone)} while the ingest ran; run it again")


def check_positions(head: Snapshot, positions: Mapping[str, Advance], read_commit: Callable[[int], Commit]) -> None:
    """FencedError where an application does not stand where this writer thinks: its rows may be in the table already."""
    for application, advance in positions.items():
        position = head.positions.get(application, 0)
        if not advance.fits(position):
            raise fenced_error(head.storage.uri, application, advance, position, _writer_of(head, application, read_commit))


def _writer_of(head: Snapshot, application: str, read_commit: Callable[[int], Commit]) -> str:
    """Which commit took it there, in words."""
    for commit in islice(newest_first(head, read_commit), _SEARCHED):
        if application in commit.positions or (commit.application or ("",))[0] == application:
            return f"version {commit.version}, write {commit.write_id}, of job {commit.number}, took it there"
    return "no readable version says more"
