"""Discard: withdraw pending rows of an ingest, before a MetaGen makes them visible.

FORMAT describes it under pending segments.
"""

from collections.abc import Sequence

from opal_lake.engine.results import find_result, keep_result
from opal_lake.errors import ConflictError, InvalidInputError, NotFoundError, count_text
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.pending import Selection, discarded_since, discarding, undone_note
from opal_lake.log.snapshot import Snapshot
from opal_lake.result import JobResult

OPERATION = "discard"


def discard(
    log: CommitLog,
    *,
    partition_key: str | None = None,
    token: str | None = None,
    job_token: str | None = None,
) -> JobResult:
    """Withdraw the pending segments of a partition key, or of the ingest with a token.

    Raises InvalidInputError if the segments are visible already, NotFoundError if no ingest has the
    partition key.
    """
    base = log.head()
    earlier = find_result(log, base, OPERATION, job_token)
    if earlier is not None:
        return earlier
    selection = Selection(partition_key=partition_key, tokens=None if token is None else (token,))
    if not selection.of(base):
        raise _nothing_to_discard(log, base, selection)
    return discard_pending(log, base, selection, job_token)


def discard_pending(
    log: CommitLog, base: Snapshot, selection: Selection, job_token: str | None = None
) -> JobResult:
    """Discard the selected segments that are pending both in `base` and at the head."""
    started_us = log.clock.now_us()
    planned = selection.of(base)

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        # Segments that became pending after `base` belong to another ingest, and are kept
        gone = discarded_since(head, base.version)
        visible = planned - head.pending - gone.keys()
        if visible:
            segments = count_text(len(visible), "segment")
            raise ConflictError(
                f"{log.storage.uri}: a metagen made {segments} of {selection.name} "
                "visible meanwhile; nothing was discarded. To take visible rows back, restore "
                "an older version, or ingest deletes"
            )
        actions = discarding(head, planned - gone.keys())
        if not actions.discarded:
            return None
        return Draft(actions=actions, result=_result(log, actions, selection))

    proposal = Proposal(
        operation=OPERATION, number=None, build=build, started_us=started_us, token=job_token
    )
    result = log.commit(base, proposal)
    if result.version is not None:
        return result
    note = f"another job discarded {selection.name} meanwhile"
    done = JobResult(
        operation=OPERATION,
        table=log.storage.uri,
        token=job_token,
        counts=discard_counts(Actions()),
        notes=(note,),
    )
    return keep_result(log.storage, done)


def discard_counts(actions: Actions) -> dict[str, int]:
    """Return how many segments, rows and files the actions of a commit discard."""
    return {
        "segments": len(actions.discarded),
        "rows": sum(discarded.segment.rows for discarded in actions.discarded),
        "files": len({discarded.path for discarded in actions.discarded}),
    }


def _result(log: CommitLog, actions: Actions, selection: Selection) -> JobResult:
    note = (
        f"the rows of {selection.name} are rejected: no metagen takes them up. Their files stay "
        "until a retention finds that no readable version has them"
    )
    return JobResult(
        operation=OPERATION,
        table=log.storage.uri,
        counts=discard_counts(actions),
        notes=(note,),
    )


def _nothing_to_discard(log: CommitLog, head: Snapshot, selection: Selection) -> Exception:
    """Return the error for a key or a token without pending rows."""
    uri, name = log.storage.uri, selection.name
    for token in selection.tokens or ():
        undone = undone_note(
            head,
            token,
            log.read_commit,
            log.reading_back(head.root.oldest_version),
            remedy="nothing is left to discard",
        )
        if undone is not None:
            return InvalidInputError(f"{uri}: nothing to discard: {undone}")
    key = selection.partition_key
    if key is not None and key not in head.partitions:
        return NotFoundError(
            f"{uri} has no ingest of partition key {key!r} up to version {head.version}, or its "
            "rows were discarded; `opal describe` lists pending rows"
        )
    return InvalidInputError(
        f"{uri}: no row of {name} is pending, because all its rows are visible already. To take "
        "visible rows back, restore an older version, or ingest deletes"
    )
