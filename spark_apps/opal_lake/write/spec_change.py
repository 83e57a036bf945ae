"""What may change of a table after its creation: its properties, and more columns. A commit that conflicts with no other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from opal_lake.arguments.values import ON_NEW_COLUMNS
from opal_lake.definition.added_columns import NewColumns, arrow_of_columns, plan_added
from opal_lake.definition.properties import PROPERTIES, Given, check_properties, plain_properties
from opal_lake.definition.schema import Atomic
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.results import find_result, keep_result
from opal_lake.errors import InvalidInputError
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.result import JobResult

OPERATION = "set_properties"
ADD_COLUMNS = "add_columns"
Changes = Mapping[str, Given | None]
NewColumnsOf = Callable[
    [TableSpec], pa.Schema
]  # of a source: its columns that a table of this specification lacks


def set_properties(log: CommitLog, changes: Changes, token: str | None = None) -> JobResult:
    """Give properties other values, or, with None, their defaults again. What they have already is no change."""
    started_us, base = log.clock.now_us(), log.head()
    if (earlier := find_result(log, base, OPERATION, token)) is not None:
        return earlier

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        spec = changed_spec(head, changes)
        names = sorted(
            name
            for name in PROPERTIES
            if spec.properties.get(name) != head.spec.properties.get(name)
        )
        notes = tuple(
            f"{name} is {spec.properties.get(name, PROPERTIES[name].kind.default)!r} now"
            for name in names
        )
        result = JobResult(
            operation=OPERATION,
            table=log.storage.uri,
            counts={"properties": len(names)},
            notes=notes,
        )
        return Draft(actions=Actions(spec=spec), result=result) if names else None

    done = log.commit(
        base,
        Proposal(operation=OPERATION, number=None, build=build, started_us=started_us, token=token),
    )
    return keep_result(log.storage, done) if done.version is None else done


def add_columns(log: CommitLog, columns: NewColumns, token: str | None = None) -> JobResult:
    """Give the table more columns, null in the rows that it has. A column that it has with the same type is no change."""
    started_us, base, asked = log.clock.now_us(), log.head(), arrow_of_columns(columns)
    if (earlier := find_result(log, base, ADD_COLUMNS, token)) is not None:
        return earlier
    plan_added(base.spec.schema, asked)

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        schema = plan_added(head.spec.schema, asked)
        names = [field.name for field in schema.fields[len(head.spec.schema.fields) :]]
        notes = tuple(f"{name!r} is a column now" for name in names)
        result = JobResult(
            operation=ADD_COLUMNS,
            table=log.storage.uri,
            counts={"columns": len(names)},
            notes=notes,
        )
        return (
            Draft(actions=Actions(spec=replace(head.spec, schema=schema)), result=result)
            if names
            else None
        )

    done = log.commit(
        base,
        Proposal(
            operation=ADD_COLUMNS, number=None, build=build, started_us=started_us, token=token
        ),
    )
    return keep_result(log.storage, done) if done.version is None else done


def with_new_columns(
    log: CommitLog, base: Snapshot, on_new_columns: str, new_columns: NewColumnsOf | None
) -> Snapshot:
    """The head of an ingest: if it may add columns, with those of its source. Another writer may add some of them meanwhile."""
    ON_NEW_COLUMNS.check("on_new_columns", on_new_columns)
    if on_new_columns != "add" or new_columns is None:
        return base
    while new := new_columns(base.spec):
        try:
            add_columns(log, dict(zip(new.names, new.types, strict=True)))
        except InvalidInputError:
            if new_columns(log.refresh(base).spec) == new:
                raise
        base = log.refresh(base)
    return base


def changed_spec(head: Snapshot, changes: Changes) -> TableSpec:
    """The specification with the changes in it; InvalidInputError where one does not fit the table."""
    given = plain_properties({name: value for name, value in changes.items() if value is not None})
    check_properties(given, head.spec.schema)
    if unknown := sorted(set(changes) - set(PROPERTIES)):
        raise InvalidInputError(
            f"property {unknown[0]!r} is unknown; known are {', '.join(PROPERTIES)}"
        )
    kept = {name: value for name, value in head.spec.properties.items() if name not in changes}
    spec = replace(head.spec, properties={**kept, **given})
    _check_groups(head, spec)
    _check_spans(spec)
    return spec


def _check_spans(spec: TableSpec) -> None:
    """Ages are in the unit of the delta column."""
    texts = {name: spec.word(name) for name in ("look_back", "archive_after")}
    if not any(texts.values()):
        return
    spec.require_keys(f"property {next(name for name, text in texts.items() if text)!r}")
    assert isinstance(spec.delta.type, Atomic)
    has_time = spec.delta.type.name in ("date", "timestamp", "timestamp_ntz")
    for name, text in texts.items():
        if text and text.isdecimal() == has_time:
            what = (
                "a time; give a span of time, as '30d'"
                if has_time
                else "a number; give a number, as 1000"
            )
            raise InvalidInputError(
                f"property {name!r} is {text!r}, and the delta column {spec.delta.name!r} is {what}"
            )


def _check_groups(head: Snapshot, spec: TableSpec) -> None:
    """A group never splits: what holds today must hold by the new limit too."""
    fullest = max(head.root.groups.values(), default=0)
    if spec.integer("group_rows") < min(fullest, head.spec.integer("group_rows")):
        raise InvalidInputError(
            f"property 'group_rows' is {spec.integer('group_rows')}; a group of {head.storage.uri} holds {fullest:,} rows, "
            "and groups never split: use at least that"
        )
