"""The rows of a merge, computed over Arrow in this process.

A merge on all keys finds the rows of the table through the key store, so that its cost follows the
source. Any other merge reads the table once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.arrays import BoolArray, IndexArray, UInt64Array
from opal_lake.data.columns import source_column, value_codes
from opal_lake.data.fitted_rows import fitted_rows, in_table_spelling
from opal_lake.data.rejects import EXAMPLES, json_texts
from opal_lake.definition.added_columns import plain_field
from opal_lake.definition.conditions.condition import Condition
from opal_lake.definition.conditions.evaluate import evaluate_value
from opal_lake.definition.conditions.nodes import Every, Read, Test, Typed, all_of, may_fail
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.ordering import INTEGER_TYPES, to_order
from opal_lake.definition.schema import OFFSET, SEGMENT, Atomic, Field, arrow_type, schema_of_arrow
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.events.bitmap import Bitmaps, Marks, add_rows
from opal_lake.read.get import visible_rows
from opal_lake.read.region import RegionTest, distinct_rows, outside_region
from opal_lake.read.statement import (
    ON,
    SidedColumns,
    StatementPlan,
    condition_of,
    is_on_keys,
    side_name,
)
from opal_lake.read.statement_rows import (
    BoundClause,
    applied,
    arrow_region_test,
    bound,
    concatenated,
    rows_of_region,
    scanned,
    target_fields,
    with_side,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    """A merge whose clauses are bound to the columns of the table and of the source.

    `source` has the names of joined rows. `condition` is None if rows match by equal keys, which
    the source has in the table's types in `keys`.
    """

    plan: StatementPlan
    source: pa.Table
    keys: Sequence[pa.ChunkedArray]
    condition: Condition | None
    matched: Sequence[BoundClause]
    not_matched: Sequence[BoundClause]
    not_matched_by_source: Sequence[BoundClause]

    @property
    def fields(self) -> list[Field]:
        """The columns of the table that the merge reads."""
        needed = target_fields(self.plan, [*self.matched, *self.not_matched_by_source])
        if self.condition is None:
            return needed
        named = set(self.condition.column_names)
        fields = []
        for field in self.plan.spec.schema.fields:
            is_tested = side_name(self.plan.target, field.name) in named
            if field in needed or is_tested:
                fields.append(field)
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """The positions of rows of the table and of the source that match each other."""

    target: IndexArray
    source: IndexArray


def rows_of_merge(plan: StatementPlan) -> pa.Table:
    """Return the rows that a merge adds, each with the row that it ends.

    Without a condition to match rows, all rows of the source are inserts.
    """
    plan.check()
    if plan.region is not None:
        return _rows_of_overwrite(_fitted(plan))
    if plan.on is None:
        merge = _fitted(plan)
        return concatenated(plan.spec, applied(plan, merge.not_matched, merge.source))
    merge = _bound_merge(plan)
    target, pairs = _by_keys(merge) if merge.condition is None else _by_condition(merge)
    parts = [*_rows_of_source(merge, target, pairs)]
    if merge.not_matched_by_source:
        without_source = _others(target, pairs.target)
        parts += applied(plan, merge.not_matched_by_source, without_source)
    return concatenated(plan.spec, parts)


def touched_partitions(plan: StatementPlan) -> pa.Table:
    """Return the partitions of the source's rows."""
    rows = fitted_rows(_given_source(plan), plan.spec)
    return distinct_rows(rows.select([field.name for field in plan.spec.partition_by]))


def _rows_of_overwrite(merge: _Merge) -> pa.Table:
    """Return the rows of an overwrite: the source's, and deletes of others."""
    plan = merge.plan
    test = arrow_region_test(plan)
    _check_in_region(merge, test)
    target, pairs = _by_keys(merge)
    parts = [*_rows_of_source(merge, target, pairs)]
    deletes = merge.not_matched_by_source
    in_region = rows_of_region(plan, test, target_fields(plan, deletes))
    marks: Bitmaps = {}
    add_rows(marks, target[SEGMENT].to_numpy(), target[OFFSET].to_numpy())
    is_replaced = Marks.of(marks).at(in_region[SEGMENT].to_numpy(), in_region[OFFSET].to_numpy())
    parts += applied(plan, deletes, in_region.filter(pa.array(~is_replaced)))
    return concatenated(plan.spec, parts)


