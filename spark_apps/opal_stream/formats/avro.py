"""Avro in a registry's wire format, Debezium's change events included: each message by the schema that it was written with.

So a message means the same whatever others come before it or with it. Fields go by name into the table's columns, and a column that the
message's own schema lacks is null.
"""

import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.formats.avro_values import ERRORS, Conversions, Convert
from opal_stream.formats.debezium_json import (
    ENVELOPE,
    OPERATIONS,
    unknown_operation,
)
from opal_stream.formats.parser import Parsed
from opal_stream.formats.references import RegisteredSchema
from opal_stream.formats.registry import (
    HEAD_BYTES,
    SchemaRegistry,
    UnknownSchemaError,
    first_unseen,
    schema_id,
)
from opal_stream.formats.schemas.avro_members import members_of_record
from opal_stream.formats.schemas.avro_schema import AvroSchema, Node, branches, is_record
from opal_stream.formats.schemas.avro_types import record_columns
from opal_stream.formats.schemas.new_columns import Known, NewColumns
from opal_stream.formats.schemas.of_schemas import NewOfSchema, new_of_schema, new_of_schemas
from opal_stream.formats.unavailable import Placeholder

Record = dict[str, Any]
_READ_ERRORS = (*ERRORS, EOFError, LookupError, MemoryError, RecursionError, struct.error)
_MOST_LETTERS = 300
_UNCHANGED = "@unchanged"  # of an event: the columns whose values it lacks, as they did not change


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filled:
    """A column, and the field that fills it: of the row, or of the event around it. None where there is no such field."""

    column: str
    kind: pa.DataType
    field: str
    is_of_event: bool = False
    convert: Convert | None


@dataclass(slots=True, kw_only=True)
class _Group:
    """Messages that were written alike, and their places in the batch. `event` and `row` are records of the schema."""

    schema: AvroSchema
    number: int
    event: Node
    row: Node
    positions: list[int] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)

    def without(self, wrong: Container[int]) -> "_Group":
        """The same, but for those of some places within the group."""
        kept = [place for place in range(len(self.positions)) if place not in wrong]
        return replace(
            self,
            positions=[self.positions[place] for place in kept],
            events=[self.events[place] for place in kept],
            rows=[self.rows[place] for place in kept],
        )


