"""What a job has to do when another one has committed first: nothing, redo a part, or fail (FORMAT, conflicts).

The redo of a MetaGen or an inline ingest is `opal_lake.rule.outputs.redo`.
"""

from collections.abc import Iterable
from enum import Enum

from opal_lake.errors import ConflictError
from opal_lake.log.commit import Commit
from opal_lake.log.snapshot import Root


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
