"""The rows of a merge, computed over Arrow in this process.

A merge on all keys finds the rows of the table through the key store, so that its cost follows the
source. Any other merge reads the table once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.arrays import IndexArray, UInt64Array
from opal_lake.data.rejects import EXAMPLES, json_texts, with_generated
from opal_lake.definition.conditions.condition import Condition
from opal_lake.definition.conditions.evaluate import evaluate_value
from opal_lake.definition.conditions.nodes import Every, Read, Test, Typed, all_of, may_fail
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.ordering import to_order
from opal_lake.definition.schema import OFFSET, SEGMENT, Atomic, Field, arrow_type, schema_of_arrow
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.events.bitmap import Bitmaps, Marks, add_rows
from opal_lake.read.get import visible_rows
from opal_lake.read.region import (
    RegionTest,
    distinct_rows,
    generated_partitions,
    outside_region,
    partition_sources,
)
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
    cast_column,
    concatenated,
    rows_of_region,
    scanned,
    target_fields,
    with_side,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    """A merge whose clauses are bound to the columns of the table and of the source.

    `source` has the names of joined rows. `condition` is None for a merge on all keys.
    """

    plan: StatementPlan
    source: pa.Table
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
    merge = _bound_merge(plan)
    if plan.region is not None:
        return _rows_of_overwrite(merge)
    if plan.on is None:
        return concatenated(plan.spec, applied(plan, merge.not_matched, merge.source))
    target, pairs = _by_keys(merge) if merge.condition is None else _by_condition(merge)
    joined = _joined(target, merge.source, pairs)
    unmatched = _others(merge.source, pairs.source)
    parts = [*applied(plan, merge.matched, joined), *applied(plan, merge.not_matched, unmatched)]
    if merge.not_matched_by_source:
        without_source = _others(target, pairs.target)
        parts += applied(plan, merge.not_matched_by_source, without_source)
    return concatenated(plan.spec, parts)


def touched_partitions(plan: StatementPlan) -> pa.Table:
    """Return the partitions of the source's rows."""
    source = _source(plan)
    names = {name.casefold(): name for name in source.column_names}
    partition_names = [field.name for field in plan.spec.partition_by]
    generated = generated_partitions(plan.spec)
    columns = {}
    for field in partition_sources(plan.spec):
        name = names.get(field.name.casefold())
        if name is None:
            # Only a generated column may be absent
            columns[field.name] = pa.nulls(source.num_rows, arrow_type(field.type))
        else:
            columns[field.name] = cast_column(source[name], field)
    rows = with_generated(pa.table(columns), generated)
    return distinct_rows(rows.select(partition_names))


def _rows_of_overwrite(merge: _Merge) -> pa.Table:
    """Return the rows of an overwrite: the source's, and deletes of others."""
    plan = merge.plan
    test = arrow_region_test(plan)
    target, pairs = _by_keys(merge)
    parts = [
        *applied(plan, merge.matched, _joined(target, merge.source, pairs)),
        *applied(plan, merge.not_matched, _others(merge.source, pairs.source)),
    ]
    _check_in_region(plan, test, parts)
    deletes = merge.not_matched_by_source
    in_region = rows_of_region(plan, test, target_fields(plan, deletes))
    marks: Bitmaps = {}
    add_rows(marks, target[SEGMENT].to_numpy(), target[OFFSET].to_numpy())
    is_replaced = Marks.of(marks).at(in_region[SEGMENT].to_numpy(), in_region[OFFSET].to_numpy())
    parts += applied(plan, deletes, in_region.filter(pa.array(~is_replaced)))
    return concatenated(plan.spec, parts)


def _check_in_region(plan: StatementPlan, test: RegionTest, parts: Sequence[pa.Table]) -> None:
    """Raise InvalidInputError for new rows that do not meet the condition."""
    if test.condition is None:
        return
    outside = 0
    examples: list[str] = []
    keys = [key.name for key in plan.spec.keys]
    for rows in parts:
        names = plan.spec.schema.names
        # The task that writes the rows computes generated columns only later
        complete = with_generated(rows.select(names), plan.spec.generated)
        sided = complete.rename_columns([side_name(plan.target, n) for n in names])
        others = rows.filter(pc.invert(test.holds(sided)))
        outside += others.num_rows
        missing = EXAMPLES - len(examples)
        examples += json_texts(others.select(keys).slice(0, missing))
    if outside:
        raise outside_region(test.condition.text, count_text(outside, "new row"), examples)


