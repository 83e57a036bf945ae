"""Restore: a new version that shows what an older one showed (FORMAT, restore). It writes metadata only."""

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
    """The business snapshots of an older state, with what that means for the savepoints of finished ones."""

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
    """Show again what a state showed. Properties, savepoints, tokens and the floor stay as they are.

    Business snapshots stay, too, unless they are to be those of that state.
    """
    started_us, base = log.clock.now_us(), log.head()
    if not dry_run and (earlier := find_result(log, base, OPERATION, token)) is not None:
        return earlier
    if _shows_the_same(base, state) and not (business_snapshots and _changes_days(base, state)):
        note = f"the newest version shows what version {state.version} showed"
        result = JobResult(operation=OPERATION, table=log.storage.uri, token=token, notes=(note,))
        return result if dry_run else keep_result(log.storage, result)
    _check_possible(base, state)
    verified: set[str] = set()
    verify_restored_files(log, base, state, verified)
    if dry_run:
        return _result(base, state, _earlier_days(base, state) if business_snapshots else None)
    number, attempts = claim_number(log.storage, base.root, OPERATION, log.clock), count()

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft:
        """Each lost race compares the state with another head."""
        _check_possible(head, state)
        verify_restored_files(log, head, state, verified)  # a rewrite may have taken more out
        restored = _plan(
            state,
            write_side(
                log.storage, number, next(attempts), _changed_lines(head, state), lambda line: line
            ),
        )
        actions, days = (
            Actions(restored=restored, forgotten=True, withdrawn=_withdrawn(head, state)),
            _earlier_days(head, state) if business_snapshots else None,
        )
        if days is not None:
            for version in days.savepoints.values():
                ensure_checkpoint(
                    log.storage, log.at(version, head)
                )  # readable without the log below
            restored = replace(restored, business=days.business)
            actions = replace(
                actions, restored=restored, savepoints=days.savepoints, released=days.released
            )
        return Draft(
            actions=actions,
            result=_result(head, state, days),
            changes_view=head.root.viewed > state.version,
        )

    return log.commit(
        base,
        Proposal(
            operation=OPERATION, number=number, build=build, started_us=started_us, token=token
        ),
    )


def _shows_the_same(head: Snapshot, state: Snapshot) -> bool:
    if head.pending != state.pending:
        return False
    return head.root.viewed <= state.version or next(_changed_lines(head, state), None) is None


def _changes_days(head: Snapshot, state: Snapshot) -> bool:
    days = _earlier_days(head, state)
    return days.business != head.root.business or bool(days.savepoints)


def _earlier_days(head: Snapshot, state: Snapshot) -> EarlierDays:
    """A finished business snapshot of the state is one again as long as its version can be read."""
    business, kept, now = state.root.business, state.root.savepoints, head.root.savepoints
    finished = tuple(name for name in business.finished if is_readable(head.root, kept[name]))
    savepoints = {name: kept[name] for name in finished if now.get(name) != kept[name]}
    released = {*head.root.business.finished} - {*finished} | savepoints.keys() & now.keys()
    return EarlierDays(
        business=replace(business, finished=finished),
        savepoints=savepoints,
        released=tuple(sorted(released)),
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
    if not is_readable(head.root, state.version):  # retention was faster
        raise NotFoundError(
            f"{head.storage.uri}: version {state.version} has expired meanwhile; restore one of {readable_text(head.root)}"
        )
    limit, members = (
        head.spec.integer("group_rows"),
        Counter(segment.group for segment in state.segments.values()),
    )
    fullest = max(
        (rows for group, rows in state.root.groups.items() if members[group] > 1), default=0
    )
    if fullest > limit:
        raise InvalidInputError(
            f"{head.storage.uri}: a group of version {state.version} holds {fullest:,} rows, and property 'group_rows' is {limit:,} now; "
            f"set it to at least {fullest:,}, then restore"
        )


def _withdrawn(head: Snapshot, state: Snapshot) -> tuple[tuple[str, int], ...]:
    """Return the ingests that were never published and of which the restore leaves nothing."""
    gone = head.pending - state.segments.keys()
    kept = {segment_part(number) for number in {*state.segments, *(head.segments.keys() - gone)}}
    # The version may know the partition keys of what an earlier restore undid
    known = {number for numbers in state.partitions.values() for number in numbers}
    return withdrawn_ingests(head, gone, kept | known)


def _changed_lines(head: Snapshot, state: Snapshot) -> Iterator[list[Any]]:
    """Return how the lists change, each in its order: the same restore writes the same bytes."""
    for name in RESTORED_LISTS:
        new, old = (list_items(snapshot, name) for snapshot in (head, state))
        if name != "partitions":  # those of what a restore undoes stay known
            yield from (restored_line(name, key, None) for key in new if key not in old)
        yield from (
            restored_line(name, key, value) for key, value in old.items() if new.get(key) != value
        )


def _result(head: Snapshot, state: Snapshot, days: EarlierDays | None) -> JobResult:
    changed = difference(head, state)
    lost, again = head.pending - state.pending - state.segments.keys(), state.pending
    notes = [f"version {state.version} is what reads return again"]
    if lost:
        rows = sum(head.segments[number].rows for number in lost)
        notes.append(
            f"the restore also took back {count_text(rows, 'row')} that waited for a metagen"
        )
    if again:
        rows = sum(state.segments[number].rows for number in again)
        notes.append(
            f"{count_text(rows, 'row')} that waited for a metagen in version {state.version} wait again, for one that takes their partition key"
        )
    notes += [] if days is None else [*_day_notes(head, state, days.business)]
    counts = {"rows_restored": count_rows(changed.come), "rows_removed": count_rows(changed.gone)}
    return JobResult(operation=OPERATION, table=head.storage.uri, counts=counts, notes=tuple(notes))


def _day_notes(head: Snapshot, state: Snapshot, then: BusinessSnapshots) -> Iterator[str]:
    held = f", {', '.join(sorted(then.held))} held back" if then.held else ""
    yield f"business snapshots are those of version {state.version} again: {then.open or 'none'} is open{held}"
    if gone := [name for name in head.root.business.finished if name not in then.finished]:
        yield f"no longer finished: {', '.join(gone)}; their savepoints are released"