def _rows_of_source(merge: _Merge, target: pa.Table, pairs: _Pairs) -> Iterator[pa.Table]:
    """Yield the rows that clauses make of the source's rows."""
    yield from applied(merge.plan, merge.matched, _joined(target, merge.source, pairs))
    yield from applied(merge.plan, merge.not_matched, _others(merge.source, pairs.source))


def _check_in_region(merge: _Merge, test: RegionTest) -> None:
    """Raise InvalidInputError for rows of an overwrite that do not meet its condition."""
    plan = merge.plan
    if test.condition is None:
        return
    names = plan.spec.schema.names
    rows = merge.source.rename_columns([side_name(plan.target, name) for name in names])
    outside = rows.filter(pc.invert(test.holds(rows)))
    if outside.num_rows:
        keys = [key.name for key in plan.spec.keys]
        first = outside.slice(0, EXAMPLES).rename_columns(names).select(keys)
        count = count_text(outside.num_rows, "new row")
        raise outside_region(test.condition.text, count, json_texts(first))


def _given_source(plan: StatementPlan) -> pa.Table:
    if not isinstance(plan.source, pa.Table):
        raise InvalidInputError(
            f"the source of the statement is a {type(plan.source).__name__}; pass a pyarrow Table"
        )
    return plan.source


def _fitted(plan: StatementPlan) -> _Merge:
    """Bind an insert or an overwrite, whose source has whole rows of the table."""
    source = fitted_rows(_given_source(plan), plan.spec).combine_chunks()
    plan = replace(plan, source=source)
    sides = {plan.target: plan.spec.schema.fields, plan.other: plan.spec.schema.fields}
    return _of_clauses(plan, sides, {}, [source[key.name] for key in plan.spec.keys])


def _bound_merge(plan: StatementPlan) -> _Merge:
    """Bind a merge, whose source has any columns.

    Only the columns that it reads have to be of types that a table can have.
    """
    source = in_table_spelling(_given_source(plan), plan.spec)
    plan.check_source(source.column_names)
    fields, faults = _source_fields(source, plan)
    if plan.latest:
        source = _latest(source, plan.spec, fields)
    plan = replace(plan, source=source)
    sides = {plan.target: plan.spec.schema.fields, plan.other: fields}
    return _of_clauses(plan, sides, faults, _keys(plan, fields))


def _of_clauses(
    plan: StatementPlan,
    sides: Mapping[str, Sequence[Field]],
    faults: Mapping[str, str],
    keys: Sequence[pa.ChunkedArray] | None,
) -> _Merge:
    """Bind the clauses of a plan; keep the columns of its source that they read."""
    of_target = {plan.target: sides[plan.target]}
    of_source = {plan.other: sides[plan.other]}
    condition = None
    if keys is None:
        condition = condition_of(plan.on, SidedColumns.of(sides, ON, faults))
    matched = [bound(clause, plan, sides, faults) for clause in plan.of("matched")]
    not_matched = [bound(clause, plan, of_source, faults) for clause in plan.of("not matched")]
    others = [bound(clause, plan, of_target) for clause in plan.of("not matched by source")]
    named: set[str] = set() if condition is None else set(condition.column_names)
    for clause in (*matched, *not_matched):
        named.update(clause.column_names)
    columns: dict[str, pa.ChunkedArray] = {}
    for field in sides[plan.other]:
        name = side_name(plan.other, field.name)
        if name in named:
            # In one chunk, which is faster to take rows from
            columns[name] = source_column(plan.source, field, plan.spec).combine_chunks()
    return _Merge(
        plan=plan,
        source=_table(columns, plan.source.num_rows),
        keys=keys or (),
        condition=condition,
        matched=matched,
        not_matched=not_matched,
        not_matched_by_source=others,
    )


def _table(columns: Mapping[str, pa.ChunkedArray], rows: int) -> pa.Table:
    """Return columns as a table, which has a column of nulls if there are none."""
    return pa.table(columns or {"": pa.nulls(rows)})


def _source_fields(source: pa.Table, plan: StatementPlan) -> tuple[list[Field], dict[str, str]]:
    """Return the columns of a source as fields, and why others are not.

    A column without a type has that of the table's column.
    """
    own = {field.name: field for field in plan.spec.schema.fields}
    fields: list[Field] = []
    faults: dict[str, str] = {}
    for column in source.schema:
        if pa.types.is_null(column.type) and column.name in own:
            fields.append(own[column.name])
            continue
        try:
            fields += schema_of_arrow(pa.schema([plain_field(column)])).fields
        except InvalidInputError as error:
            faults[side_name(plan.other, column.name).casefold()] = str(error)
    return fields, faults


