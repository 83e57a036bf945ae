"""The conflict rules for a job that is about to commit after other commits (FORMAT, §13).

The job goes on, redoes a part of its work, or fails. Other rules are elsewhere:

- `opal_lake.rule.outputs.redo` redoes a MetaGen or an inline ingest.
- `opal_lake.maintenance.rewrite_job` decides between two rewrites of one file.
- `CommitLog.commit` refuses jobs that retention gave up, and jobs whose base version has expired.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from opal_lake.definition.changes.constraints import constraint_names, new_constraints
from opal_lake.definition.job_names import (
    check_application,
    check_partition_key,
    check_position_names,
    check_token,
)
from opal_lake.definition.positions import Advance, fenced_error
from opal_lake.definition.schema import all_fields
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import ConflictError, FormatError
from opal_lake.log.commit import ERASE, Actions, Commit
from opal_lake.log.snapshot import Root, Snapshot, newest_first
from opal_lake.result import JobResult

_SEARCHED_COMMITS = 100  # at most, to find the one that moved a position


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The actions and the result that a job wants to commit onto a head."""

    actions: Actions
    result: JobResult
    changes_view: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A job that is about to commit.

    `build` makes the draft of the commit, and is called again after every lost race. Its arguments
    are the head, and the commits since the job's base if the job has to redo work because of them.
    It returns None if nothing is left to do. A short job `skips_refresh`: the head is refreshed
    only if another writer took the next version. `started_us` is when the job began.
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
    skips_refresh: bool = False

    def __post_init__(self) -> None:
        """Raise InvalidInputError for a name that no reader accepts."""
        check_token(self.token)
        check_application(self.application)
        check_position_names(self.positions, self.application)
        check_partition_key(self.partition_key)


class Verdict(Enum):
    """The consequence of a later commit for a job that is about to commit."""

    CLEAR = "go on"
    REDO = "redo the work with the other commits' changes, then go on"


def judge(operation: str, base: Root, winners: Iterable[Commit]) -> Verdict:
    """Return what a job has to do because of commits that were faster, the `winners`.

    Raises ConflictError if the job has to run again.
    """
    verdict = Verdict.CLEAR
    for winner in winners:
        if winner.epoch != base.epoch:
            change = "erased rows" if winner.operation == ERASE else "restored an older state"
            raise ConflictError(
                f"version {winner.version} {change} while this {operation} ran; "
                f"run the {operation} again"
            )
        _check_schema(operation, base, winner)
        if winner.actions.processed:
            # Jobs that apply the rule redo it; an ingest of pending rows has nothing to redo
            verdict = Verdict.REDO
    return verdict


def _check_schema(operation: str, base: Root, winner: Commit) -> None:
    """Raise ConflictError if a winner's spec does not fit the rows of an ingest."""
    if operation != "ingest" or winner.actions.spec is None:
        return
    # Other changes do no harm: a file has the columns of its base, and readers convert them
    remaining = {field.id for field in all_fields(winner.actions.spec.schema.fields)}
    fields = all_fields(base.spec.schema.fields)
    dropped = [field.name for field in fields if field.id not in remaining]
    if dropped:
        raise ConflictError(
            f"version {winner.version} dropped the columns {', '.join(dropped)} while the ingest "
            "ran; run the ingest again without them"
        )
    _check_constraints(base.spec, winner)


def _check_constraints(spec: TableSpec, winner: Commit) -> None:
    """Raise ConflictError for an ingest that did not check a winner's constraint."""
    after = winner.actions.spec
    if after is None:
        return
    added = list(constraint_names(new_constraints(spec, after)))
    if added:
        raise ConflictError(
            f"version {winner.version} added {', '.join(added)} while the ingest ran, so its rows "
            "were not checked; run the ingest again"
        )


def check_positions(
    head: Snapshot, positions: Mapping[str, Advance], read_commit: Callable[[int], Commit]
) -> None:
    """Raise FencedError if an application is not at the position of its writer.

    Then the writer's rows may be in the table already. I28: each advance begins at the position
    where the application stood.
    """
    for application, advance in positions.items():
        position = head.positions.get(application, 0)
        if not advance.fits(position):
            writer = _writer_of(head, application, read_commit)
            raise fenced_error(head.storage.uri, application, advance, position, writer)


def _writer_of(head: Snapshot, application: str, read_commit: Callable[[int], Commit]) -> str:
    """Describe the commit that moved an application to its position."""
    # A hole in the log must not hide the error that this text is for
    with suppress(FormatError):
        for commit in islice(newest_first(head, read_commit), _SEARCHED_COMMITS):
            is_applied = commit.application is not None and commit.application[0] == application
            if application in commit.positions or is_applied:
                return (
                    f"version {commit.version}, write {commit.write_id}, of job {commit.number}, "
                    "took it there"
                )
    return "no readable version says more"