class AvroParser:
    """Records to rows; with `debezium` the records are change events.

    With `whole_name` the values are no records: each is a row of the one column of that name.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        types: Mapping[str, pa.DataType],
        *,
        time_unit: str = "ms",
        debezium: bool = False,
        source: Mapping[str, pa.DataType] | None = None,
        known: Known = None,
        placeholder: Placeholder | None = None,
        whole_name: str | None = None,
    ) -> None:
        self.registry = registry
        self._whole_name = whole_name
        self._placeholder = placeholder or Placeholder()
        self.schemas: dict[bytes, AvroSchema] = {}
        self.refused: dict[bytes, str] = {}  # why a schema cannot be read, by the head of messages
        self._types = dict(types)
        self._time_unit = time_unit
        self._debezium = debezium
        self._source = dict(source or {})
        self._known = known
        self._new: dict[int, NewOfSchema] = {}
        self._filled: dict[tuple[int, int], list[_Filled]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which plans by itself: the plans go by the places of schemas in memory."""
        return {**self.__dict__, "_new": {}, "_filled": {}}

    def parse(self, values: Sequence[bytes]) -> Parsed:
        parsed = Parsed(rows=pa.table({}), kept=[])
        groups: list[_Group] = []
        tables: list[pa.Table] = []
        for group in self._groups(values, parsed):
            try:
                if self._known is not None:
                    self._new_of(group.schema, group.number, group.row)
            except UnknownSchemaError as error:  # of another version, which the column depends on
                parsed.bad += [(position, str(error)) for position in group.positions]
                continue
            table, wrong = self._table(group)
            if wrong:
                parsed.bad += [(group.positions[place], reason) for place, reason in wrong.items()]
                group = group.without(wrong)
                table, _ = self._table(group)
            groups.append(group)
            tables.append(table)
        kept = [position for group in groups for position in group.positions]
        parsed.kept = sorted(kept)
        parsed.rows = _in_order(tables, kept)
        if self._debezium:
            operations = [event["op"] for group in groups for event in group.events]
            deletes = pa.table(
                {"deleted": pa.array([name == "d" for name in operations], pa.bool_())}
            )
            parsed.deleted = _in_order([deletes], kept)["deleted"].combine_chunks()
            parsed.unchanged = _unchanged(groups, parsed.kept)
        if self._known is not None:
            parsed.new = self._new_columns(groups)
        return parsed

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        return first_unseen(self.registry, list(values))

    def learn(self, value: bytes) -> None:
        """Ask the registry for all that messages of the schema need: Spark's tasks may not reach it."""
        try:
            number = schema_id(value)
            schema = self._schema(value[:HEAD_BYTES])
        except ValueError:
            return  # of an unknown schema: a bad message, as parsing it says
        if self._known is None:
            return
        with suppress(UnknownSchemaError):  # as above
            for row in _rows_of(schema, debezium=self._debezium):
                self._new_of(schema, number, row)

    def take_over(self, other: "AvroParser") -> None:
        self.registry = other.registry
        self.schemas, self.refused = other.schemas, other.refused

    def _schema(self, value: bytes) -> AvroSchema:
        head = value[:HEAD_BYTES]
        if head in self.refused:
            raise ValueError(self.refused[head])
        if head not in self.schemas:
            registered = self.registry.schema(schema_id(value))
            try:
                self.schemas[head] = self._parsed(registered)
            except ValueError as error:
                self.refused[head] = str(error)  # an id never changes its meaning
                raise
        return self.schemas[head]

    def _parsed(self, registered: RegisteredSchema) -> AvroSchema:
        schema = AvroSchema(registered.text, registered.references)
        return schema if self._whole_name is None else schema.as_field(self._whole_name)

    def _groups(self, values: Sequence[bytes], parsed: Parsed) -> Iterable[_Group]:
        groups: dict[tuple[int, int], _Group] = {}
        for position, value in enumerate(values):
            try:
                schema = self.schemas.get(value[:HEAD_BYTES]) or self._schema(value)
                event, record = schema.root, schema.read(value, HEAD_BYTES)
                if not schema.is_record:
                    event, record = schema.chosen(event, record)
                    if not is_record(event):
                        raise ValueError("the message is no Avro record")
                row, fields = event, record
                if self._debezium:
                    row, fields = self._row_of_event(schema, event, record)
            except _READ_ERRORS as error:
                parsed.bad.append((position, _one_line(error)[:_MOST_LETTERS]))
                continue
            group = groups.get((id(event), id(row)))
            if group is None:
                group = _Group(schema=schema, number=schema_id(value), event=event, row=row)
                groups[id(event), id(row)] = group
            group.positions.append(position)
            group.events.append(record)
            group.rows.append(fields)
        return groups.values()

    def _row_of_event(self, schema: AvroSchema, event: Node, record: Record) -> tuple[Node, Record]:
        """The row after the change; of a delete the row before it. The event gets the names of what it lacks."""
        operation = record.get("op")
        if operation not in OPERATIONS:
            raise unknown_operation(operation)
        name = "before" if operation == "d" else "after"
        node, row = schema.chosen(schema.fields(event).get(name, "null"), record.get(name))
        if not isinstance(row, dict) or not is_record(node):
            raise ValueError(
                "the change event has no row: a delete needs `before` (REPLICA IDENTITY FULL), everything else `after`"
            )
        unchanged = self._placeholder.split(row)
        row |= dict.fromkeys(unchanged)
        if unchanged and operation != "d":
            record[_UNCHANGED] = tuple(name for name in unchanged if name in self._types)
        return node, row

    def _table(self, group: _Group) -> tuple[pa.Table, dict[int, str]]:
        """The rows of a group, or why those at some places of it do not fit."""
        columns: dict[str, pa.Array] = {}
        wrong: dict[int, str] = {}
        for filled in self._plan(group):
            if filled.convert is None:
                columns[filled.column] = pa.nulls(len(group.positions), filled.kind)
                continue
            records = group.events if filled.is_of_event else group.rows
            values = [record[filled.field] for record in records]
            try:
                columns[filled.column] = filled.convert(values)
            except ERRORS:
                found = _wrong(filled, values)
                if not found:  # each fits alone: not what the messages hold is wrong
                    raise
                wrong = found | wrong
        return pa.table(columns if not wrong else {}), wrong

    def _plan(self, group: _Group) -> list[_Filled]:
        key = (id(group.event), id(group.row))
        if key not in self._filled:
            conversions = Conversions(group.schema, self._time_unit)
            self._filled[key] = list(self._plans(group.schema, conversions, group.event, group.row))
        return self._filled[key]

    def _plans(
        self, schema: AvroSchema, conversions: Conversions, event: Node, row: Node
    ) -> Iterable[_Filled]:
        fields = schema.fields(row)
        for name, kind in self._types.items():
            convert = conversions.of(fields[name], kind) if name in fields else None
            yield _Filled(column=name, kind=kind, field=name, convert=convert)
        if not self._debezium:
            return
        fields = schema.fields(event)
        for name, kind in ENVELOPE.items():
            convert = conversions.of(fields[name], kind) if name in fields else None
            yield _Filled(
                column=f"@{name}", kind=kind, field=name, is_of_event=True, convert=convert
            )
        for name, kind in self._source.items():
            convert = (
                conversions.member(fields["source"], name, kind) if "source" in fields else None
            )
            yield _Filled(
                column=f"@source.{name}",
                kind=kind,
                field="source",
                is_of_event=True,
                convert=convert,
            )

    def _new_columns(self, groups: Sequence[_Group]) -> NewColumns | None:
        by_position: dict[int, NewOfSchema] = {}
        for group in groups:
            new = self._new_of(group.schema, group.number, group.row)
            if new.columns.names or new.members:
                by_position |= dict.fromkeys(group.positions, new)
        return new_of_schemas(
            lambda new: new, {position: by_position[position] for position in sorted(by_position)}
        )

    def _new_of(self, schema: AvroSchema, number: int, row: Node) -> NewOfSchema:
        if id(row) not in self._new:
            self._new[id(row)] = new_of_schema(
                record_columns(row),
                self._known,
                members_of_record(schema, row, self._types),
                lambda: self._types_of_versions(number),
            )
        return self._new[id(row)]

    def _types_of_versions(self, number: int) -> Iterable[Mapping[str, pa.DataType]]:
        for registered in self.registry.versions(number):
            try:
                version = AvroSchema(registered.text, registered.references)
            except ValueError:
                continue  # of a subject that had schemas of another kind before
            for row in _rows_of(version, debezium=self._debezium):
                yield record_columns(row)


