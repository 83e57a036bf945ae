"""The region of an overwrite: the rows of a table that end, unless new rows replace them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from opal_lake.data.columns import value_codes
from opal_lake.data.prune import And, Comparable, In, IsNull, Or, Predicate
from opal_lake.definition.conditions.condition import Condition
from opal_lake.definition.key_hash import given_values
from opal_lake.definition.ordering import INTEGER_TYPES, of_order, to_order
from opal_lake.definition.schema import Atomic, Field, arrow_type
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.read import narrowed, plan_read, read_rows
from opal_lake.read.where import where_predicate

_TIMES = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The rows that meet `where`, the rows of some partitions, or all rows.

    `where` is a text, or a Column of Spark. `partitions` has partition columns of the table, and a
    row of values for each partition. With `is_of_source`, the partitions are those of the source's
    rows, which only the engine knows.
    """

    where: Any = None
    partitions: pa.Table | None = None
    is_of_source: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTest:
    """The test whether rows of a table are in a region.

    The rows have the names of joined rows: `side` and a point before the name of each column.
    Without a condition and partitions, all rows are in the region.
    """

    side: str
    condition: Condition | None = None
    partitions: pa.Table | None = None
    spec: TableSpec

    @property
    def fields(self) -> list[Field]:
        """The columns of the table that the test reads."""
        names: set[str] = set()
        if self.condition is not None:
            names = {name.removeprefix(f"{self.side}.") for name in self.condition.column_names}
        if self.partitions is not None:
            names = {*self.partitions.column_names}
        return [field for field in self.spec.schema.fields if field.name in names]

    @property
    def predicate(self) -> Predicate | None:
        """The part of the test that bounds of files can answer."""
        if self.partitions is None:
            return where_predicate(self.condition)
        return _partition_predicate(self.partitions, self.spec)

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        """Return a mask of the rows in the region."""
        if self.condition is not None:
            return self.condition.holds(rows, numbered=False)
        if self.partitions is None:
            return pa.repeat(True, rows.num_rows)
        names = self.partitions.column_names
        own = rows.select([f"{self.side}.{name}" for name in names]).rename_columns(names)
        # Equal codes are equal values; a null is a value like any other
        together = pa.concat_tables([self.partitions, own])
        codes = value_codes([together[name] for name in names])
        known = self.partitions.num_rows
        return pa.array(np.isin(codes[known:], codes[:known]))


def _partition_predicate(partitions: pa.Table, spec: TableSpec) -> Predicate:
    """Return a predicate on the values of each column, in any combination."""
    columns: list[Predicate] = []
    for name in partitions.column_names:
        field = spec.schema.field(name)
        values = partitions[name].combine_chunks()
        parts: list[Predicate] = [In(field_id=field.id, values=_bound_values(values, field))]
        if values.null_count:
            parts.append(IsNull(field_id=field.id))
        columns.append(Or(parts=tuple(parts)))
    return And(parts=tuple(columns))


def _bound_values(values: pa.Array, field: Field) -> tuple[Comparable, ...]:
    """Return the distinct values of a column in the form of bounds, without null."""
    assert isinstance(field.type, Atomic)
    known = values.drop_null().unique()
    if field.type.name in (*INTEGER_TYPES, *_TIMES):
        words, _ = to_order(pa.chunked_array([known]), field.type)
        return tuple(words.tolist())
    if field.type.name == "binary":
        return tuple(value.hex() for value in known.to_pylist())
    return tuple(known.to_pylist())


def partitions_of_values(given: Mapping[str, Any], spec: TableSpec) -> pa.Table:
    """Return the one partition that a user names by values of partition columns.

    Not all partition columns have to be named. Dates and timestamps may be ISO 8601 texts.
    """
    fields = {field.name: field for field in spec.partition_by}
    if not fields:
        raise InvalidInputError(
            "the table has no partition columns; delete its rows by delete(where=...)"
        )
    shown = ", ".join(fields)
    if not given:
        raise InvalidInputError(
            f"drop_partition needs a value of at least one partition column ({shown}); to delete "
            "all rows, use delete()"
        )
    columns: dict[str, pa.Array] = {}
    for name, value in given.items():
        if name not in fields:
            raise InvalidInputError(
                f"{name!r} is not a partition column of the table; its partition columns are "
                f"{shown}. Delete rows by other columns with delete(where=...)"
            )
        columns[name] = _value_of(value, fields[name])
    return pa.table(columns)


def _value_of(value: Any, field: Field) -> pa.Array:
    """Return a user's value of a partition column as an array in the column's type."""
    kind = field.type
    assert isinstance(kind, Atomic)
    if value is None:
        return pa.nulls(1, arrow_type(kind))
    values = given_values([value], kind, f"partition column {field.name}")
    if kind.name in (*INTEGER_TYPES, *_TIMES):
        return of_order(values.to_numpy(), np.ones(1, np.bool_), kind)
    return values


def require_partitions(spec: TableSpec) -> None:
    """Raise InvalidInputError for a table without partition columns."""
    if not spec.partition_by:
        raise InvalidInputError(
            "partitions='dynamic' replaces the partitions of the new rows, and the table has no "
            "partition columns; use where=..., or leave partitions out to replace all rows"
        )


def outside_region(where: str, rows: str, keys: Sequence[str]) -> InvalidInputError:
    """Return the error for new rows that do not meet the condition of an overwrite."""
    return InvalidInputError(
        f"the overwrite changed nothing: of the source, {rows} would not meet "
        f"where={where!r}; leave them out, or widen the condition. Keys, for example: "
        f"{', '.join(keys)}"
    )


def distinct_rows(rows: pa.Table) -> pa.Table:
    """Return each row once."""
    if not rows.num_rows:
        return rows
    codes = value_codes([rows[name] for name in rows.column_names])
    _, first = np.unique(codes, return_index=True)
    return rows.take(pa.array(np.sort(first)))


def region_rows_of_segments(
    test: RegionTest, snapshot: Snapshot, segments: frozenset[int], limit: int
) -> pa.Table:
    """Return the keys of at most `limit` visible rows of segments in a region."""
    invalid = narrowed(snapshot, segments, invalid_rows(snapshot, None))
    plan = plan_read(snapshot, None, test.predicate, invalid)
    keys = [key.name for key in snapshot.spec.keys]
    fields = [field.name for field in test.fields]
    is_whole = not fields
    rows = read_rows(plan, [*dict.fromkeys([*keys, *fields])], limit=limit if is_whole else None)
    sided = rows.rename_columns([f"{test.side}.{name}" for name in rows.column_names])
    return rows.filter(test.holds(sided)).select(keys).slice(0, limit)
