"""Rows in memory on their way into a table."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.columns import with_nulls
from opal_lake.data.rejects import BAD
from opal_lake.definition.added_columns import unknown_columns
from opal_lake.definition.schema import DELETED, RESERVED_PREFIX, arrow_type
from opal_lake.definition.table_spec import TableSpec, delete_condition
from opal_lake.engine.executor import ReadAs
from opal_lake.errors import InvalidInputError
from opal_lake.source import Files, Jdbc


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowRows:
    """Rows as a caller gives them, with those that delete their key: a source to ingest."""

    given: pa.Table | Sequence[pa.RecordBatch]
    deleted: Sequence[bool] | None = None
    ignores_new_columns: bool = False

    @classmethod
    def of(cls, given: pa.Table | Iterable[pa.RecordBatch], how: ReadAs) -> "ArrowRows":
        """Batches are read once, and looked at twice."""
        rows = given if isinstance(given, pa.Table) else _batches(given)
        return cls(given=rows, deleted=how.deleted, ignores_new_columns=how.ignores_new_columns)

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
        return rows.append_column(DELETED, pa.array(deleted, pa.bool_()))

    def split(self, spec: TableSpec, number: int, column: str) -> "ArrowSplit":
        """Return them, to be parted by the texts in a column."""
        return ArrowSplit(rows=self.rows(spec), column=column)

    def _fitted(self, spec: TableSpec) -> pa.Table:
        rows, names = self._table(spec), spec.schema.names
        if self.ignores_new_columns:
            rows = rows.drop_columns(self.new_columns(spec).names)
        given = frozenset(rows.column_names)
        unknown = given - {DELETED, *names}
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