def _rows_of(schema: AvroSchema, *, debezium: bool) -> Iterable[Node]:
    """The records that rows of a schema may be written as."""
    for event in map(schema.resolved, branches(schema.root)):
        rows = [event]
        if debezium:
            rows = branches(schema.fields(event).get("after", "null"))
        yield from filter(is_record, map(schema.resolved, rows))


def _unchanged(groups: Sequence[_Group], kept: Sequence[int]) -> list[tuple[str, ...]] | None:
    """Of each row the columns that its event lacks; None where no event lacks one."""
    names = {
        position: event[_UNCHANGED]
        for group in groups
        for position, event in zip(group.positions, group.events, strict=True)
        if _UNCHANGED in event
    }
    return [names.get(position, ()) for position in kept] if names else None


def _wrong(filled: _Filled, values: Sequence[Any]) -> dict[int, str]:
    """Which values do not fit the column, and why."""
    wrong: dict[int, str] = {}
    for place, value in enumerate(values):
        try:
            if filled.convert is not None:
                filled.convert([value])
        except ERRORS as error:
            wrong[place] = f"column {filled.column!r}: {_one_line(error)[:200]}"
    return wrong


def _in_order(tables: Sequence[pa.Table], positions: Sequence[int]) -> pa.Table:
    """Join the tables; the rows are at these positions of the batch."""
    if not tables:
        return pa.table({})
    joined = pa.concat_tables(tables)
    is_sorted = all(first < second for first, second in pairwise(positions))
    return joined if is_sorted else joined.take(pc.sort_indices(pa.array(positions, pa.int64())))


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
