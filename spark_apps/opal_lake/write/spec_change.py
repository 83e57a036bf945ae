"""Changes of a table's spec after its creation: properties and columns.

The commits of these changes conflict with no other commit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from opal_lake.arguments.values import ON_NEW_COLUMNS
from opal_lake.definition.added_columns import (
    NewColumns,
    arrow_of_columns,
    plan_added,
    refuse_former,
)
from opal_lake.definition.changes.apply import changed, counts_of
from opal_lake.definition.changes.change import Change
from opal_lake.definition.changes.constraints import new_constraints
from opal_lake.definition.changes.toward import WantedColumns, changes_toward
from opal_lake.definition.properties import PROPERTIES, Given, check_properties, plain_properties
from opal_lake.definition.schema import Atomic
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import Executor
from opal_lake.engine.open_table import OpenTable
from opal_lake.engine.results import find_result, keep_result
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.stored_violations import CheckedFiles, stored_violations
from opal_lake.result import JobResult

OPERATION = "set_properties"
ADD_COLUMNS = "add_columns"
ALTER = "alter"
Changes = Mapping[str, Given | None]
# A function that returns the columns of a source that a table of this spec lacks
NewColumnsOf = Callable[[TableSpec], pa.Schema]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A changed spec, with the counts and notes of the job that commits it."""

    spec: TableSpec
    counts: dict[str, int]
    notes: tuple[str, ...]


def set_properties(log: CommitLog, changes: Changes, token: str | None = None) -> JobResult:
    """Set properties; the value None sets a property to its default.

    Commit nothing if all properties have the given values already.
    """

    def plan(head: Snapshot) -> _Change | None:
        spec = changed_spec(head, changes)
        before, after = head.spec.properties, spec.properties
        names = sorted(name for name in PROPERTIES if after.get(name) != before.get(name))
        if not names:
            return None
        notes = []
        for name in names:
            value = after.get(name, PROPERTIES[name].kind.default)
            notes.append(f"{name} is now {value!r}")
        return _Change(spec=spec, counts={"properties": len(names)}, notes=tuple(notes))

    return _commit(log, OPERATION, plan, token)


def add_columns(log: CommitLog, columns: NewColumns, token: str | None = None) -> JobResult:
    """Add columns to the table; they are null in its existing rows.

    Columns that the table has already, with the same types, are left out.
    """
    asked = arrow_of_columns(columns)

    def plan(head: Snapshot) -> _Change | None:
        schema = plan_added(head.spec.schema, asked)
        existing = len(head.spec.schema.fields)
        names = [field.name for field in schema.fields[existing:]]
        if not names:
            return None
        return _Change(
            spec=replace(head.spec, schema=schema),
            counts={"columns": len(names)},
            notes=tuple(f"added column {name!r}" for name in names),
        )

    return _commit(log, ADD_COLUMNS, plan, token)


def alter(table: OpenTable, changes: Sequence[Change], token: str | None = None) -> JobResult:
    """Apply changes of the definition in their order, all in one commit.

    Commit nothing if no change has an effect. Raises InvalidInputError, and changes nothing, if
    one of them does not fit the table, or if rows violate a new constraint.
    """
    return _alter(table, lambda _: changes, token)


def alter_toward(table: OpenTable, wanted: WantedColumns, token: str | None = None) -> JobResult:
    """Commit the changes after which the table has the wanted columns, if any.

    Raises InvalidInputError, and changes nothing, if no such changes exist.
    """
    notes: list[str] = []

    def changes_for(spec: TableSpec) -> Sequence[Change]:
        changes, notes[:] = changes_toward(spec.schema, wanted)
        return changes

    done = _alter(table, changes_for, token)
    return done if done.repeated else replace(done, notes=(*done.notes, *notes))


def _alter(
    table: OpenTable, changes_for: Callable[[TableSpec], Sequence[Change]], token: str | None
) -> JobResult:
    checked = CheckedFiles()

    def plan(head: Snapshot) -> _Change | None:
        spec, effective = changed(head.spec, changes_for(head.spec))
        if not effective:
            return None
        _check_rows(head, new_constraints(head.spec, spec), table.executor, checked)
        notes = tuple(change.note() for change in effective)
        return _Change(spec=spec, counts=counts_of(effective), notes=notes)

    return _commit(table.log, ALTER, plan, token)


