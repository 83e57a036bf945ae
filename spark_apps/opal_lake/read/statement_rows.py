"""The rows of a statement, computed over Arrow in this process."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.columns import source_column
from opal_lake.data.prune import Predicate
from opal_lake.definition.conditions.condition import Condition
from opal_lake.definition.conditions.expression import VALUE, Expression
from opal_lake.definition.conditions.faults import ROWS_WHERE
from opal_lake.definition.ordering import encode_order, of_order
from opal_lake.definition.schema import (
    DELETED,
    ENDED_OFFSET,
    ENDED_SEGMENT,
    OFFSET,
    SEGMENT,
    Atomic,
    Field,
    arrow_schema,
    arrow_type,
    default_array,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.get import hashed_keys, visible_rows
from opal_lake.read.read import plan_read, read_rows
from opal_lake.read.region import RegionTest
from opal_lake.read.statement import (
    Clause,
    SidedColumns,
    StatementPlan,
    condition_of,
    keys_of_condition,
    region_test,
    side_name,
    target_condition,
    values_of,
)
from opal_lake.read.where import where_predicate

_IDS = (SEGMENT, OFFSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundClause:
    """A clause bound to the columns of joined rows."""

    clause: Clause
    condition: Condition | None
    values: Mapping[str, "Expression | SourceColumn"]

    @property
    def column_names(self) -> list[str]:
        """The columns that the clause reads, as joined rows name them."""
        names = [] if self.condition is None else [*self.condition.column_names]
        for value in self.values.values():
            names += value.column_names
        return names

    def target_columns(self, plan: StatementPlan) -> set[str]:
        """Return the table's columns that the clause reads, as joined rows name them."""
        names = self.column_names
        if self.clause.action == "delete":
            names += [side_name(plan.target, field.name) for field in plan.spec.ordering]
        if self.clause.action == "update":
            for field in plan.spec.schema.fields:
                if field.name not in self.values and field.generated is None:
                    names.append(side_name(plan.target, field.name))
        sides = {side_name(plan.target, name) for name in plan.spec.schema.names}
        return sides & set(names)


def rows_of_table(plan: StatementPlan) -> pa.Table:
    """Return the rows that a statement without a source adds.

    Each has the row that it ends.

    Besides the table's columns, the rows have the columns DELETED, ENDED_SEGMENT and ENDED_OFFSET.
    """
    plan.check()
    sides = {plan.target: plan.spec.schema.fields}
    clauses = [bound(clause, plan, sides) for clause in plan.of("matched")]
    needed = target_fields(plan, clauses)
    if plan.region is not None:
        rows = rows_of_region(plan, arrow_region_test(plan), needed)
    else:
        where = clauses[0].clause.where if len(clauses) == 1 else None
        rows = _target_rows(plan, where, needed)
    return concatenated(plan.spec, applied(plan, clauses, rows))


