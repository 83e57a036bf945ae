"""The model: the rows of each version as lists of Python's values, and what jobs do to them.

A row has its values by the numbers of columns, so that a rename changes nothing. Nothing here is
shared with the code that it judges.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from tests.kit.model import ModelRow, visible
from tests.opal_lake.write.changed_tables import Node
from tests.programs.formulas import Formula, RefusedError, Sides

Values = Mapping[int, Any]
When = Literal["matched", "not matched", "not matched by source"]
Action = Literal["update", "delete", "insert"]
TARGET, SOURCE = "t", "s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The numbers of the columns with a role. `delta` is None if each job fills the delta."""

    keys: tuple[int, ...]
    delta: int | None
    ties: tuple[int, ...] = ()

    def key(self, values: Values) -> tuple[Any, ...]:
        return tuple(values.get(number) for number in self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A CHECK constraint, and the numbers of the columns that it reads, with all members."""

    formula: Formula
    numbers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A version: its columns, and its rows by the order in which jobs numbered them.

    `checks` are by name, `not_null` has the numbers of columns, and `generated` has the expression
    of each generated column by its number.
    """

    columns: Sequence[Node]
    rows: Mapping[int, ModelRow] = field(default_factory=dict)
    checks: Mapping[str, Check] = field(default_factory=dict)
    not_null: frozenset[int] = frozenset()
    generated: Mapping[int, Formula] = field(default_factory=dict)

    @property
    def visible(self) -> list[ModelRow]:
        return visible(self.rows.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A clause of a statement. `values` are by column; None stands for those of the source."""

    when: When
    action: Action
    where: Formula | None = None
    values: Mapping[int, Formula] | None = None

    def fits(self, sides: Sides) -> bool:
        return self.where is None or self.where.value(sides) is True


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The rows of a merge or an insert, and the table's columns that they have."""

    rows: Sequence[Values]
    numbers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A row that a statement writes, and the row that it ends."""

    action: Action
    values: Values
    ended: ModelRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement as the model runs it. `on` is None for a statement without a match.

    With a `region`, visible rows of the region end unless the source has a row of their key. With
    a `partition`, the number of a column, the region are the rows with a value that a new row has.
    Each new row has to meet `must_meet`.
    """

    clauses: Sequence[Clause]
    source: Source | None = None
    on: Formula | None = None
    latest: bool = False
    evolves: bool = False
    at: Any = None
    region: Callable[[ModelRow], bool] | None = None
    partition: int | None = None
    must_meet: Formula | None = None

    def of(self, when: When) -> list[Clause]:
        return [clause for clause in self.clauses if clause.when == when]


def order_of(roles: Roles, values: Values, delta: Any) -> tuple[Any, ...]:
    """Return the place of a row in the order of its key, without its number."""
    ties = [values.get(number) for number in roles.ties]
    return (delta, *((tie is not None, 0 if tie is None else tie) for tie in ties))


def new_row(state: State, given: Values, old: Values | None = None) -> Values:
    """Return a row with the given values, those of an older row or defaults, and computed ones."""
    row = {node.number: node.write for node in state.columns} if old is None else dict(old)
    row.update(given)
    for node in state.columns:
        formula = state.generated.get(node.number)
        if formula is not None and given.get(node.number) is None:
            row[node.number] = formula.value({TARGET: row})
    return row


def violation(state: State, values: Values, *, is_stored: bool = False) -> str | None:
    """Return why a row that deletes nothing cannot be in a version, or None.

    Of a stored row, the values of generated columns are right.
    """
    for node in state.columns:
        value = values.get(node.number, node.initial)
        if value is None and node.number in state.not_null:
            return f"{node.name} is null"
        formula = state.generated.get(node.number)
        if formula is not None and not is_stored and value != formula.value({TARGET: values}):
            return f"{node.name} differs from {formula.text}"
    for name, check in state.checks.items():
        if check.formula.value({TARGET: values}) is False:
            return f"{name} is violated: {check.formula.text}"
    return None


def region_of(state: State, statement: Statement) -> Callable[[ModelRow], bool]:
    """Return the test whether a visible row is in the region of a statement."""
    assert statement.region is not None
    if statement.partition is None:
        return statement.region
    number = statement.partition
    rows = () if statement.source is None else statement.source.rows
    touched = [new_row(state, row).get(number) for row in rows]
    return lambda row: row.values.get(number) in touched


def rows_of_statement(state: State, statement: Statement, roles: Roles) -> list[Written]:
    """Return the rows that a statement writes; raise RefusedError if it has to fail."""
    if statement.region is not None:
        written = _overwritten(state, statement, roles)
    elif statement.source is None:
        pairs = [(row, {TARGET: row.values}) for row in state.visible]
        written = _applied(statement.of("matched"), pairs, statement, state)
    else:
        written = _merged(state, statement, roles)
    written = _without_repeated_deletes(written)
    _check(state, written, roles)
    return written


def _merged(state: State, statement: Statement, roles: Roles) -> list[Written]:
    assert statement.source is not None
    source = list(statement.source.rows)
    if statement.latest:
        source = _latest(source, roles)
    targets = state.visible if statement.on is not None else []
    pairs: list[tuple[ModelRow | None, Sides]] = []
    matched_targets: set[Any] = set()
    matched_sources: set[int] = set()
    for target in targets:
        for number, values in enumerate(source):
            sides = {TARGET: target.values, SOURCE: values}
            if statement.on is not None and statement.on.value(sides) is True:
                pairs.append((target, sides))
                matched_targets.add(target.row_id)
                matched_sources.add(number)
    inserts = [
        (None, {SOURCE: values})
        for number, values in enumerate(source)
        if number not in matched_sources
    ]
    others = [
        (target, {TARGET: target.values})
        for target in targets
        if target.row_id not in matched_targets
    ]
    return [
        *_applied(statement.of("matched"), pairs, statement, state),
        *_applied(statement.of("not matched"), inserts, statement, state),
        *_applied(statement.of("not matched by source"), others, statement, state),
    ]


def _overwritten(state: State, statement: Statement, roles: Roles) -> list[Written]:
    """Return the rows of an overwrite: the new ones, and deletes of the others in the region."""
    in_region = region_of(state, statement)
    by_key = {row.key: row for row in state.visible}
    written: list[Written] = []
    for given in statement.source.rows if statement.source is not None else ():
        values = new_row(state, given)
        ended = by_key.get(roles.key(values))
        must_meet = statement.must_meet
        if must_meet is not None and must_meet.value({TARGET: values}) is not True:
            raise RefusedError("a new row does not meet the condition")
        action: Action = "insert" if ended is None else "update"
        written.append(Written(action=action, values=values, ended=ended))
    keys = {roles.key(row.values) for row in written}
    ended_rows = [row for row in state.visible if row.key not in keys and in_region(row)]
    return [*written, *(_delete_of(row) for row in ended_rows)]


def _delete_of(row: ModelRow) -> Written:
    return Written(action="delete", values=row.values, ended=row)


def _latest(source: Sequence[Values], roles: Roles) -> list[Values]:
    """Return the last row of each key, by delta, tie-breaks and place; null comes first."""
    best: dict[tuple[Any, ...], tuple[Any, Values]] = {}
    for position, values in enumerate(source):
        assert roles.delta is not None
        delta = values[roles.delta]
        order = ((delta is not None, delta), *order_of(roles, values, 0)[1:], position)
        key = roles.key(values)
        if key not in best or best[key][0] < order:
            best[key] = (order, values)
    return [values for _, values in best.values()]


def _applied(
    clauses: Sequence[Clause],
    pairs: Iterable[tuple[ModelRow | None, Sides]],
    statement: Statement,
    state: State,
) -> list[Written]:
    """Apply the first clause that fits to each pair."""
    written: list[Written] = []
    for target, sides in pairs:
        clause = next((clause for clause in clauses if clause.fits(sides)), None)
        if clause is not None:
            values = _new_values(clause, target, sides, statement, state)
            written.append(Written(action=clause.action, values=values, ended=target))
    return written


def _new_values(
    clause: Clause, target: ModelRow | None, sides: Sides, statement: Statement, state: State
) -> Values:
    if clause.action == "delete":
        assert target is not None
        return dict(target.values)
    old = None if target is None else target.values
    if clause.values is None:
        assert statement.source is not None
        given = {number: sides[SOURCE].get(number) for number in statement.source.numbers}
    else:
        given = {number: value.value(sides) for number, value in clause.values.items()}
    return new_row(state, given, old)


def _without_repeated_deletes(written: Iterable[Written]) -> list[Written]:
    deleted: set[Any] = set()
    remaining: list[Written] = []
    for row in written:
        if row.action == "delete":
            assert row.ended is not None
            if row.ended.row_id in deleted:
                continue
            deleted.add(row.ended.row_id)
        remaining.append(row)
    return remaining


def _check(state: State, written: Sequence[Written], roles: Roles) -> None:
    """Raise RefusedError for rows that the table cannot apply."""
    keys = [roles.key(row.values) for row in written]
    if any(None in key for key in keys):
        raise RefusedError("a key is null")
    if roles.delta is not None and any(row.values.get(roles.delta) is None for row in written):
        raise RefusedError("a delta is null")
    if len(set(keys)) < len(keys):
        raise RefusedError("a key is written more than once")
    shown = {row.key for row in state.visible}
    for row, key in zip(written, keys, strict=True):
        if row.ended is not None and row.ended.key != key:
            raise RefusedError("a row gets another key")
        if row.ended is None and key in shown:
            raise RefusedError("an inserted key exists")
        reason = None if row.action == "delete" else violation(state, row.values)
        if reason is not None:
            raise RefusedError(reason)


def check_order(state: State, written: Sequence[Written], roles: Roles, at: Any) -> None:
    """Raise RefusedError for a row before the last one of its key."""
    assert roles.delta is not None
    for row in written:
        delta = row.values[roles.delta]
        if row.action == "delete" and at is not None:
            delta = at
        own = order_of(roles, row.values, delta)
        key = roles.key(row.values)
        for other in state.rows.values():
            if other.processed is not None and other.key == key and other.order[:-1] > own:
                raise RefusedError("a row would stay invisible")


def rows_after(
    state: State,
    written: Sequence[Written],
    roles: Roles,
    *,
    first: int,
    version: int,
    delta: Any = None,
    at: Any = None,
) -> dict[int, ModelRow]:
    """Return the rows after a statement; its rows get numbers from `first` on.

    `delta` is that of the job in a table whose jobs fill the delta.
    """
    rows = dict(state.rows)
    for number, row in enumerate(written, start=first):
        own_delta = delta if roles.delta is None else row.values[roles.delta]
        if row.action == "delete" and at is not None:
            own_delta = at
        rows[number] = ModelRow(
            key=roles.key(row.values),
            delta=own_delta,
            ties=tuple(row.values.get(tie) for tie in roles.ties),
            row_id=(number, 0),
            deleted=row.action == "delete",
            processed=version,
            values=row.values,
        )
    return rows


def shown(row: ModelRow, columns: Iterable[Node]) -> dict[str, Any]:
    """Return the values of a row by the names of columns."""
    return shown_values(row.values, columns)


def shown_values(values: Values, columns: Iterable[Node]) -> dict[str, Any]:
    """Return values by the names of columns instead of their numbers."""
    return {node.name: node.shown(values.get(node.number, node.initial)) for node in columns}


def plain(value: Any) -> Any:
    """Return a value in a form that is equal for equal values: NaN, and UTC of any kind."""
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else repr(value))
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return tuple((name, plain(member)) for name, member in value.items())
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    return value


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return rows in a form that can be compared whatever their order."""
    return sorted(repr(plain(dict(row))) for row in rows)


def processed(
    rows: Mapping[int, ModelRow], numbers: Iterable[int], version: int
) -> dict[int, ModelRow]:
    """Return rows of which some became visible."""
    changed = dict(rows)
    for number in numbers:
        changed[number] = replace(changed[number], processed=version)
    return changed
