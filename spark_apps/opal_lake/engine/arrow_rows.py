"""Rows in memory on their way into a table."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.columns import with_nulls
from opal_lake.data.rejects import BAD
from opal_lake.definition.added_columns import unknown_columns
from opal_lake.definition.schema import DELETED, RESERVED_PREFIX, arrow_type, type_name
from opal_lake.definition.table_spec import TableSpec, delete_condition
from opal_lake.engine.executor import ReadAs
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.source import Files, Jdbc


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowRows:
    """Rows as a caller gives them, with those that delete their key: a source to ingest."""

    given: pa.Table | Sequence[pa.RecordBatch]
    deleted: pa.Array | pa.ChunkedArray | None = None
    ignores_new_columns: bool = False

    @classmethod
    def of(cls, given: pa.Table | Iterable[pa.RecordBatch], how: ReadAs) -> "ArrowRows":
        """Batches are read once, and looked at twice."""
        rows = given if isinstance(given, pa.Table) else _batches(given)
        if isinstance(rows, pa.Table):
            schema, number = rows.schema, rows.num_rows
        else:
            schema, number = _schema_of(rows), sum(batch.num_rows for batch in rows)
        _refuse_doubled(schema.names)
        deleted = None if how.deleted is None else _marker(how.deleted, number)
        return cls(given=rows, deleted=deleted, ignores_new_columns=how.ignores_new_columns)

    def new_columns(self, spec: TableSpec) -> pa.Schema:
        """Those that the table lacks."""
        own = [
            field
            for field in self._table(spec).schema
            if not field.name.startswith(RESERVED_PREFIX)
        ]
        return unknown_columns(spec.schema, pa.schema(own))

    def rows(self, spec: TableSpec, number: int = 0) -> pa.Table:
        """Return them with the delete marker and the table's columns.

        A column that was added to the table later may be missing, and is null then.
        """
        rows, deleted = self._fitted(spec), self.deleted
        if deleted is None and DELETED in rows.column_names:
            return rows
        condition = delete_condition(spec)
        if deleted is None:
            if condition is None:
                return rows
            return rows.append_column(DELETED, condition.holds(rows))
        if condition is None:
            raise InvalidInputError(
                "rows are marked as deletes, but the table has no delete condition; create it with deletes=\"op = 'D'\""
            )
        return rows.append_column(DELETED, deleted)

    def split(self, spec: TableSpec, number: int, column: str) -> "ArrowSplit":
        """Return them, to be parted by the texts in a column."""
        return ArrowSplit(rows=self.rows(spec), column=column)

    def _fitted(self, spec: TableSpec) -> pa.Table:
        rows, names = self._table(spec), spec.schema.names
        if self.ignores_new_columns:
            rows = rows.drop_columns(self.new_columns(spec).names)
        given = frozenset(rows.column_names)
        _refuse_other_case(given, names)
        unknown = given - {DELETED, *names}
        _refuse_reserved(unknown)
        missing = [field for field in spec.schema.fields if field.name not in given]
        if unknown or any(not spec.schema.is_added(field) for field in missing):
            raise InvalidInputError(
                _misfit(
                    sorted(unknown),
                    [field.name for field in missing if not spec.schema.is_added(field)],
                )
            )
        return with_nulls(rows, missing)

    def _table(self, spec: TableSpec) -> pa.Table:
        if isinstance(self.given, pa.Table):
            return self.given
        return (
            pa.Table.from_batches(self.given)
            if self.given
            else pa.schema(
                [(field.name, arrow_type(field.type)) for field in spec.schema.fields]
            ).empty_table()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowSplit:
    """Rows in memory."""

    rows: pa.Table
    column: str

    def values(self, most: int) -> Mapping[str | None, int]:
        return {
            _text(pair["values"]): pair["counts"]
            for pair in pc.value_counts(self.rows[self.column]).to_pylist()
        }

    def part(
        self, chosen: Collection[str | None], bad: Mapping[str | None, str], spec: TableSpec
    ) -> pa.Table:
        texts = [_text(value) for value in self.rows[self.column].to_pylist()]
        chosen_rows = self.rows.filter(pa.array([text in chosen for text in texts], pa.bool_()))
        kept = _with_added(chosen_rows, spec)
        if not bad:
            return kept
        return kept.append_column(
            BAD, pa.array([bad.get(text) for text in texts if text in chosen], pa.string())
        )


def _with_added(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Give rows the columns that were added to the table and that they lack: null."""
    given = frozenset(rows.column_names)
    added = [field for field in spec.schema.fields if spec.schema.is_added(field)]
    return with_nulls(rows, [field for field in added if field.name not in given])


def _text(value: object) -> str | None:
    return value.isoformat() if isinstance(value, date) else None if value is None else str(value)


