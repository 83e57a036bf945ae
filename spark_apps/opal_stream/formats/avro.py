"""Avro in a registry's wire format, Debezium's change events included: read by the schema that it was written with, as records
of the newest schema seen.

So a record of an older schema gets the defaults of members that it does not know.
"""

import io
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from datetime import time as time_of_day
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError

from opal_stream.formats.debezium_json import (
    ENVELOPE,
    OPERATIONS,
    unknown_operation,
)
from opal_stream.formats.parsed import Parsed
from opal_stream.formats.registry import HEAD_BYTES, SchemaRegistry, first_unseen, schema_id
from opal_stream.formats.schemas.avro_types import avro_columns
from opal_stream.formats.schemas.connect import of_variable_scale
from opal_stream.formats.schemas.new_columns import Known
from opal_stream.formats.schemas.of_schemas import NewOfSchema, new_of_schema, new_of_schemas
from opal_stream.formats.unavailable import Placeholder

Record = dict[str, Any]
_UNCHANGED = "@unchanged"  # of an event: the columns whose values it lacks, as they did not change
_ERRORS = (
    ValueError,
    EOFError,
    IndexError,
    TypeError,
    KeyError,
    OverflowError,
    MemoryError,
    struct.error,
    pa.ArrowInvalid,
    pa.ArrowTypeError,
)


class AvroParser:
    """Records to rows; with `debezium` the records are change events."""

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
    ) -> None:
        self.registry = registry
        self._placeholder = placeholder or Placeholder()
        self._types = dict(types)
        self._time_unit = time_unit
        self._debezium = debezium
        self._source = dict(source or {})
        self.schemas: dict[int, Any] = {}
        self.newest = -1
        self._known = known
        self._new: dict[bytes, NewOfSchema] = {}

    def parse(self, values: Sequence[bytes]) -> Parsed:
        records: list[Record] = []
        parsed = Parsed(rows=pa.table({}), kept=[])
        for position, value in enumerate(values):
            try:
                records.append(self._row(self._record(value)))
                parsed.kept.append(position)
            except _ERRORS as error:
                parsed.bad.append(
                    (position, (str(error) or type(error).__name__).splitlines()[0][:300])
                )
        wrong = self._to_columns(records, parsed)
        if wrong:
            parsed.bad += [(parsed.kept[position], reason) for position, reason in wrong]
            gone = {position for position, _ in wrong}
            records = [record for position, record in enumerate(records) if position not in gone]
            parsed.kept = [
                number for position, number in enumerate(parsed.kept) if position not in gone
            ]
            self._to_columns(records, parsed)
        if self._debezium:
            parsed.deleted = pa.array([record["@op"] == "d" for record in records], pa.bool_())
            if any(_UNCHANGED in record for record in records):
                parsed.unchanged = [record.get(_UNCHANGED, ()) for record in records]
        if self._known is not None:
            parsed.new = new_of_schemas(
                self._new_of, {position: values[position][:HEAD_BYTES] for position in parsed.kept}
            )
        return parsed

    def _new_of(self, head: bytes) -> NewOfSchema:
        if head not in self._new:
            types = avro_columns(self._schema(schema_id(head)), debezium=self._debezium)
            self._new[head] = new_of_schema(types, self._types, self._known)
        return self._new[head]

    def take_over(self, other: "AvroParser") -> None:
        self.registry, self.schemas, self.newest = other.registry, other.schemas, other.newest

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        return first_unseen(self.registry, list(values))

    def learn(self, value: bytes) -> None:
        try:
            self._schema(schema_id(value))
        except ValueError:
            return  # of an unknown schema: a bad message, as parsing it says

    def _schema(self, number: int) -> Any:
        if number not in self.schemas:
            self.schemas[number] = fastavro.parse_schema(json.loads(self.registry.schema(number)))
            self.newest = max(self.newest, number)
        return self.schemas[number]

    def _record(self, value: bytes) -> Record:
        written = self._schema(schema_id(value))
        newest = self.schemas[self.newest]
        body = io.BytesIO(value)
        body.seek(HEAD_BYTES)
        try:
            record = fastavro.schemaless_reader(
                body, written, None if written is newest else newest
            )
        except SchemaResolutionError:  # a topic may hold records of several kinds
            body.seek(HEAD_BYTES)
            record = fastavro.schemaless_reader(body, written, None)
        if not isinstance(record, dict):
            raise ValueError("the message is no Avro record")
        return record

    def _row(self, record: Record) -> Record:
        if not self._debezium:
            return record
        operation = record.get("op")
        if operation not in OPERATIONS:
            raise unknown_operation(operation)
        row = record.get("before" if operation == "d" else "after")
        if row is None:
            raise ValueError(
                "the change event has no row: a delete needs `before` (REPLICA IDENTITY FULL), everything else `after`"
            )
        unchanged = self._placeholder.split(row)
        row |= dict.fromkeys(unchanged)
        source = record.get("source") or {}
        of_event = {f"@{name}": record.get(name) for name in ENVELOPE}
        if unchanged and operation != "d":
            of_event[_UNCHANGED] = tuple(name for name in unchanged if name in self._types)
        return {**row, **of_event, **{f"@source.{name}": source.get(name) for name in self._source}}

    def _to_columns(self, records: Sequence[Record], parsed: Parsed) -> list[tuple[int, str]]:
        """Fills the rows; returns which records do not fit instead, if some do not."""
        wanted = dict(self._types)
        if self._debezium:
            wanted |= {f"@{name}": kind for name, kind in ENVELOPE.items()}
            wanted |= {f"@source.{name}": kind for name, kind in self._source.items()}
        columns: dict[str, pa.Array] = {}
        wrong: dict[int, str] = {}
        for name, kind in wanted.items():
            try:
                columns[name] = self._column((record.get(name) for record in records), kind)
            except _ERRORS:
                wrong |= self._wrong(name, kind, records)
        parsed.rows = pa.table(columns) if not wrong else parsed.rows
        return sorted(wrong.items())

    def _wrong(self, name: str, kind: pa.DataType, records: Sequence[Record]) -> dict[int, str]:
        wrong = {}
        for position, record in enumerate(records):
            try:
                self._column([record.get(name)], kind)
            except _ERRORS as error:
                wrong[position] = f"column {name!r}: {str(error).splitlines()[0][:200]}"
        return wrong

    def _column(self, values: Iterable[Any], kind: pa.DataType) -> pa.Array:
        found = list(values)
        first = next((value for value in found if value is not None), None)
        if pa.types.is_timestamp(kind) and isinstance(first, int):
            return (
                pa.array(found, pa.int64()).cast(pa.timestamp(self._time_unit, kind.tz)).cast(kind)
            )
        if pa.types.is_temporal(kind) and isinstance(first, str):
            return pa.array(found, pa.string()).cast(kind)
        if pa.types.is_timestamp(kind) and kind.tz is None and isinstance(first, datetime):
            found = [None if value is None else value.replace(tzinfo=None) for value in found]
        if pa.types.is_date(kind) and isinstance(first, int) and not isinstance(first, date):
            return pa.array(found, pa.int32()).cast(kind)
        if isinstance(first, UUID | time_of_day):
            found = [None if value is None else str(value) for value in found]
        if (
            isinstance(first, dict)
            and first.keys() == {"scale", "value"}
            and not pa.types.is_nested(kind)
        ):
            return of_variable_scale(found, kind)
        return pa.array(found, kind)
