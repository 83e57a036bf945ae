"""Debezium's change events in JSON: before, after, op, ts_ms; alone, or as the payload beside a schema of Kafka Connect.

`avro` reads the same in Avro.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.formats.json_lines import ERRORS, TypedJson
from opal_stream.formats.parsed import Parsed, halve_until_good

OPERATIONS = ("c", "u", "r", "d")  # insert, update, read by a snapshot, delete
ENVELOPE = {"op": pa.string(), "ts_ms": pa.int64()}  # what columns may ask for as @op and @ts_ms


class DebeziumJsonParser:
    """The row after the change; of a delete the row before it. `source` are members of the event's source that columns ask for."""

    def __init__(self, types: Mapping[str, pa.DataType], time_unit: str = "ms", source: Mapping[str, pa.DataType] | None = None) -> None:
        self._json = TypedJson(types, time_unit)
        self._source = dict(source or {})

    def parse(self, values: Sequence[bytes]) -> Parsed:
        return halve_until_good(values, self._parse, ERRORS)

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        """Without a registry nothing tells of a new schema."""
        return None

    def learn(self, value: bytes) -> None:
        """As `unseen`."""

    def _parse(self, values: Sequence[bytes]) -> Parsed:
        events = self._json.read(values, self._enveloped).combine_chunks()
        payload = {name: _member(events, name) for name in ("before", "after", "source", *ENVELOPE)}
        is_delete = check_operations(payload["op"])
        rows = pc.if_else(is_delete, payload["before"], payload["after"])
        if rows.null_count:
            raise ValueError("the change event has no row: a delete needs `before` (REPLICA IDENTITY FULL), everything else `after`")
        columns = {name: pa.chunked_array([pc.struct_field(rows, name)]) for name in self._json.types}
        table = self._json.convert(columns)
        for name in ENVELOPE:
            table = table.append_column(f"@{name}", payload[name])
        for name in self._source:
            table = table.append_column(f"@source.{name}", pc.struct_field(payload["source"], name))
        return Parsed(rows=table, kept=[], deleted=is_delete)

    def _enveloped(self, columns: pa.Schema) -> pa.Schema:
        row = pa.struct(list(columns))
        # Arrow has no struct without members
        source = pa.struct(list(self._source.items()) or [("ts_ms", pa.int64())])
        members = [("before", row), ("after", row), ("source", source), *ENVELOPE.items()]
        return pa.schema([*members, ("payload", pa.struct(members))])


def unknown_operation(name: object) -> ValueError:
    return ValueError(f"op={name!r} is no change of a row; those are {', '.join(OPERATIONS)}: let the connector leave others out")


def check_operations(operations: pa.Array) -> pa.Array:
    """Which are deletes; an error where the event is no change of a row."""
    known = pc.is_in(operations, pa.array(OPERATIONS))
    if not pc.all(known).as_py():
        other = operations.filter(pc.invert(known))[0].as_py()
        raise unknown_operation(other)
    return pc.equal(operations, "d")


def _member(events: pa.Table, name: str) -> pa.Array:
    """Of the event itself or of its payload."""
    own = _one(events[name])
    payload = _one(events["payload"])
    return own if payload.null_count == len(payload) else pc.coalesce(own, pc.struct_field(payload, name))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
