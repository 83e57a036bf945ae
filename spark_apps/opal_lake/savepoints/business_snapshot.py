"""The end of a business snapshot: its last version becomes a savepoint, and the next one opens."""

from collections.abc import Sequence

from opal_lake.clock import moment_text
from opal_lake.duration import parse_duration
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.ids import segment_part
from opal_lake.log.checkpoint import ensure_checkpoint
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import writer_now_us
from opal_lake.result import JobResult

OPERATION = "finish_business_snapshot"


def finish_business_snapshot(log: CommitLog, name: str) -> JobResult:
    """Keep the newest version as a savepoint with the business snapshot's name.

    Does nothing if the business snapshot is finished already. Raises InvalidInputError if another
    one is open, or if rows are pending: the savepoint would lack these rows.
    """
    return _finish(log, log.head(), name, if_ready=False)


def _finish(log: CommitLog, base: Snapshot, name: str, *, if_ready: bool) -> JobResult:
    started_us = log.clock.now_us()

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        if name in head.root.business.finished:
            return None
        problem = _unready(head, name)
        if problem is not None:
            if if_ready:
                return None  # rows arrived meanwhile, or another job finished it
            raise InvalidInputError(f"{log.storage.uri}: {problem}")
        # The savepoint must be readable without the log below it
        ensure_checkpoint(log.storage, head, tuning=log.tuning)
        note = (
            f"business snapshot {name} is finished; version {head.version} stays readable as {name}"
        )
        released = (name,) if name in head.root.savepoints else ()
        actions = Actions(savepoints={name: head.version}, released=released, finished=name)
        result = JobResult(operation=OPERATION, table=log.storage.uri, notes=(note,))
        return Draft(actions=actions, result=result)

    proposal = Proposal(
        operation=OPERATION, number=None, build=build, started_us=started_us, business_snapshot=name
    )
    return log.commit(base, proposal)


def _unready(head: Snapshot, name: str) -> str | None:
    """Return why a business snapshot cannot be finished now, None if it can."""
    known = head.root.business.open
    if name != known:
        open_name = "none" if known is None else known
        return (
            f"{name!r} is not the open business snapshot, so it was not finished; the open one is "
            f"{open_name}"
        )
    pending = segments_due(head)
    if not pending:
        return None
    verb = "is" if len(pending) == 1 else "are"
    return (
        f"{count_text(len(pending), 'segment')} {verb} pending, and would not be in business "
        f"snapshot {name}; run a metagen first"
    )


def finish_what_is_over(log: CommitLog, head: Snapshot) -> Snapshot:
    """Finish the open business snapshot and the following ones, as far as possible.

    One can be finished once its drift time is over and none of its rows is pending. Returns the
    newest snapshot of the table.
    """
    while may_finish(log, head):
        name = head.root.business.open
        if name is None:
            break
        _finish(log, head, name, if_ready=True)
        head = log.refresh(head)
    return head


def may_finish(log: CommitLog, head: Snapshot) -> bool:
    """Return whether the open business snapshot can be finished now."""
    return not segments_due(head) and is_over(log, head)


def finish_before(log: CommitLog, name: str) -> None:
    """Finish the open business snapshot if the one called `name` comes after it.

    Does nothing while rows of the open one are pending.
    """
    head = log.head()
    open_name = head.root.business.open
    if open_name is not None and head.root.business.is_held(name):
        _finish(log, head, open_name, if_ready=True)


def segments_due(snapshot: Snapshot) -> frozenset[int]:
    """Return the pending segments that a MetaGen processes: those not held back."""
    if not snapshot.root.pending:
        return frozenset()
    held_numbers = snapshot.root.business.held_numbers
    if not held_numbers:
        return snapshot.pending
    return frozenset(
        number for number in snapshot.pending if segment_part(number) not in held_numbers
    )


def is_over(log: CommitLog, snapshot: Snapshot) -> bool:
    """Return whether the drift time of the open business snapshot is over.

    It begins with the first rows of the next business snapshot.
    """
    due_us = due_time_us(snapshot)
    return due_us is not None and due_us <= _now_us(log, snapshot)


def due_time_us(snapshot: Snapshot, name: str | None = None) -> int | None:
    """Return when rows of a business snapshot stop being held back, in microseconds.

    Without a name, the next business snapshot is meant. None if no rows are held back.
    """
    business = snapshot.root.business
    if name is None:
        name = business.next
    if name is None:
        return None
    return business.due_us(name, drift_us(snapshot))


def drift_us(snapshot: Snapshot) -> int:
    return parse_duration(snapshot.spec.word("drift"), name="drift")


def waits(log: CommitLog, snapshot: Snapshot, name: str) -> bool:
    """Return whether new rows of a business snapshot have to wait.

    They wait for rows of earlier business snapshots, and for the drift time.
    """
    business = snapshot.root.business
    if not business.is_held(name):
        return False
    other_held_back = {*business.held_back} - {name}
    if segments_due(snapshot) or other_held_back:
        return True
    due_us = due_time_us(snapshot, name)
    if due_us is None:
        return drift_us(snapshot) > 0
    return due_us > _now_us(log, snapshot)


def held_notes(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a note on held-back business snapshots and the end of their wait."""
    due_us = due_time_us(snapshot)
    if due_us is None:
        return ()
    business = snapshot.root.business
    names = ", ".join(sorted(business.held_back))
    note = (
        f"rows of {names} are held back: the first metagen from {moment_text(due_us)} on finishes "
        f"business snapshot {business.open} and processes them"
    )
    return (note,)


def _now_us(log: CommitLog, snapshot: Snapshot) -> int:
    return writer_now_us(log.clock.now_us(), log.storage.now_us(), snapshot.spec, log.storage.uri)