def _keys(plan: StatementPlan, fields: Sequence[Field]) -> list[pa.ChunkedArray] | None:
    """Return the source's keys in the table's types, if rows match by equal keys.

    None if the condition is another one, or if equality in these types may differ from its own.
    """
    if not is_on_keys(plan):
        return None
    given = {field.name: field for field in fields}
    columns: list[pa.ChunkedArray] = []
    for key in plan.spec.keys:
        field = given.get(key.name)
        if field is None:
            return None
        if field.type == key.type:
            columns.append(source_column(plan.source, key, plan.spec))
        elif _is_integer(field) and _is_integer(key):
            columns.append(_in_range(plan.source[key.name], key))
        else:
            return None
    return columns


def _is_integer(field: Field) -> bool:
    return isinstance(field.type, Atomic) and field.type.name in INTEGER_TYPES


def _in_range(values: pa.ChunkedArray, key: Field) -> pa.ChunkedArray:
    """Return integers in the type of a key; null for one that no key can be."""
    kind = arrow_type(key.type)
    if kind.bit_width >= values.type.bit_width:
        return values.cast(kind)
    limit = 1 << (kind.bit_width - 1)
    fits = pc.and_(pc.greater_equal(values, -limit), pc.less(values, limit))
    return pc.if_else(fits, values, None).cast(kind)


def _latest(source: pa.Table, spec: TableSpec, fields: Sequence[Field]) -> pa.Table:
    """Return the latest row of each key, by delta, tie-breaks and place.

    Rows without a key all remain.
    """
    given = {field.name: field for field in fields}
    missing = [field.name for field in spec.ordering if field.name not in given]
    if missing:
        raise InvalidInputError(
            f"duplicates='latest' needs the columns {', '.join(missing)} in the source, of types "
            "that a table can have; add them, or leave one row of each key in the source"
        )
    keys = [source_column(source, given[key.name], spec) for key in spec.keys]
    codes = value_codes(keys)
    is_keyless = ~_has_key(keys)
    # Each has a number of its own
    codes[is_keyless] = -1 - np.flatnonzero(is_keyless)
    order: list[npt.NDArray[np.int64]] = [np.arange(source.num_rows)]
    for field in reversed([spec.delta, *spec.tie_break]):
        assert isinstance(field.type, Atomic)
        values, is_valid = to_order(source_column(source, field, spec), field.type)
        # A null comes before all values
        order += [values, is_valid.astype(np.int64)]
    rows = np.lexsort((*order, codes))
    ordered = codes[rows]
    is_last = np.ones(len(rows), np.bool_)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return source.filter(pa.array(_mask_of(rows[is_last], len(rows))))


def _mask_of(positions: IndexArray, rows: int) -> BoolArray:
    is_chosen = np.zeros(rows, np.bool_)
    is_chosen[positions] = True
    return is_chosen


def _by_keys(merge: _Merge) -> tuple[pa.Table, _Pairs]:
    """Return the rows of the table, and the pairs of equal keys.

    They are the rows of the source's keys, found by the key store, unless clauses for rows without
    a source need all rows.
    """
    plan, spec = merge.plan, merge.plan.spec
    has_key = _has_key(merge.keys)
    positions = np.flatnonzero(has_key)
    known = merge.keys
    if not has_key.all():
        known = [column.filter(pa.array(has_key)) for column in merge.keys]
    hashes = hash_keys(known, spec.key_types)
    if merge.not_matched_by_source and plan.region is None:
        fields = list(dict.fromkeys([*merge.fields, *spec.keys]))
        target = scanned(plan, fields, None)
        keys = [target[side_name(plan.target, key.name)] for key in spec.keys]
        target_hashes = hash_keys(keys, spec.key_types)
    else:
        fields = target_fields(plan, merge.matched)
        values = {key.name: column for key, column in zip(spec.keys, known, strict=True)}
        rows, entries = visible_rows(plan.snapshot, plan.cache, hashes, fields, values)
        target = with_side(plan.target, rows, entries.segment, entries.offset)
        target_hashes = np.stack([entries.high, entries.low], axis=1)
    pairs = _equal_hashes(target_hashes, hashes)
    return target, _Pairs(target=pairs.target, source=positions[pairs.source])