def _check_rows(head: Snapshot, spec: TableSpec, executor: Executor, checked: CheckedFiles) -> None:
    """Raise InvalidInputError if rows violate the constraints of `spec`, the new ones."""
    violations = stored_violations(head, spec, executor, checked)
    if violations is None:
        return
    pending_hint = ""
    if head.pending:
        pending_hint = ", or discard those that are pending (`opal discard`)"
    verb = "violates" if violations.rows == 1 else "violate"
    raise InvalidInputError(
        f"{count_text(violations.rows, 'row')} of {head.storage.uri} {verb} the new constraints, "
        f"so nothing was changed:\n{violations.text}\n"
        f"Correct or delete these rows first{pending_hint}"
    )


def _commit(
    log: CommitLog,
    operation: str,
    plan: Callable[[Snapshot], _Change | None],
    token: str | None,
) -> JobResult:
    """Commit the change that `plan` makes of the head; nothing if it returns None.

    It is planned again if another writer commits first. If it does not fit any more, it fails.
    """
    started_us = log.clock.now_us()
    base = log.head()
    earlier = find_result(log, base, operation, token)
    if earlier is not None:
        return earlier
    # An error is raised here, before an attempt to commit
    plan(base)

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        change = plan(head)
        if change is None:
            return None
        result = JobResult(
            operation=operation,
            table=log.storage.uri,
            counts=change.counts,
            notes=change.notes,
        )
        return Draft(actions=Actions(spec=change.spec), result=result)

    proposal = Proposal(
        operation=operation, number=None, build=build, started_us=started_us, token=token
    )
    done = log.commit(base, proposal)
    return keep_result(log.storage, done) if done.version is None else done


def with_new_columns(
    log: CommitLog, base: Snapshot, on_new_columns: str, new_columns: NewColumnsOf | None
) -> Snapshot:
    """Add the new columns of a source if `on_new_columns` is "add".

    Return the newest snapshot if columns were added, otherwise `base`.
    """
    ON_NEW_COLUMNS.check("on_new_columns", on_new_columns)
    if on_new_columns != "add" or new_columns is None:
        return base
    while new := new_columns(base.spec):
        # The source does not know that a column has another name now, or was given up
        refuse_former(base.spec.schema, new.names)
        try:
            add_columns(log, dict(zip(new.names, new.types, strict=True)))
        except InvalidInputError:
            # Another writer may have added some of the columns meanwhile: then try the others
            if new_columns(log.refresh(base).spec) == new:
                raise
        base = log.refresh(base)
    return base


def changed_spec(head: Snapshot, changes: Changes) -> TableSpec:
    """Return the spec with the changes applied.

    Raises InvalidInputError for a change that does not fit the table.
    """
    given = plain_properties({name: value for name, value in changes.items() if value is not None})
    check_properties(given, head.spec.schema)
    unknown = sorted(set(changes) - set(PROPERTIES))
    if unknown:
        raise InvalidInputError(
            f"property {unknown[0]!r} is unknown; known are {', '.join(PROPERTIES)}"
        )
    before = head.spec.properties
    unchanged = {name: value for name, value in before.items() if name not in changes}
    spec = replace(head.spec, properties={**unchanged, **given})
    check_properties_fit(head, spec)
    return spec


def check_properties_fit(head: Snapshot, spec: TableSpec) -> None:
    """Raise InvalidInputError for properties that do not fit the table as it is."""
    _check_groups(head, spec)
    _check_spans(spec)


def _check_spans(spec: TableSpec) -> None:
    """Raise InvalidInputError for a property whose span does not fit the delta column.

    If the delta column holds times, a span is a duration. Otherwise it is a number.
    """
    texts = {name: spec.word(name) for name in ("look_back", "archive_after")}
    spans = {name: text for name, text in texts.items() if text}
    if not spans:
        return
    spec.require_keys(f"property {next(iter(spans))!r}")
    assert isinstance(spec.delta.type, Atomic)
    has_time = spec.delta.type.name in ("date", "timestamp", "timestamp_ntz")
    expected = "a time; give a span of time such as '30d'"
    if not has_time:
        expected = "a number; give a number such as 1000"
    for name, text in spans.items():
        is_number = text.isdecimal()
        if is_number == has_time:
            raise InvalidInputError(
                f"property {name!r} is {text!r}, but the delta column {spec.delta.name!r} is "
                f"{expected}"
            )


def _check_groups(head: Snapshot, spec: TableSpec) -> None:
    """Raise InvalidInputError if a group exceeds the new limit: groups never split."""
    fullest = max(head.root.groups.values(), default=0)
    # I13: a group that exceeds the current limit is a single large segment
    least_limit = min(fullest, head.spec.integer("group_rows"))
    if spec.integer("group_rows") < least_limit:
        raise InvalidInputError(
            f"property 'group_rows' is {spec.integer('group_rows')}, but a group of "
            f"{head.storage.uri} holds {fullest:,} rows, and groups never split: give at least "
            f"{least_limit}"
        )
