"""Restore: a new version that shows the same rows as an older one (FORMAT, §13).

A restore writes metadata only.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from opal_lake.data.segment import SideFile
from opal_lake.definition.business_snapshots import BusinessSnapshots
from opal_lake.definition.changes.constraints import new_constraints
from opal_lake.engine.executor import Executor
from opal_lake.engine.open_table import OpenTable
from opal_lake.engine.results import keep_result
from opal_lake.errors import InvalidInputError, NotFoundError, count_text
from opal_lake.ids import segment_part
from opal_lake.log.checkpoint import ensure_checkpoint, list_items
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import Actions, Commit, Restored
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.lists import RESTORED_LISTS, restored_line
from opal_lake.log.pending import withdrawn_ingests
from opal_lake.log.sections import write_side
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.version_window import is_readable, readable_text
from opal_lake.read.difference import count_rows, difference
from opal_lake.read.stored_violations import CheckedFiles, stored_violations
from opal_lake.result import JobResult
from opal_lake.savepoints.restored_files import verify_restored_files

OPERATION = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierBusiness:
    """The business snapshots of an older state, for a restore.

    `savepoints` are to be set again, and the names in `released` are to be released.
    """

    business: BusinessSnapshots
    savepoints: Mapping[str, int]
    released: tuple[str, ...]


def restore(
    table: OpenTable,
    state: Snapshot,
    *,
    business_snapshots: bool = False,
    dry_run: bool = False,
    token: str | None = None,
) -> JobResult:
    """Commit a version that shows the same rows as an older state.

    Properties, savepoints, tokens and the floor stay as they are. Business snapshots stay, too,
    unless `business_snapshots` is true: then those of the older state are restored.
    """
    log = table.log
    started_us, base = log.clock.now_us(), log.head()
    changes_business = business_snapshots and _changes_business(base, state)
    if _shows_the_same(base, state) and not changes_business:
        note = f"the newest version already shows the same rows as version {state.version}"
        result = JobResult(operation=OPERATION, table=log.storage.uri, token=token, notes=(note,))
        return result if dry_run else keep_result(log.storage, result)
    _check_possible(base, state)
    verified: set[str] = set()
    verify_restored_files(log, base, state, verified)
    _check_constraints(base, state, table.executor)
    if dry_run:
        planned = _earlier_business(base, state) if business_snapshots else None
        return _result(base, state, planned)
    number = claim_number(log.storage, base.root, OPERATION, log.clock)
    attempts = count()

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft:
        # After a lost race the head is another one, and a rewrite may have removed more files
        _check_possible(head, state)
        verify_restored_files(log, head, state, verified)
        if head.spec != base.spec:
            _check_constraints(head, state, table.executor)
        lines = _changed_lines(head, state)
        side = write_side(log.storage, number, next(attempts), lines, lambda line: line)
        restored = _plan(state, side)
        actions = Actions(restored=restored, forgotten=True, withdrawn=_withdrawn(head, state))
        earlier_business = None
        if business_snapshots:
            earlier_business = _earlier_business(head, state)
            for version in earlier_business.savepoints.values():
                # A savepoint must be readable without the log below it
                ensure_checkpoint(log.storage, log.at(version, head), tuning=log.tuning)
            actions = replace(
                actions,
                restored=replace(restored, business=earlier_business.business),
                savepoints=earlier_business.savepoints,
                released=earlier_business.released,
            )
        return Draft(
            actions=actions,
            result=_result(head, state, earlier_business),
            changes_view=head.root.viewed > state.version,
        )

    proposal = Proposal(
        operation=OPERATION, number=number, build=build, started_us=started_us, token=token
    )
    return log.commit(base, proposal)


def _shows_the_same(head: Snapshot, state: Snapshot) -> bool:
    """Return whether the head has the rows of a state, visible and pending ones."""
    if head.pending != state.pending:
        return False
    if head.root.viewed <= state.version:
        return True
    return next(_changed_lines(head, state), None) is None


def _changes_business(head: Snapshot, state: Snapshot) -> bool:
    """Return whether the business snapshots of a state differ from those of the head."""
    earlier = _earlier_business(head, state)
    return earlier.business != head.root.business or bool(earlier.savepoints)


def _earlier_business(head: Snapshot, state: Snapshot) -> EarlierBusiness:
    """Return the business snapshots of a state, as far as they can be restored.

    A finished business snapshot is finished again if its version is still readable.
    """
    business = state.root.business
    head_savepoints = head.root.savepoints
    finished: list[str] = []
    savepoints: dict[str, int] = {}  # that the head lacks
    for name in business.finished:
        version = state.root.savepoints[name]
        if is_readable(head.root, version):
            finished.append(name)
            if head_savepoints.get(name) != version:
                savepoints[name] = version
    unfinished = {*head.root.business.finished} - {*finished}
    moved = savepoints.keys() & head_savepoints.keys()
    return EarlierBusiness(
        business=replace(business, finished=tuple(finished)),
        savepoints=savepoints,
        released=tuple(sorted(unfinished | moved)),
    )


def _plan(state: Snapshot, side: SideFile) -> Restored:
    """Return the action that restores a state, with the changed lists in a side file."""
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
    """Raise an error if a state has expired, or if its groups are too large now."""
    if not is_readable(head.root, state.version):
        # A retention ran since the restore began
        raise NotFoundError(
            f"{head.storage.uri}: version {state.version} has expired meanwhile; restore a "
            f"readable version: {readable_text(head.root)}"
        )
    limit = head.spec.integer("group_rows")
    members = Counter(segment.group for segment in state.segments.values())
    # I13: a group has at most `group_rows` rows, unless it has only one segment
    shared_groups = (rows for group, rows in state.root.groups.items() if members[group] > 1)
    fullest = max(shared_groups, default=0)
    if fullest > limit:
        raise InvalidInputError(
            f"{head.storage.uri}: a group of version {state.version} holds {fullest:,} rows, but "
            f"the property 'group_rows' allows {limit:,}; set it to at least {fullest:,}, then "
            "restore again"
        )


def _check_constraints(head: Snapshot, state: Snapshot, executor: Executor) -> None:
    """Raise InvalidInputError if rows of a state violate younger constraints.

    The constraints of the head stay in force.
    """
    added = new_constraints(state.spec, head.spec)
    violations = stored_violations(state, added, executor, CheckedFiles())
    if violations is not None:
        verb = "violates" if violations.rows == 1 else "violate"
        raise InvalidInputError(
            f"{head.storage.uri}: {count_text(violations.rows, 'row')} of version {state.version} "
            f"{verb} constraints that were added later:\n{violations.text}\n"
            "Drop these constraints first, then restore again"
        )


def _withdrawn(head: Snapshot, state: Snapshot) -> tuple[tuple[str, int], ...]:
    """Return the unpublished ingests that lose all their rows by the restore."""
    gone = head.pending - state.segments.keys()
    staying = {*state.segments, *(head.segments.keys() - gone)}
    remaining = {segment_part(number) for number in staying}
    # The state may know the partition keys of ingests that an earlier restore undid
    for numbers in state.partitions.values():
        remaining |= numbers
    return withdrawn_ingests(head, gone, remaining)


def _changed_lines(head: Snapshot, state: Snapshot) -> Iterator[list[Any]]:
    """Yield the lines of a side file: the changes of the lists from head to state.

    The lines are in the order of the lists, so that a repeat writes the same bytes.
    """
    for name in RESTORED_LISTS:
        new, old = list_items(head, name), list_items(state, name)
        if name != "partitions":
            for key in new:
                if key not in old:
                    yield restored_line(name, key, None)
        # Partition keys of ingests that a restore undoes stay known, so none is removed
        for key, value in old.items():
            if new.get(key) != value:
                yield restored_line(name, key, value)


def _result(head: Snapshot, state: Snapshot, earlier: EarlierBusiness | None) -> JobResult:
    changed = difference(head, state)
    lost = head.pending - state.pending - state.segments.keys()
    notes = [f"version {state.version} is what reads return again"]
    if lost:
        rows = sum(head.segments[number].rows for number in lost)
        notes.append(
            f"the restore also removed {count_text(rows, 'row')} that waited for a metagen"
        )
    if state.pending:
        rows = sum(state.segments[number].rows for number in state.pending)
        notes.append(
            f"pending again as in version {state.version}: {count_text(rows, 'row')}; run a "
            "metagen that takes their partition key"
        )
    if earlier is not None:
        notes += _business_notes(head, state, earlier.business)
    counts = {"rows_restored": count_rows(changed.come), "rows_removed": count_rows(changed.gone)}
    return JobResult(operation=OPERATION, table=head.storage.uri, counts=counts, notes=tuple(notes))


def _business_notes(head: Snapshot, state: Snapshot, restored: BusinessSnapshots) -> Iterator[str]:
    open_name = "none" if restored.open is None else restored.open
    held_text = ""
    if restored.held_back:
        held_text = f", {', '.join(sorted(restored.held_back))} held back"
    yield (
        f"business snapshots are those of version {state.version} again: {open_name} is "
        f"open{held_text}"
    )
    reopened = [name for name in head.root.business.finished if name not in restored.finished]
    if reopened:
        names = ", ".join(reopened)
        yield f"business snapshots no longer finished: {names}; their savepoints are released"