def _source(plan: StatementPlan) -> pa.Table:
    """Return the source with columns that clauses can use."""
    if not isinstance(plan.source, pa.Table):
        raise InvalidInputError(
            f"the source of the statement is a {type(plan.source).__name__}; pass a pyarrow Table"
        )
    plan.check_source(plan.source.column_names)
    return plan.source


def _bound_merge(plan: StatementPlan) -> _Merge:
    source = _source(plan)
    fields = {
        plan.target: plan.spec.schema.fields,
        plan.other: schema_of_arrow(source.schema).fields,
    }
    of_target = {plan.target: fields[plan.target]}
    of_source = {plan.other: fields[plan.other]}
    condition = None
    if plan.on is not None and not is_on_keys(plan):
        condition = condition_of(plan.on, SidedColumns.of(fields, ON))
    if plan.latest:
        source = _latest(source, plan.spec)
    return _Merge(
        plan=plan,
        source=source.rename_columns(
            [side_name(plan.other, name) for name in source.column_names]
        ).combine_chunks(),
        condition=condition,
        matched=[bound(clause, plan, fields) for clause in plan.of("matched")],
        not_matched=[bound(clause, plan, of_source) for clause in plan.of("not matched")],
        not_matched_by_source=[
            bound(clause, plan, of_target) for clause in plan.of("not matched by source")
        ],
    )


def _latest(source: pa.Table, spec: TableSpec) -> pa.Table:
    """Return the latest row of each key, by delta, tie-breaks and place."""
    fields = [*spec.keys, spec.delta, *spec.tie_break]
    missing = [field.name for field in fields if field.name not in source.column_names]
    if missing:
        raise InvalidInputError(
            f"duplicates='latest' needs the columns {', '.join(missing)} in the source; add them, "
            "or leave one row of each key in the source"
        )
    hashes = hash_keys([cast_column(source[key.name], key) for key in spec.keys], _key_types(spec))
    order: list[npt.NDArray[np.int64]] = [np.arange(source.num_rows)]
    for field in reversed([spec.delta, *spec.tie_break]):
        assert isinstance(field.type, Atomic)
        values, is_valid = to_order(cast_column(source[field.name], field), field.type)
        # A null comes before all values
        order += [values, is_valid.astype(np.int64)]
    rows = np.lexsort((*order, hashes[:, 1], hashes[:, 0]))
    ordered = hashes[rows]
    is_last = np.ones(len(rows), np.bool_)
    is_last[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return source.take(pa.array(np.sort(rows[is_last])))


def _key_types(spec: TableSpec) -> list[Atomic]:
    return [field.type for field in spec.keys if isinstance(field.type, Atomic)]


def _by_keys(merge: _Merge) -> tuple[pa.Table, _Pairs]:
    """Return the rows of the table, and the pairs of equal keys.

    They are the rows of the source's keys, found by the key store, unless clauses for rows without
    a source need all rows.
    """
    plan, spec = merge.plan, merge.plan.spec
    columns = [cast_column(merge.source[side_name(plan.other, k.name)], k) for k in spec.keys]
    has_key = np.ones(merge.source.num_rows, np.bool_)
    for column in columns:
        has_key &= pc.is_valid(column).to_numpy()
    positions = np.flatnonzero(has_key)
    known = [column.take(pa.array(positions)) for column in columns]
    hashes = hash_keys(known, _key_types(spec))
    if merge.not_matched_by_source and plan.region is None:
        fields = list(dict.fromkeys([*merge.fields, *spec.keys]))
        target = scanned(plan, fields, None)
        keys = [target[side_name(plan.target, key.name)] for key in spec.keys]
        target_hashes = hash_keys(keys, _key_types(spec))
    else:
        fields = target_fields(plan, merge.matched)
        values = {key.name: column for key, column in zip(spec.keys, known, strict=True)}
        rows, entries = visible_rows(plan.snapshot, plan.cache, hashes, fields, values)
        target = with_side(plan.target, rows, entries.segment, entries.offset)
        target_hashes = np.stack([entries.high, entries.low], axis=1)
    pairs = _equal_hashes(target_hashes, hashes)
    return target, _Pairs(target=pairs.target, source=positions[pairs.source])


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
            f"{plan.target!r} and one of {plan.other!r}; add one, or run the merge on Spark"
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
    is_other = np.ones(rows.num_rows, np.bool_)
    is_other[positions] = False
    return rows.filter(pa.array(is_other))
