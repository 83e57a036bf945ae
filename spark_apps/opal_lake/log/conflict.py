"""A job on its way into the log, and what it has to do when another has committed first: nothing, redo a part, or fail (FORMAT, conflicts).

The redo of a MetaGen or an inline ingest is `opal_lake.rule.outputs.redo`. Two rewrites of one file meet in
`opal_lake.maintenance.rewrite_job`. `CommitLog.commit` refuses jobs that retention gave up, and those whose version has expired.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from opal_lake.definition.job_names import (
    check_application,
    check_partition_key,
    check_position_names,
    check_token,
)
from opal_lake.definition.positions import Advance, fenced_error
from opal_lake.errors import ConflictError, FormatError
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.snapshot import Root, Snapshot, newest_first
from opal_lake.result import JobResult

_SEARCHED = 100  # commits, for the one that took a position away


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a job wants to commit onto a head."""

    actions: Actions
    result: JobResult
    changes_view: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A job on its way into the log.

    `build` is called again after every lost race, with the head and the commits since the job's base that the conflict rules require it to
    take into account. None means that nothing is left to do. A short job puts its commit `at_once`, without refreshing the head first, and
    refreshes it only if the name is taken.
    """

    operation: str
    number: int | None
    build: Callable[[Snapshot, Sequence[Commit]], Draft | None]
    started_us: int
    token: str | None = None
    application: tuple[str, int] | None = None
    positions: Mapping[str, Advance] = field(default_factory=dict)
    partition_key: str | None = None
    business_snapshot: str | None = None
    at_once: bool = False

    def __post_init__(self) -> None:
        """Every writer passes here: raise InvalidInputError for a name that no reader accepts."""
        check_token(self.token)
        check_application(self.application)
        check_position_names(self.positions, self.application)
        check_partition_key(self.partition_key)


class Verdict(Enum):
    """What a later commit means for a job that is about to commit."""

    CLEAR = "go on"
    REDO = "take the winner into account, then go on"


def judge(operation: str, base: Root, winners: Iterable[Commit]) -> Verdict:
    """Raises ConflictError when the job has to be planned again from the new head."""
    verdict = Verdict.CLEAR
    for winner in winners:
        if winner.epoch != base.epoch:
            raise ConflictError(
                f"version {winner.version} restored an older state while {operation} ran; run it again"
            )
        _check_schema(operation, base, winner)
        if winner.actions.processed:
            verdict = (
                Verdict.REDO
            )  # for whoever applies the rule; an ingest of pending rows has nothing to redo
    return verdict


def _check_schema(operation: str, base: Root, winner: Commit) -> None:
    if operation != "ingest" or winner.actions.spec is None:
        return
    kept = {field.id for field in winner.actions.spec.schema.fields}
    if gone := [field.name for field in base.spec.schema.fields if field.id not in kept]:
        raise ConflictError(
            f"version {winner.version} dropped {', '.join(gone)} while the ingest ran; run it again"
        )


def check_positions(
    head: Snapshot, positions: Mapping[str, Advance], read_commit: Callable[[int], Commit]
) -> None:
    """FencedError where an application does not stand where this writer thinks: its rows may be in the table already."""
    for application, advance in positions.items():
        position = head.positions.get(application, 0)
        if not advance.fits(position):
            raise fenced_error(
                head.storage.uri,
                application,
                advance,
                position,
                _writer_of(head, application, read_commit),
            )


def _writer_of(head: Snapshot, application: str, read_commit: Callable[[int], Commit]) -> str:
    """Which commit took it there, in words."""
    with suppress(FormatError):  # a hole in the log is not what this writer has to know
        for commit in islice(newest_first(head, read_commit), _SEARCHED):
            if application in commit.positions or (commit.application or ("",))[0] == application:
                return f"version {commit.version}, write {commit.write_id}, of job {commit.number}, took it there"
    return "no readable version says more"
