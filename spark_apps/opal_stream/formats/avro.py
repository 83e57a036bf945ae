"""Avro in a registry's wire format, Debezium's change events included.

Each message is read by the schema that it was written with, whatever messages are read before it or
together with it. A field fills the table's column of its name. A column that the message's own
schema lacks is null.
"""

import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.formats.absent_members import NO_DEFAULTS, Defaults
from opal_stream.formats.avro_values import ERRORS, Conversions, Convert
from opal_stream.formats.debezium_json import (
    ENVELOPE,
    NO_ROW,
    OPERATIONS,
    unknown_operation_error,
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
from opal_stream.formats.schemas.additions import Additions, find_additions, merge_additions
from opal_stream.formats.schemas.avro_members import members_of_record
from opal_stream.formats.schemas.avro_schema import AvroSchema, Node, branches, is_record
from opal_stream.formats.schemas.avro_types import record_columns
from opal_stream.formats.schemas.new_columns import Known, NewColumns
from opal_stream.formats.unavailable import Placeholder

Record = dict[str, Any]
_READ_ERRORS = (*ERRORS, EOFError, LookupError, MemoryError, RecursionError, struct.error)
_MAX_LETTERS = 300
_UNCHANGED = "@unchanged"  # the member put into an event: names of columns that did not change


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filled:
    """A column, and the field of the row or of its event that fills it.

    `convert` is None if the schema has no such field.
    """

    column: str
    kind: pa.DataType
    field: str
    is_of_event: bool = False
    convert: Convert | None


@dataclass(slots=True, kw_only=True)
class _Group:
    """Messages of one schema and the same record types in it.

    - `number` is the id of the schema in the registry.
    - `event` and `row` are the record types with which all `events` and `rows` were written.
    - `positions` are those of the messages in the batch, in the order of `events` and `rows`.
    """

    schema: AvroSchema
    number: int
    event: Node
    row: Node
    positions: list[int] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)

    def without(self, wrong: Container[int]) -> "_Group":
        """Return the group without the messages at the indices `wrong` within it."""
        good = [index for index in range(len(self.positions)) if index not in wrong]
        return replace(
            self,
            positions=[self.positions[index] for index in good],
            events=[self.events[index] for index in good],
            rows=[self.rows[index] for index in good],
        )