def _batches(given: Any) -> list[pa.RecordBatch]:
    """Return record batches; InvalidInputError for rows of another type."""
    if isinstance(given, pa.RecordBatch | str | bytes) or not isinstance(given, Iterable):
        raise InvalidInputError(_not_rows(given))
    batches = [*given]
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidInputError(_not_rows(given, batch))
    return batches


def _schema_of(batches: Sequence[pa.RecordBatch]) -> pa.Schema:
    """Return the schema that all batches have; InvalidInputError where one has another."""
    if not batches:
        return pa.schema([])
    first = batches[0].schema
    for number, batch in enumerate(batches[1:], 2):
        if batch.schema.equals(first):
            continue
        raise InvalidInputError(
            f"batch {number} of the rows has other columns than batch 1: "
            f"{_difference(first, batch.schema)}; give all batches the same columns, of the same "
            "types and in the same order"
        )
    return first


def _difference(first: pa.Schema, other: pa.Schema) -> str:
    if first.names != other.names:
        return f"{', '.join(map(repr, other.names))} after {', '.join(map(repr, first.names))}"
    field, before = next(pair for pair in zip(other, first, strict=True) if pair[0] != pair[1])
    kind, kind_before = type_name(field.type), type_name(before.type)
    if kind == kind_before:
        kind, kind_before = str(field), str(before)
    return f"{field.name!r} is {kind} after {kind_before}"


def _refuse_doubled(names: Sequence[str]) -> None:
    for name, number in Counter(names).items():
        if number > 1:
            raise InvalidInputError(
                f"the rows have {number} columns {name!r}; keep one, and drop or rename the others"
            )


def _refuse_other_case(given: Collection[str], names: Sequence[str]) -> None:
    """Raise for a column whose name differs from a table's column in case only."""
    own = {name.casefold(): name for name in names}
    for name in sorted(given):
        known = own.get(name.casefold(), name)
        if known == name:
            continue
        advice = "leave one of them out" if known in given else f"rename it to {known!r}"
        raise InvalidInputError(
            f"column {name!r} of the rows differs in case only from column {known!r} of the "
            f"table; {advice}"
        )


def _refuse_reserved(names: Collection[str]) -> None:
    """Raise for a column whose name the format keeps for itself."""
    reserved = sorted(name for name in names if name.casefold().startswith(RESERVED_PREFIX))
    if reserved:
        raise InvalidInputError(
            f"column {reserved[0]!r} of the rows: names that begin with {RESERVED_PREFIX!r} are "
            "kept for the format; rename it or drop it"
        )


def _marker(deleted: Any, rows: int) -> pa.Array | pa.ChunkedArray:
    """Return which rows delete their key, for each row one value."""
    advice = "give a list or an Arrow array with True or False for each row"
    if isinstance(deleted, pa.Array | pa.ChunkedArray):
        marker = deleted
    else:
        try:
            marker = pa.array(deleted)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"deleted, of type {type(deleted).__name__}, does not hold booleans; {advice}"
            ) from error
    if not pa.types.is_boolean(marker.type) and not pa.types.is_null(marker.type):
        raise InvalidInputError(f"deleted holds {type_name(marker.type)} values; {advice}")
    if len(marker) != rows:
        raise InvalidInputError(
            f"deleted has {count_text(len(marker), 'value')}, and there are "
            f"{count_text(rows, 'row')}; {advice}"
        )
    return marker.cast(pa.bool_())


def _not_rows(rows: object, member: object = None) -> str:
    """Return what is wrong with rows of another type, and how to convert them."""
    kind = type(rows)
    package = kind.__module__.partition(".")[0]
    name = kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"
    if isinstance(rows, list | tuple):
        name += f" of {type(member).__name__}"
    advice = "pyarrow.Table.from_pylist([{'id': 1}], schema=...) makes a table"
    if isinstance(rows, pa.RecordBatch):
        advice = "write [rows]"
    elif isinstance(member, Mapping):
        advice = "convert them with pyarrow.Table.from_pylist(rows, schema=...)"
    elif name == "pandas.DataFrame":
        advice = "convert them with pyarrow.Table.from_pandas(rows, preserve_index=False)"
    elif isinstance(rows, Files | Jdbc):
        advice = "OpalTable reads files and databases, through Spark"
    elif hasattr(rows, "__arrow_c_stream__"):
        advice = "convert them with pyarrow.table(rows)"
    return (
        f"rows are of type {name}, and an ingest takes a pyarrow.Table or record batches; {advice}"
    )


def _misfit(unknown: Sequence[str], missing: Sequence[str]) -> str:
    faults = [f"no column {', '.join(map(repr, missing))}"] if missing else []
    faults += [f"{', '.join(map(repr, unknown))}, which the table does not have"] if unknown else []
    steps = ["add what is missing"] if missing else []
    steps += (
        [
            "leave out what the table lacks, or say what becomes of it with on_new_columns='add' or 'ignore'"
        ]
        if unknown
        else []
    )
    return f"the rows have {' and '.join(faults)}; {', and '.join(steps)}"