def _has_key(keys: Sequence[pa.ChunkedArray]) -> BoolArray:
    """Return which rows have no null in their key."""
    has_key = np.ones(len(keys[0]), np.bool_)
    for column in keys:
        has_key &= pc.is_valid(column).to_numpy()
    return has_key


def _equal_hashes(target: UInt64Array, source: UInt64Array) -> _Pairs:
    columns = ["high", "low"]
    return _equal(
        pa.table([pa.array(target[:, 0]), pa.array(target[:, 1])], names=columns),
        pa.table([pa.array(source[:, 0]), pa.array(source[:, 1])], names=columns),
    )


def _equal(target: pa.Table, source: pa.Table) -> _Pairs:
    """Return the pairs of rows that are equal in all columns; null equals nothing."""
    names = target.column_names
    left = target.append_column("_t", pa.array(np.arange(target.num_rows)))
    right = source.append_column("_s", pa.array(np.arange(source.num_rows)))
    pairs = left.join(right, keys=names, join_type="inner").select(["_t", "_s"]).combine_chunks()
    return _Pairs(target=pairs["_t"].to_numpy(), source=pairs["_s"].to_numpy())


def _by_condition(merge: _Merge) -> tuple[pa.Table, _Pairs]:
    """Return the rows of the table, and the pairs for which the condition is true.

    The condition has an equality of the two sides, by which rows are joined. The whole condition is
    tested on the joined rows.
    """
    plan, condition = merge.plan, merge.condition
    assert condition is not None
    target = scanned(plan, merge.fields, None)
    equalities = _equalities(condition.typed, plan)
    if not equalities:
        raise InvalidInputError(
            f"the merge condition {condition.text!r} has no equality between a column of "
            f"{plan.target!r} and one of {plan.other!r} that are not floating-point; cast the "
            "source's column, add an equality, or run the merge on Spark"
        )
    names = [str(number) for number in range(len(equalities))]
    left = pa.table([_evaluated(pair[0], target) for pair in equalities], names=names)
    right = pa.table([_evaluated(pair[1], merge.source) for pair in equalities], names=names)
    candidates = _equal(left, right)
    holds = condition.holds(_joined(target, merge.source, candidates), numbered=False)
    is_pair = np.asarray(holds, np.bool_)
    return target, _Pairs(target=candidates.target[is_pair], source=candidates.source[is_pair])


def _equalities(condition: Typed, plan: StatementPlan) -> list[tuple[Typed, Typed]]:
    """Return the equalities that must hold, each as the table's side and the source's."""
    parts = condition.parts if isinstance(condition, Every) else (condition,)
    equalities: list[tuple[Typed, Typed]] = []
    for part in parts:
        # Doubles are not joined: NaN equals NaN, and 0.0 equals -0.0
        if not isinstance(part, Test) or part.op != "=" or part.left.kind.is_binary_fraction:
            continue
        # A row whose value fails would match nothing, without an error
        if may_fail(part):
            continue
        left, right = _side_of(part.left, plan), _side_of(part.right, plan)
        if (left, right) == (plan.target, plan.other):
            equalities.append((part.left, part.right))
        elif (left, right) == (plan.other, plan.target):
            equalities.append((part.right, part.left))
    return equalities


def _side_of(value: Typed, plan: StatementPlan) -> str | None:
    """Return the side whose columns an expression reads; None for none or both."""
    sides: set[str] = set()
    for node in all_of(value):
        if isinstance(node, Read):
            is_of_target = node.path[0].startswith(side_name(plan.target, ""))
            sides.add(plan.target if is_of_target else plan.other)
    return sides.pop() if len(sides) == 1 else None


def _evaluated(value: Typed, rows: pa.Table) -> pa.ChunkedArray:
    chunks = [evaluate_value(value, batch)[0] for batch in rows.to_batches()]
    if not chunks:
        return pa.chunked_array([pa.nulls(0, arrow_type(Atomic(name=value.kind.atomic)))])
    return pa.chunked_array(chunks)


def _joined(target: pa.Table, source: pa.Table, pairs: _Pairs) -> pa.Table:
    """Return the columns of both sides for pairs of rows."""
    rows = target.take(pa.array(pairs.target))
    others = source.take(pa.array(pairs.source))
    for name in others.column_names:
        rows = rows.append_column(name, others[name])
    return rows


def _others(rows: pa.Table, positions: IndexArray) -> pa.Table:
    """Return the rows at no position."""
    is_chosen = _mask_of(positions, rows.num_rows)
    return rows.filter(pa.array(~is_chosen))
