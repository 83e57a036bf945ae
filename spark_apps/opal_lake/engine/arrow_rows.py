"""Rows in memory on their way into a table."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.columns import with_defaults
from opal_lake.data.fitted_rows import new_columns_of, whole_rows
from opal_lake.data.rejects import BAD
from opal_lake.definition.schema import DELETED, arrow_type, type_name
from opal_lake.definition.table_spec import TableSpec, delete_condition
from opal_lake.engine.executor import ReadAs
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.source import Files, Jdbc


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowRows:
    """Rows in memory as a source: the given rows, and which of them delete their key."""

    given: pa.Table | Sequence[pa.RecordBatch]
    deleted: pa.Array | pa.ChunkedArray | None = None
    ignores_new_columns: bool = False

    @classmethod
    def of(cls, given: pa.Table | Iterable[pa.RecordBatch], how: ReadAs) -> "ArrowRows":
        """Return a source of a table, or of record batches, which are iterated once."""
        if isinstance(given, pa.Table):
            rows: pa.Table | list[pa.RecordBatch] = given
            schema = given.schema
            row_count = given.num_rows
        else:
            rows = _batches(given)
            schema = _schema_of(rows)
            row_count = sum(batch.num_rows for batch in rows)
        _refuse_doubled(schema.names)
        deleted = None if how.deleted is None else _marker(how.deleted, row_count)
        return cls(given=rows, deleted=deleted, ignores_new_columns=how.ignores_new_columns)

    def new_columns(self, spec: TableSpec) -> pa.Schema:
        """Return the columns that the table lacks."""
        return new_columns_of(self._table(spec).schema, spec)

    def rows(self, spec: TableSpec, number: int = 0) -> pa.Table:
        """Return the rows with the table's columns and, if any delete, the delete marker.

        A missing column has its default. Without a default it is null if it was added to the table
        after its creation, otherwise an error.
        """
        rows = self._fitted(spec)
        if self.deleted is None and DELETED in rows.column_names:
            return rows
        condition = delete_condition(spec)
        if self.deleted is not None:
            if condition is None:
                raise InvalidInputError(
                    "rows are marked as deletes, but the table has no delete condition; "
                    "create it with deletes=\"op = 'D'\""
                )
            return rows.append_column(DELETED, self.deleted)
        if condition is None:
            return rows
        return rows.append_column(DELETED, condition.holds(rows))

    def split(self, spec: TableSpec, number: int, column: str) -> "ArrowSplit":
        """Return the rows, ready to be split by the texts in a column."""
        return ArrowSplit(rows=self.rows(spec), column=column)

    def _fitted(self, spec: TableSpec) -> pa.Table:
        """Return the rows with all columns of the table.

        Raises InvalidInputError for columns that the table does not have, and for missing ones.
        """
        rows = self._table(spec)
        if not isinstance(self.given, pa.Table) and not self.given:
            # Without a batch, the rows have the table's columns already
            return rows
        return whole_rows(rows, spec, ignores_new_columns=self.ignores_new_columns)

    def _table(self, spec: TableSpec) -> pa.Table:
        """Return the given rows as one table."""
        if isinstance(self.given, pa.Table):
            return self.given
        if self.given:
            return pa.Table.from_batches(self.given)
        # Without a batch the columns are unknown, but an empty table fits
        columns = [(field.name, arrow_type(field.type)) for field in spec.schema.fields]
        return pa.schema(columns).empty_table()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowSplit:
    """Rows in memory that can be split by the texts in a column."""

    rows: pa.Table
    column: str

    def values(self, most: int) -> Mapping[str | None, int]:
        """Return the number of rows with each text; `most` is not needed."""
        counts: dict[str | None, int] = {}
        for pair in pc.value_counts(self.rows[self.column]).to_pylist():
            counts[_text(pair["values"])] = pair["counts"]
        return counts

    def part(
        self, chosen: Collection[str | None], bad: Mapping[str | None, str], spec: TableSpec
    ) -> pa.Table:
        """Return the rows with a chosen text, and the reason in those with a bad text."""
        texts = [_text(value) for value in self.rows[self.column].to_pylist()]
        is_chosen = [text in chosen for text in texts]
        rows = _with_added(self.rows.filter(pa.array(is_chosen, pa.bool_())), spec)
        if not bad:
            return rows
        reasons = [bad.get(text) for text in texts if text in chosen]
        return rows.append_column(BAD, pa.array(reasons, pa.string()))


def _with_added(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Return rows with all columns that they may lack, which get their defaults."""
    given = frozenset(rows.column_names)
    added = [field for field in spec.schema.fields if spec.schema.is_optional(field)]
    return with_defaults(rows, [field for field in added if field.name not in given])


def _text(value: object) -> str | None:
    """Return the text by which rows are split."""
    if value is None:
        return None
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


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
    """Return the schema of all batches; InvalidInputError if they differ."""
    if not batches:
        return pa.schema([])
    first = batches[0].schema
    for number, batch in enumerate(batches[1:], 2):
        if batch.schema.equals(first):
            continue
        raise InvalidInputError(
            f"batch {number} of the rows has other columns than batch 1: "
            f"{_difference(first, batch.schema)}; give all batches the same columns, with the same "
            "types and in the same order"
        )
    return first


def _difference(first: pa.Schema, other: pa.Schema) -> str:
    """Describe how the columns of a batch differ from the columns of the first batch."""
    if first.names != other.names:
        return f"{', '.join(map(repr, other.names))} after {', '.join(map(repr, first.names))}"
    for field, first_field in zip(other, first, strict=True):
        if field == first_field:
            continue
        kind = type_name(field.type)
        first_kind = type_name(first_field.type)
        if kind == first_kind:
            # The difference is not in the type's name: it may be the nullability
            kind = str(field)
            first_kind = str(first_field)
        return f"{field.name!r} is {kind} after {first_kind}"
    raise AssertionError(other)


def _refuse_doubled(names: Sequence[str]) -> None:
    for name, number in Counter(names).items():
        if number > 1:
            raise InvalidInputError(
                f"the rows have {number} columns {name!r}; keep one, and drop or rename the others"
            )


def _marker(deleted: Any, rows: int) -> pa.Array | pa.ChunkedArray:
    """Return booleans, one for each row: whether the row deletes its key.

    Raises InvalidInputError for another type or another number of values.
    """
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
            f"deleted has {count_text(len(marker), 'value')} for {count_text(rows, 'row')}; "
            f"{advice}"
        )
    return marker.cast(pa.bool_())


def _not_rows(rows: object, member: object = None) -> str:
    """Return the message for rows of an invalid type: how to convert them.

    `member` is the first member that is not a record batch, if the rows can be iterated.
    """
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
        f"rows are of type {name}, but an ingest takes a pyarrow.Table or record batches; {advice}"
    )