class AvroParser:
    """A parser of records to rows; with `debezium` the records are change events.

    With `whole_name` each value, whatever its type, fills the one column of that name.
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
        defaults: Defaults = NO_DEFAULTS,
    ) -> None:
        self.registry = registry
        self._defaults = defaults
        self._whole_name = whole_name
        self._placeholder = placeholder or Placeholder()
        self.schemas: dict[bytes, AvroSchema] = {}
        self.refused: dict[bytes, str] = {}  # why a schema cannot be read, by the head of messages
        self._types = dict(types)
        self._time_unit = time_unit
        self._debezium = debezium
        self._source = dict(source or {})
        self._known = known
        self._new: dict[int, Additions] = {}
        self._filled: dict[tuple[int, int], list[_Filled]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is cached by `id()` of schemas, which differ in another process."""
        return {**self.__dict__, "_new": {}, "_filled": {}}

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """Return the rows of values, the bad values, and new columns."""
        parsed = Parsed(rows=pa.table({}), positions=[])
        groups: list[_Group] = []
        tables: list[pa.Table] = []
        for group in self._groups(values, parsed):
            try:
                if self._known is not None:
                    self._new_of(group.schema, group.number, group.row)
            except UnknownSchemaError as error:  # a type depends on a version that is missing
                parsed.bad += [(position, str(error)) for position in group.positions]
                continue
            table, wrong = self._table(group)
            if wrong:
                for index, reason in wrong.items():
                    parsed.bad.append((group.positions[index], reason))
                group = group.without(wrong)
                table, _ = self._table(group)
            groups.append(group)
            tables.append(table)
        positions: list[int] = []
        for group in groups:
            positions += group.positions
        parsed.positions = sorted(positions)
        parsed.rows = _join_in_order(tables, positions)
        if self._debezium:
            parsed.deleted = _deletes(groups, positions)
            parsed.unchanged = _unchanged(groups, parsed.positions)
        if self._known is not None:
            parsed.new = self._new_columns(groups)
        return parsed

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        return first_unseen(self.registry, list(values))

    def learn(self, value: bytes) -> None:
        """Ask the registry for everything that messages of the value's schema need.

        Later the parser may be used in tasks of Spark, which may not reach the registry.
        """
        try:
            number = schema_id(value)
            schema = self._schema(value[:HEAD_BYTES])
        except ValueError:
            return  # the schema is unknown: parsing the message reports it as bad
        if self._known is None:
            return
        with suppress(UnknownSchemaError):  # parsing reports it, too
            for row in _rows_of(schema, debezium=self._debezium):
                self._new_of(schema, number, row)

    def take_over(self, other: "AvroParser") -> None:
        self.registry = other.registry
        self.schemas, self.refused = other.schemas, other.refused

    def _schema(self, value: bytes) -> AvroSchema:
        """Return the schema that a value names; raise ValueError if it cannot be read."""
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
        if self._whole_name is None:
            return schema
        return schema.as_field(self._whole_name)

    def _groups(self, values: Sequence[bytes], parsed: Parsed) -> Iterable[_Group]:
        """Return the values that can be read in groups.

        Note the others as bad in `parsed`.
        """
        groups: dict[tuple[int, int], _Group] = {}
        for position, value in enumerate(values):
            try:
                schema = self.schemas.get(value[:HEAD_BYTES]) or self._schema(value)
                event, record = schema.root, schema.read(value, HEAD_BYTES)
                if not schema.is_record:
                    event, record = schema.chosen(event, record)
                    if not is_record(event):
                        raise ValueError("the message is not an Avro record")
                row, fields = event, record
                if self._debezium:
                    row, fields = self._row_of_event(schema, event, record)
            except _READ_ERRORS as error:
                parsed.bad.append((position, _one_line(error)[:_MAX_LETTERS]))
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
        """Return the record type and the fields of an event's row.

        The row is the one before a delete, or after any other change. Values that did not change
        become null in it, and the names of their columns go into the event.
        """
        operation = record.get("op")
        if operation not in OPERATIONS:
            raise unknown_operation_error(operation)
        name = "before" if operation == "d" else "after"
        row_type = schema.fields(event).get(name, "null")
        node, row = schema.chosen(row_type, record.get(name))
        if not isinstance(row, dict) or not is_record(node):
            raise ValueError(NO_ROW)
        unchanged = self._placeholder.split(row)
        row |= dict.fromkeys(unchanged)
        if unchanged and operation != "d":
            record[_UNCHANGED] = tuple(name for name in unchanged if name in self._types)
        return node, row

    def _table(self, group: _Group) -> tuple[pa.Table, dict[int, str]]:
        """Return the rows of a group, and by index within it why some do not fit.

        If one does not fit, the table is empty.
        """
        columns: dict[str, pa.Array] = {}
        wrong: dict[int, str] = {}
        for filled in self._plan(group):
            if filled.convert is None:
                default = self._defaults.get(filled.column, pa.scalar(None, filled.kind))
                columns[filled.column] = pa.repeat(default, len(group.positions))
                continue
            records = group.events if filled.is_of_event else group.rows
            values = [record[filled.field] for record in records]
            try:
                columns[filled.column] = filled.convert(values)
            except ERRORS:
                unfit = _unfit(filled, values)
                if not unfit:  # each value fits alone: the mistake is not in the messages
                    raise
                wrong = unfit | wrong
        return pa.table({} if wrong else columns), wrong

    def _plan(self, group: _Group) -> list[_Filled]:
        """Return how the columns are filled from messages of a group; planned once."""
        key = (id(group.event), id(group.row))
        if key not in self._filled:
            conversions = Conversions(group.schema, self._time_unit)
            filled = self._filled_columns(group.schema, conversions, group.event, group.row)
            self._filled[key] = list(filled)
        return self._filled[key]

    def _filled_columns(
        self, schema: AvroSchema, conversions: Conversions, event: Node, row: Node
    ) -> Iterable[_Filled]:
        """Yield the columns of the row, then those of its change event."""
        row_fields = schema.fields(row)
        for name, kind in self._types.items():
            convert = None
            if name in row_fields:
                convert = conversions.of(row_fields[name], kind)
            yield _Filled(column=name, kind=kind, field=name, convert=convert)
        if not self._debezium:
            return
        event_fields = schema.fields(event)
        for name, kind in ENVELOPE.items():
            convert = None
            if name in event_fields:
                convert = conversions.of(event_fields[name], kind)
            yield _Filled(
                column=f"@{name}", kind=kind, field=name, is_of_event=True, convert=convert
            )
        for name, kind in self._source.items():
            convert = None
            if "source" in event_fields:
                convert = conversions.member(event_fields["source"], name, kind)
            yield _Filled(
                column=f"@source.{name}",
                kind=kind,
                field="source",
                is_of_event=True,
                convert=convert,
            )

    def _new_columns(self, groups: Sequence[_Group]) -> NewColumns | None:
        by_position: dict[int, Additions] = {}
        for group in groups:
            new = self._new_of(group.schema, group.number, group.row)
            if new.columns.names or new.members:
                by_position |= dict.fromkeys(group.positions, new)
        by_position = dict(sorted(by_position.items()))
        return merge_additions(lambda new: new, by_position)

    def _new_of(self, schema: AvroSchema, number: int, row: Node) -> Additions:
        """Return what a record type has and the table lacks; looked up once.

        `number` is the id of the schema, whose other versions decide on the type of a column.
        """
        if id(row) not in self._new:
            self._new[id(row)] = find_additions(
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
                continue  # an earlier version of the subject is not a schema of Avro
            for row in _rows_of(version, debezium=self._debezium):
                yield record_columns(row)


def _rows_of(schema: AvroSchema, *, debezium: bool) -> Iterable[Node]:
    """Yield the record types with which rows of a schema may be written."""
    for branch in branches(schema.root):
        event = schema.resolved(branch)
        row_types = [event]
        if debezium:
            row_types = branches(schema.fields(event).get("after", "null"))
        for row in row_types:
            record = schema.resolved(row)
            if is_record(record):
                yield record


def _deletes(groups: Sequence[_Group], positions: Sequence[int]) -> pa.Array:
    """Return which rows are deletes, in the order of the batch.

    `positions` are those of all groups, one group after the other.
    """
    is_delete: list[bool] = []
    for group in groups:
        is_delete += [event["op"] == "d" for event in group.events]
    table = pa.table({"deleted": pa.array(is_delete, pa.bool_())})
    return _join_in_order([table], positions)["deleted"].combine_chunks()


def _unchanged(groups: Sequence[_Group], positions: Sequence[int]) -> list[tuple[str, ...]] | None:
    """Return for each position the columns that did not change.

    Return None if there are none.
    """
    names: dict[int, tuple[str, ...]] = {}
    for group in groups:
        for position, event in zip(group.positions, group.events, strict=True):
            if _UNCHANGED in event:
                names[position] = event[_UNCHANGED]
    if not names:
        return None
    return [names.get(position, ()) for position in positions]


def _unfit(filled: _Filled, values: Sequence[Any]) -> dict[int, str]:
    """Return by index why a value does not fit the column.

    Values that fit are left out.
    """
    unfit: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            if filled.convert is not None:
                filled.convert([value])
        except ERRORS as error:
            unfit[index] = f"column {filled.column!r}: {_one_line(error)[:200]}"
    return unfit


def _join_in_order(tables: Sequence[pa.Table], positions: Sequence[int]) -> pa.Table:
    """Join tables, and sort their rows by their positions in the batch."""
    if not tables:
        return pa.table({})
    joined = pa.concat_tables(tables)
    is_sorted = all(first < second for first, second in pairwise(positions))
    if is_sorted:
        return joined
    return joined.take(pc.sort_indices(pa.array(positions, pa.int64())))


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    if lines:
        return lines[0]
    return type(error).__name__
