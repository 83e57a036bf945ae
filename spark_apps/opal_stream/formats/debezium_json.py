"""Debezium's change events in JSON: before, after, op, ts_ms; alone, or as the payload beside a schema of Kafka Connect.

`avro` reads the same in Avro.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.formats.json_lines import ERRORS, TypedJson, one_array
from opal_stream.formats.parser import Parsed, halve_until_good
from opal_stream.formats.schemas.connect import ConnectSchemas
from opal_stream.formats.schemas.inferred import inferred_columns
from opal_stream.formats.schemas.members import members_of_values
from opal_stream.formats.schemas.new_columns import Known, Member, NewColumns, is_new, with_members
from opal_stream.formats.unavailable import Placeholder

OPERATIONS = ("c", "u", "r", "d")  # insert, update, read by a snapshot, delete
_BASE64 = ": decimals in base64 need the schema in the event (schemas.enable=true), else decimal.handling.mode=string"
ENVELOPE = {"op": pa.string(), "ts_ms": pa.int64()}  # what columns may ask for as @op and @ts_ms


class DebeziumJsonParser:
    """The row after the change; of a delete the row before it. `source` are members of the event's source that columns ask for."""

    def __init__(
        self,
        types: Mapping[str, pa.DataType],
        time_unit: str = "ms",
        source: Mapping[str, pa.DataType] | None = None,
        known: Known = None,
        placeholder: Placeholder | None = None,
    ) -> None:
        self._json = TypedJson(types, time_unit, known)
        self._placeholder = placeholder or Placeholder()
        self._drops_members = known is None and any(map(pa.types.is_nested, types.values()))
        self._source = dict(source or {})
        self._schemas = ConnectSchemas()

    def parse(self, values: Sequence[bytes]) -> Parsed:
        parsed = halve_until_good(values, self._parse, ERRORS)
        parsed.bad = [
            (position, reason + _BASE64 if "not a valid decimal" in reason else reason)
            for position, reason in parsed.bad
        ]
        if parsed.new is not None:
            unit = self._json.time_unit
            parsed.new = parsed.new.of_types(
                {
                    position: self._schemas.columns(values[position], unit)
                    for position in parsed.new.found
                }
            )
        return parsed

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        """Without a registry nothing tells of a new schema."""
        return None

    def learn(self, value: bytes) -> None:
        """As `unseen`."""

    def take_over(self, other: "DebeziumJsonParser") -> None:
        """As `unseen`."""

    def _parse(self, values: Sequence[bytes]) -> Parsed:
        self._json.holding = self._schemas.holding(values)
        events, unchanged = self._events(values)
        is_delete = check_operations(_leaf(events, "op"))
        if not pc.all(
            pc.if_else(is_delete, _is_there(events, "before"), _is_there(events, "after"))
        ).as_py():
            raise ValueError(
                "the change event has no row: a delete needs `before` (REPLICA IDENTITY FULL), everything else `after`"
            )
        columns = {name: self._column(events, name, is_delete) for name in self._json.types}
        table = self._json.convert(
            {name: pa.chunked_array([column]) for name, column in columns.items()}
        )
        for name in ENVELOPE:
            table = table.append_column(f"@{name}", _leaf(events, name))
        for name in self._source:
            table = table.append_column(f"@source.{name}", _leaf(events, "source", name))
        return Parsed(
            rows=table, kept=[], deleted=is_delete, new=self._new(events), unchanged=unchanged
        )

    def _events(self, values: Sequence[bytes]) -> tuple[pa.Table, list[tuple[str, ...]] | None]:
        """Events with null for values that did not change, and of each the columns that lack one so.

        The text is looked at only where the values look like it, or fit no column, as the placeholder of an array may, or where parts of
        them are left out.
        """
        try:
            events = self._json.read(values, self._enveloped)
            may_lack_values = any(map(self._placeholder.may_be_in, self._rows(events)))
            # Arrow has left members out that a column lacks, as the only one of an hstore
            if not may_lack_values and self._drops_members:
                may_lack_values = any(map(self._placeholder.may_be_in_text, values))
            if not may_lack_values:
                return events, None
        except ERRORS:
            if not any(map(self._placeholder.may_be_in_text, values)):
                raise
        taken_out = [self._placeholder.taken_out(value) for value in values]
        unchanged = [
            tuple(name for name in names if name in self._json.types) for _, names in taken_out
        ]
        events = self._json.read([value for value, _ in taken_out], self._enveloped)
        return events, unchanged if any(unchanged) else None

    def _rows(self, events: pa.Table) -> Iterator[pa.Array]:
        """The rows before and after, of the events themselves and of their payloads."""
        for side in ("before", "after"):
            yield one_array(events[side])
            yield pc.struct_field(one_array(events["payload"]), side)

    def _column(self, events: pa.Table, name: str, is_delete: pa.Array) -> pa.Array:
        """Rows before and after may differ in members that the table lacks."""
        kind = self._json.raw_type(name)
        before, after = (_leaf(events, row, name, kind=kind) for row in ("before", "after"))
        return pc.if_else(is_delete, before, after)

    def _new(self, events: pa.Table) -> NewColumns | None:
        """Of the rows after changes: a delete makes no column."""
        members: dict[str, pa.Array] = {}
        inner: dict[int, tuple[Member, ...]] = {}
        for path in (("after",), ("payload", "after")):
            row = one_array(events[path[0]])
            for step in path[1:]:
                row = pc.struct_field(row, step)
            names = (field.name for field in row.type)
            of_row = dict(zip(names, row.flatten(), strict=True))  # one by one would be quadratic
            for name, values in of_row.items():
                if not is_new(name, self._json.known):
                    continue
                if name not in members or members[name].null_count == len(values):
                    members[name] = values
            if self._json.nested:
                nested = {name: of_row[name] for name in self._json.nested}
                inner |= members_of_values(nested, self._json.nested)
        return with_members(inferred_columns(members) if members else None, inner)

    def _enveloped(self, columns: pa.Schema) -> pa.Schema:
        row = pa.struct(list(columns))
        # Arrow has no struct without members
        source = pa.struct(list(self._source.items()) or [("ts_ms", pa.int64())])
        members = [("before", row), ("after", row), ("source", source), *ENVELOPE.items()]
        return pa.schema([*members, ("payload", pa.struct(members))])


def unknown_operation(name: object) -> ValueError:
    return ValueError(
        f"op={name!r} is no change of a row; those are {', '.join(OPERATIONS)}: let the connector leave others out"
    )


def check_operations(operations: pa.Array) -> pa.Array:
    """Which are deletes; an error where the event is no change of a row."""
    known = pc.is_in(operations, pa.array(OPERATIONS))
    if not pc.all(known).as_py():
        other = operations.filter(pc.invert(known))[0].as_py()
        raise unknown_operation(other)
    return pc.equal(operations, "d")


def _leaf(events: pa.Table, *path: str, kind: pa.DataType | None = None) -> pa.Array:
    """Of the event itself or of its payload; null where one of both has no such member."""
    payload = pc.struct_field(one_array(events["payload"]), list(path))
    own = one_array(events[path[0]])
    own = pc.struct_field(own, list(path[1:])) if len(path) > 1 else own
    if kind is not None:
        own, payload = (part if part.type == kind else part.cast(kind) for part in (own, payload))
    return own if payload.null_count == len(payload) else pc.coalesce(own, payload)


def _is_there(events: pa.Table, row: str) -> pa.Array:
    return pc.or_(
        pc.is_valid(one_array(events[row])),
        pc.is_valid(pc.struct_field(one_array(events["payload"]), row)),
    )
