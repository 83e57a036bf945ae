"""Finishing a business snapshot: its last version becomes a savepoint of its name, and the next one opens."""

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
    """Keep the newest version as a savepoint of that name. The same again is no change.

    InvalidInputError if it is not the open one, or while rows of it wait for a MetaGen: they would not be in it.
    """
    return _finish(log, log.head(), name, if_ready=False)


def _finish(log: CommitLog, base: Snapshot, name: str, *, if_ready: bool) -> JobResult:
    started_us = log.clock.now_us()

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        if name in head.root.business.finished:
            return None
        if (problem := _unready(head, name)) is not None:
            if if_ready:  # rows came, or another one was faster
                return None
            raise InvalidInputError(f"{log.storage.uri}: {problem}")
        ensure_checkpoint(log.storage, head)  # readable without the log below
        note = (
            f"business snapshot {name} is finished; version {head.version} stays readable as {name}"
        )
        released = (name,) if name in head.root.savepoints else ()
        actions = Actions(savepoints={name: head.version}, released=released, finished=name)
        return Draft(
            actions=actions,
            result=JobResult(operation=OPERATION, table=log.storage.uri, notes=(note,)),
        )

    proposal = Proposal(
        operation=OPERATION, number=None, build=build, started_us=started_us, business_snapshot=name
    )
    return log.commit(base, proposal)


def _unready(head: Snapshot, name: str) -> str | None:
    """Why it cannot be finished now."""
    known = head.root.business.open
    if name != known:
        return f"{name!r} is not the open business snapshot, {'none' if known is None else known} is; nothing was finished"
    if waiting := segments_due(head):
        segments = (
            f"{count_text(len(waiting), 'segment')} {'is' if len(waiting) == 1 else 'are'} pending"
        )
        return f"{segments}, and would not be in business snapshot {name}; run a metagen first"
    return None


def finish_what_is_over(log: CommitLog, head: Snapshot) -> Snapshot:
    """The newest version, after the open business snapshot is finished if its drift time is over and none of its rows is pending."""
    while may_finish(log, head) and (name := head.root.business.open) is not None:
        _finish(log, head, name, if_ready=True)
        head = log.refresh(head)
    return head


def may_finish(log: CommitLog, head: Snapshot) -> bool:
    """Return whether the open business snapshot's drift time is over and none of its rows pending."""
    return not segments_due(head) and is_over(log, head)


def finish_before(log: CommitLog, name: str) -> None:
    """Finish the open business snapshot, if this one comes after it and nothing of it is pending."""
    head = log.head()
    if head.root.business.open is not None and head.root.business.is_held(name):
        _finish(log, head, head.root.business.open, if_ready=True)


def segments_due(snapshot: Snapshot) -> frozenset[int]:
    """What a MetaGen takes up: the pending segments but for those that are held back."""
    if not snapshot.root.pending:
        return frozenset()
    held = snapshot.root.business.held_numbers
    return (
        frozenset(segment for segment in snapshot.pending if segment_part(segment) not in held)
        if held
        else snapshot.pending
    )


def is_over(log: CommitLog, snapshot: Snapshot) -> bool:
    """Whether the open business snapshot may be finished by now: rows of a later one are there for as long as the drift time."""
    due_us = due_time_us(snapshot)
    return due_us is not None and due_us <= _now_us(log, snapshot)


def due_time_us(snapshot: Snapshot, name: str | None = None) -> int | None:
    """From when on rows of a business snapshot are held back no longer; by default those of the next one."""
    business = snapshot.root.business
    name = name or business.next
    return None if name is None else business.due_us(name, drift_us(snapshot))


def drift_us(snapshot: Snapshot) -> int:
    return parse_duration(snapshot.spec.word("drift"), name="drift")


def waits(log: CommitLog, snapshot: Snapshot, name: str) -> bool:
    """Whether rows of a business snapshot that come now have to wait for earlier ones, or for the drift time."""
    business = snapshot.root.business
    if not business.is_held(name):
        return False
    if segments_due(snapshot) or {*business.held} - {name}:
        return True
    due_us = due_time_us(snapshot, name)
    return drift_us(snapshot) > 0 if due_us is None else due_us > _now_us(log, snapshot)


def held_notes(snapshot: Snapshot) -> tuple[str, ...]:
    """What a MetaGen leaves, and from when on not."""
    due_us, business = due_time_us(snapshot), snapshot.root.business
    if due_us is None:
        return ()
    held = f"rows of {', '.join(sorted(business.held))} are held back: the first metagen from {moment_text(due_us)} on"
    return (f"{held} finishes business snapshot {business.open} and processes them",)


def _now_us(log: CommitLog, snapshot: Snapshot) -> int:
    return writer_now_us(log.clock.now_us(), log.storage.now_us(), snapshot.spec, log.storage.uri)
