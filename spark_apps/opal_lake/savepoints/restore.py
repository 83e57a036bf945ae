"""Restore: a new version that shows what an older one showed (FORMAT, §13).

It writes metadata only.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from opal_lake.data.segment import SideFile
from opal_lake.definition.business_snapshots import BusinessSnapshots
from opal_lake.engine.results import find_result, keep_result
from opal_lake.errors import InvalidInputError, NotFoundError, count_text
from opal_lake.ids import segment_part
from opal_lake.log.checkpoint import ensure_checkpoint, list_items
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import Actions, Commit, Restored
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.lists import RESTORED_LISTS, restored_line
from opal_lake.log.pending import withdrawn_ingests
from opal_lake.log.sections import write_side
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.version_window import is_readable, readable_text
from opal_lake.read.difference import count_rows, difference
from opal_lake.result import JobResult
from opal_lake.savepoints.restored_files import verify_restored_files

OPERATION = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierDays:
    """The business snapshots of an older state, and what they change in savepoints."""

    business: BusinessSnapshots
    savepoints: Mapping[str, int]
    released: tuple[str, ...]


def restore(
    log: CommitLog,
    state: Snapshot,
    *,
    business_snapshots: bool = False,
    dry_run: bool = False,
    token: str | None = None,
) -> JobResult:
    """Commit a version that shows what an older state showed.

    Properties, savepoints, tokens and the floor stay as they are. Business snapshots stay, too,
    unless those of the older state are asked for.
    """
    started_us, base = log.clock.now_us(), log.head()
    if not dry_run:
        earlier = find_result(log, base, OPERATION, token)
        if earlier is not None:
            return earlier
    if _shows_the_same(base, state) and not (business_snapshots and _changes_days(base, state)):
        note = f"the newest version shows what version {state.version} showed"
        result = JobResult(operation=OPERATION, table=log.storage.uri, token=token, notes=(note,))
        return result if dry_run else keep_result(log.storage, result)
    _check_possible(base, state)
    verified: set[str] = set()
    verify_restored_files(log, base, state, verified)
    if dry_run:
        days = _earlier_days(base, state) if business_snapshots else None
        return _result(base, state, days)
    number = claim_number(log.storage, base.root, OPERATION, log.clock)
    attempts = count()

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft:
        # Each lost race compares the state with another head, of which a rewrite may have removed
        # more files
        _check_possible(head, state)
        verify_restored_files(log, head, state, verified)
        lines = _changed_lines(head, state)
        side = write_side(log.storage, number, next(attempts), lines, lambda line: line)
        restored = _plan(state, side)
        actions = Actions(restored=restored, forgotten=True, withdrawn=_withdrawn(head, state))
        days = None
        if business_snapshots:
            days = _earlier_days(head, state)
            for version in days.savepoints.values():
                # A savepoint must be readable without the log below it
                ensure_checkpoint(log.storage, log.at(version, head), tuning=log.tuning)
            actions = replace(
                actions,
                restored=replace(restored, business=days.business),
                savepoints=days.savepoints,
                released=days.released,
            )
        return Draft(
            actions=actions,
            result=_result(head, state, days),
            changes_view=head.root.viewed > state.version,
        )

    proposal = Proposal(
        operation=OPERATION, number=number, build=build, started_us=started_us, token=token
    )
    return log.commit(base, proposal)


def _shows_the_same(head: Snapshot, state: Snapshot) -> bool:
    if head.pending != state.pending:
        return False
    if head.root.viewed <= state.version:
        return True
    return next(_changed_lines(head, state), None) is None


def _changes_days(head: Snapshot, state: Snapshot) -> bool:
    days = _earlier_days(head, state)
    return days.business != head.root.business or bool(days.savepoints)


def _earlier_days(head: Snapshot, state: Snapshot) -> EarlierDays:
    """Return the business snapshots of the state that are still possible.

    A finished one is finished again as long as its version can be read.
    """
    business = state.root.business
    then, now = state.root.savepoints, head.root.savepoints
    finished = tuple(name for name in business.finished if is_readable(head.root, then[name]))
    savepoints = {name: then[name] for name in finished if now.get(name) != then[name]}
    unfinished = {*head.root.business.finished} - {*finished}
    moved = savepoints.keys() & now.keys()
    return EarlierDays(
        business=replace(business, finished=finished),
        savepoints=savepoints,
        released=tuple(sorted(unfinished | moved)),
    )


def _plan(state: Snapshot, side: SideFile) -> Restored:
    root = state.root
    return Restored(
        version=root.version,
        side=side,
        groups=root.groups,
        rows=root.rows,
        pending=root.pending,
        events=root.events,
        bases=state.bases,
        incomplete_ingests=tuple(sorted(root.incomplete_ingests)),
    )


def _check_possible(head: Snapshot, state: Snapshot) -> None:
    if not is_readable(head.root, state.version):
        # A retention ran since the restore began
        raise NotFoundError(
            f"{head.storage.uri}: version {state.version} has expired meanwhile; restore one of "
            f"{readable_text(head.root)}"
        )
    limit = head.spec.integer("group_rows")
    members = Counter(segment.group for segment in state.segments.values())
    # I13: a group has at most `group_rows` rows, unless it has only one segment
    shared_groups = (rows for group, rows in state.root.groups.items() if members[group] > 1)
    fullest = max(shared_groups, default=0)
    if fullest > limit:
        raise InvalidInputError(
            f"{head.storage.uri}: a group of version {state.version} holds {fullest:,} rows, and "
            f"property 'group_rows' is {limit:,} now; set it to at least {fullest:,}, then restore"
        )


def _withdrawn(head: Snapshot, state: Snapshot) -> tuple[tuple[str, int], ...]:
    """Return unpublished ingests of which the restore leaves nothing."""
    gone = head.pending - state.segments.keys()
    staying = {*state.segments, *(head.segments.keys() - gone)}
    remaining = {segment_part(number) for number in staying}
    # The version may know the partition keys of ingests that an earlier restore undid
    for numbers in state.partitions.values():
        remaining |= numbers
    return withdrawn_ingests(head, gone, remaining)


def _changed_lines(head: Snapshot, state: Snapshot) -> Iterator[list[Any]]:
    """Yield the changes of the lists, each in its order.

    The order makes a repeat write the same bytes.
    """
    for name in RESTORED_LISTS:
        new, old = list_items(head, name), list_items(state, name)
        if name != "partitions":
            for key in new:
                if key not in old:
                    yield restored_line(name, key, None)
        # Partition keys of what a restore undoes stay known, so none of them is removed
        for key, value in old.items():
            if new.get(key) != value:
                yield restored_line(name, key, value)


def _result(head: Snapshot, state: Snapshot, days: EarlierDays | None) -> JobResult:
    changed = difference(head, state)
    lost = head.pending - state.pending - state.segments.keys()
    notes = [f"version {state.version} is what reads return again"]
    if lost:
        rows = sum(head.segments[number].rows for number in lost)
        notes.append(
            f"the restore also took back {count_text(rows, 'row')} that waited for a metagen"
        )
    if state.pending:
        rows = sum(state.segments[number].rows for number in state.pending)
        notes.append(
            f"{count_text(rows, 'row')} that waited for a metagen in version {state.version} wait "
            "again, for one that takes their partition key"
        )
    if days is not None:
        notes += _day_notes(head, state, days.business)
    counts = {"rows_restored": count_rows(changed.come), "rows_removed": count_rows(changed.gone)}
    return JobResult(operation=OPERATION, table=head.storage.uri, counts=counts, notes=tuple(notes))


def _day_notes(head: Snapshot, state: Snapshot, then: BusinessSnapshots) -> Iterator[str]:
    held_text = ""
    if then.held_back:
        held_text = f", {', '.join(sorted(then.held_back))} held back"
    yield (
        f"business snapshots are those of version {state.version} again: {then.open or 'none'} is "
        f"open{held_text}"
    )
    reopened = [name for name in head.root.business.finished if name not in then.finished]
    if reopened:
        yield f"no longer finished: {', '.join(reopened)}; their savepoints are released"