def bound(
    clause: Clause,
    plan: StatementPlan,
    sides: Mapping[str, Sequence[Field]],
    faults: Mapping[str, str] | None = None,
) -> BoundClause:
    """Bind a clause to the columns of the sides that its rows have.

    `faults` are those of `SidedColumns`.
    """
    condition = None
    if clause.where is not None:
        condition = condition_of(clause.where, SidedColumns.of(sides, ROWS_WHERE, faults))
    values: Mapping[str, Expression | SourceColumn] = {}
    if clause.values is not None:
        values = values_of(clause.values, plan.spec, SidedColumns.of(sides, VALUE, faults))
    elif clause.action != "delete":
        values = _source_columns(plan, faults or {})
    return BoundClause(clause=clause, condition=condition, values=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column of the source as the value of the table's column of the same name."""

    name: str
    target: Field
    spec: TableSpec

    @property
    def column_names(self) -> list[str]:
        """The column that is read, by its name in joined rows."""
        return [self.name]

    def values(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the column in the type of the target column."""
        given = pa.table({self.target.name: rows[self.name]})
        return source_column(given, self.target, self.spec)


def _source_columns(plan: StatementPlan, faults: Mapping[str, str]) -> dict[str, SourceColumn]:
    """Return the values of a clause for all columns that the source has."""
    columns: dict[str, SourceColumn] = {}
    for field in plan.spec.schema.fields:
        if field.name not in plan.source.column_names:
            continue
        name = side_name(plan.other, field.name)
        if name.casefold() in faults:
            raise InvalidInputError(faults[name.casefold()])
        columns[field.name] = SourceColumn(name=name, target=field, spec=plan.spec)
    return columns


def target_fields(plan: StatementPlan, clauses: Iterable[BoundClause]) -> list[Field]:
    """Return the columns of the table that clauses read."""
    needed: set[str] = set()
    for clause in clauses:
        needed |= clause.target_columns(plan)
    fields = plan.spec.schema.fields
    return [field for field in fields if side_name(plan.target, field.name) in needed]


def _target_rows(plan: StatementPlan, where: Any, fields: Sequence[Field]) -> pa.Table:
    """Return at least the visible rows that meet a condition.

    A condition that names keys is answered by the key store; another one skips files.
    """
    if where is None:
        return scanned(plan, fields, None)
    condition = target_condition(where, plan)
    keys = keys_of_condition(where, plan.spec, plan.target)
    if keys is None:
        return scanned(plan, fields, condition)
    try:
        hashes, values = hashed_keys(keys, plan.spec)
    except InvalidInputError:
        # A number that no key can be, such as 1.5, or a double, which equals several integers
        return scanned(plan, fields, condition)
    rows, entries = visible_rows(plan.snapshot, plan.cache, hashes, fields, values)
    return with_side(plan.target, rows, entries.segment, entries.offset)


def arrow_region_test(plan: StatementPlan) -> RegionTest:
    """Return the test of a plan's region; its `where` is a text."""
    condition = None
    if plan.region is not None and plan.region.where is not None:
        sides = {plan.target: plan.spec.schema.fields}
        condition = condition_of(plan.region.where, SidedColumns.of(sides, ROWS_WHERE))
    return region_test(plan, condition)


def rows_of_region(plan: StatementPlan, test: RegionTest, fields: Sequence[Field]) -> pa.Table:
    """Return fields of the visible rows of a region, with their row ids."""
    needed = [*dict.fromkeys([*fields, *test.fields])]
    if test.condition is not None:
        rows = _target_rows(plan, test.condition.text, needed)
    else:
        rows = scanned(plan, needed, None, test.predicate)
    return rows.filter(test.holds(rows))


def scanned(
    plan: StatementPlan,
    fields: Sequence[Field],
    where: Condition | None,
    predicate: Predicate | None = None,
) -> pa.Table:
    """Return fields of all visible rows that meet a condition, with their row ids.

    Files whose bounds do not meet the predicate are left out; without one it is the condition's.
    """
    invalid = invalid_rows(plan.snapshot, None)
    if predicate is None:
        predicate = where_predicate(where)
    read = plan_read(plan.snapshot, None, predicate, invalid)
    names = [field.name for field in fields] or [plan.spec.keys[0].name]
    rows = read_rows(read, names, where, with_ids=True)
    segment, offset = rows[SEGMENT], rows[OFFSET]
    return with_side(plan.target, rows.drop_columns([*_IDS]), segment, offset)


def with_side(side: str, rows: pa.Table, segment: Any, offset: Any) -> pa.Table:
    """Return rows of the table as joined rows have them, with their row ids."""
    named = rows.rename_columns([side_name(side, name) for name in rows.column_names])
    return named.append_column(SEGMENT, _column(segment)).append_column(OFFSET, _column(offset))


def _column(values: Any) -> pa.ChunkedArray:
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([pa.array(values)])


def applied(
    plan: StatementPlan, clauses: Sequence[BoundClause], rows: pa.Table
) -> Iterable[pa.Table]:
    """Yield the rows that the clauses make; the first clause that fits a row counts."""
    for clause in clauses:
        chosen = rows
        if clause.condition is not None:
            holds = clause.condition.holds(rows, numbered=False)
            chosen, rows = rows.filter(holds), rows.filter(pc.invert(holds))
        yield _made(plan, clause, chosen)
        if clause.condition is None:
            return


def _made(plan: StatementPlan, clause: BoundClause, rows: pa.Table) -> pa.Table:
    """Return the rows that one clause makes of joined rows."""
    spec = plan.spec
    columns: dict[str, Any] = {}
    is_delete = clause.clause.action == "delete"
    for field in spec.schema.fields:
        columns[field.name] = _value(plan, clause, field, rows)
    if is_delete and plan.at is not None:
        columns[spec.delta.name] = _moment(plan, rows.num_rows)
    columns[DELETED] = pa.repeat(is_delete, rows.num_rows)
    if clause.clause.action == "insert":
        columns[ENDED_SEGMENT] = pa.nulls(rows.num_rows, pa.int64())
        columns[ENDED_OFFSET] = pa.nulls(rows.num_rows, pa.int32())
    else:
        columns[ENDED_SEGMENT] = rows[SEGMENT].cast(pa.int64())
        columns[ENDED_OFFSET] = rows[OFFSET].cast(pa.int32())
    return pa.table(columns)


def _moment(plan: StatementPlan, rows: int) -> pa.Array:
    """Return the delta `at` of deletes, once a row."""
    kind = plan.spec.delta.type
    assert isinstance(kind, Atomic)
    order = encode_order(plan.at, kind, name="at")
    return of_order(np.full(rows, order), np.ones(rows, np.bool_), kind)


def _value(plan: StatementPlan, clause: BoundClause, field: Field, rows: pa.Table) -> Any:
    """Return the values of a column in the rows that a clause makes."""
    kind = arrow_type(field.type)
    if clause.clause.action == "delete":
        if field not in plan.spec.ordering:
            return pa.nulls(rows.num_rows, kind)
        return rows[side_name(plan.target, field.name)]
    if field.name in clause.values:
        return clause.values[field.name].values(rows)
    if clause.clause.action == "insert":
        return default_array(field, field.write, rows.num_rows)
    if field.generated is not None:
        # The task that writes the rows computes it of their new values
        return pa.nulls(rows.num_rows, kind)
    return rows[side_name(plan.target, field.name)]


def concatenated(spec: TableSpec, parts: Iterable[pa.Table]) -> pa.Table:
    columns = [(name, kind) for name, kind in _output_columns(spec).items()]
    empty = pa.schema(columns).empty_table()
    return pa.concat_tables([empty, *parts], promote_options="default")


def _output_columns(spec: TableSpec) -> dict[str, pa.DataType]:
    columns = {field.name: field.type for field in arrow_schema(spec.schema)}
    hidden = {DELETED: pa.bool_(), ENDED_SEGMENT: pa.int64(), ENDED_OFFSET: pa.int32()}
    return {**columns, **hidden}
