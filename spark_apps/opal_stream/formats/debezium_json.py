"""Debezium's change events in JSON: objects with the members before, after, op and ts_ms.

An event is the message itself, or its payload next to a schema of Kafka Connect. `avro` reads
events in Avro.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.formats.absent_members import (
    NO_DEFAULTS,
    Defaults,
    row_of_event,
    with_defaults_of_absent,
)
from opal_stream.formats.json_lines import ERRORS, TypedJson, one_array
from opal_stream.formats.parser import Parsed, halve_until_good
from opal_stream.formats.schemas.connect import ConnectSchemas
from opal_stream.formats.schemas.inferred import inferred_columns
from opal_stream.formats.schemas.members import members_of_values
from opal_stream.formats.schemas.new_columns import (
    Known,
    Member,
    NewColumns,
    is_new,
    merge_new_columns,
    with_members,
)
from opal_stream.formats.unavailable import Placeholder

OPERATIONS = ("c", "u", "r", "d")  # insert, update, read by a snapshot, delete
_BASE64 = (
    ": decimals in base64 need the schema in the event: let the connector set "
    "schemas.enable=true, or decimal.handling.mode=string"
)
NO_ROW = (
    "the change event has no row: a delete needs the member `before` (set REPLICA IDENTITY FULL), "
    "every other change the member `after`"
)
ENVELOPE = {"op": pa.string(), "ts_ms": pa.int64()}  # columns may ask for them as @op and @ts_ms


class DebeziumJsonParser:
    """A parser of change events to the row before a delete, or after another change.

    `source` are the members of the event's `source` that columns ask for, with their types.
    """

    def __init__(
        self,
        types: Mapping[str, pa.DataType],
        time_unit: str = "ms",
        source: Mapping[str, pa.DataType] | None = None,
        known: Known = None,
        placeholder: Placeholder | None = None,
        *,
        defaults: Defaults = NO_DEFAULTS,
    ) -> None:
        self._json = TypedJson(types, time_unit, known)
        self._defaults = defaults
        self._placeholder = placeholder or Placeholder()
        self._drops_members = known is None and any(map(pa.types.is_nested, types.values()))
        self._source = dict(source or {})
        self._schemas = ConnectSchemas()

    def parse(self, values: Sequence[bytes]) -> Parsed:
        parsed = halve_until_good(values, self._parse, ERRORS)
        parsed.bad = [(position, _with_hint(reason)) for position, reason in parsed.bad]
        if parsed.new is not None:
            unit = self._json.time_unit
            types = {
                position: self._schemas.columns(values[position], unit)
                for position in parsed.new.names
            }
            parsed.new = parsed.new.with_schema_types(types)
        return parsed

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        """Return None: without a registry a value does not name a schema."""
        return None

    def learn(self, value: bytes) -> None:
        """Do nothing, as a value does not name a schema."""

    def take_over(self, other: "DebeziumJsonParser") -> None:
        """Do nothing, as no schema is learned."""

    def _parse(self, values: Sequence[bytes]) -> Parsed:
        self._json.forms = self._schemas.forms(values)
        events, unchanged = self._events(values)
        is_delete = check_operations(_leaf(events, "op"))
        has_row = pc.if_else(is_delete, _has_side(events, "before"), _has_side(events, "after"))
        if not pc.all(has_row).as_py():
            raise ValueError(NO_ROW)
        columns: dict[str, pa.ChunkedArray] = {}
        for name in self._json.types:
            columns[name] = pa.chunked_array([self._column(events, name, is_delete)])
        table = self._json.convert(columns)
        table = with_defaults_of_absent(table, values, self._defaults, row_of_event)
        for name in ENVELOPE:
            table = table.append_column(f"@{name}", _leaf(events, name))
        for name in self._source:
            table = table.append_column(f"@source.{name}", _leaf(events, "source", name))
        return Parsed(
            rows=table,
            positions=[],
            deleted=is_delete,
            new=self._new(events),
            unchanged=unchanged,
        )

    def _events(self, values: Sequence[bytes]) -> tuple[pa.Table, list[tuple[str, ...]] | None]:
        """Return events, and the columns that did not change in each, which are null.

        The second member is None if all events have all values. The text of messages is searched
        for placeholders only if the parsed values look like one, or if Arrow refused the values: a
        placeholder of an array may not fit its column.
        """
        try:
            events = self._json.read(values, self._enveloped)
            may_lack_values = any(map(self._placeholder.may_be_in, self._rows(events)))
            # Arrow leaves out members that a column lacks. The placeholder of an hstore is one
            if not may_lack_values and self._drops_members:
                may_lack_values = self._may_be_in_text(values)
            if not may_lack_values:
                return events, None
        except ERRORS:
            if not self._may_be_in_text(values):
                raise
        removed = [self._placeholder.removed(value) for value in values]
        unchanged: list[tuple[str, ...]] = []
        for _, names in removed:
            unchanged.append(tuple(name for name in names if name in self._json.types))
        events = self._json.read([value for value, _ in removed], self._enveloped)
        return events, unchanged if any(unchanged) else None

    def _may_be_in_text(self, values: Sequence[bytes]) -> bool:
        return any(map(self._placeholder.may_be_in_text, values))

    def _rows(self, events: pa.Table) -> Iterator[pa.Array]:
        """Yield the rows before and after changes, of the events and of their payloads."""
        for side in ("before", "after"):
            yield one_array(events[side])
            yield pc.struct_field(one_array(events["payload"]), side)

    def _column(self, events: pa.Table, name: str, is_delete: pa.Array) -> pa.Array:
        """Return a column of the row before a delete, or after another change."""
        # One type for both rows: they may differ in members that the table lacks
        kind = self._json.raw_type(name)
        before = _leaf(events, "before", name, kind=kind)
        after = _leaf(events, "after", name, kind=kind)
        return pc.if_else(is_delete, before, after)

    def _new(self, events: pa.Table) -> NewColumns | None:
        """Return the new columns of the rows after changes: a delete adds no column."""
        new_columns: list[NewColumns | None] = []
        new_members: dict[int, tuple[Member, ...]] = {}
        payload = one_array(events["payload"])
        # A batch may have both: a plain event is null in the payload, an enveloped one in `after`
        for row in (one_array(events["after"]), pc.struct_field(payload, "after")):
            names = [field.name for field in row.type]
            # All members at once: one by one would take quadratic time
            values_by_name = dict(zip(names, row.flatten(), strict=True))
            known = self._json.known
            new_values = {name: values_by_name[name] for name in names if is_new(name, known)}
            new_columns.append(inferred_columns(new_values))
            if self._json.nested:
                nested = {name: values_by_name[name] for name in self._json.nested}
                new_members |= members_of_values(nested, self._json.nested)
        return with_members(merge_new_columns(new_columns), new_members)

    def _enveloped(self, columns: pa.Schema) -> pa.Schema:
        """Return the schema of messages whose rows have these columns.

        A message is an event, or an object with the event as its payload.
        """
        row = pa.struct(list(columns))
        source_members = list(self._source.items())
        if not source_members:  # Arrow has no struct without members
            source_members = [("ts_ms", pa.int64())]
        members = [
            ("before", row),
            ("after", row),
            ("source", pa.struct(source_members)),
            *ENVELOPE.items(),
        ]
        return pa.schema([*members, ("payload", pa.struct(members))])


def _with_hint(reason: str) -> str:
    if "not a valid decimal" in reason:
        return reason + _BASE64
    return reason


def unknown_operation_error(name: object) -> ValueError:
    """Return the error of an event that is not a change of a row."""
    known = ", ".join(OPERATIONS)
    return ValueError(
        f"op={name!r} is not a change of a row; let the connector leave out events other than "
        f"op {known}"
    )


def check_operations(operations: pa.Array) -> pa.Array:
    """Return which operations are deletes; raise ValueError for an unknown one."""
    known = pc.is_in(operations, pa.array(OPERATIONS))
    if not pc.all(known).as_py():
        other = operations.filter(pc.invert(known))[0].as_py()
        raise unknown_operation_error(other)
    return pc.equal(operations, "d")


def _leaf(events: pa.Table, *path: str, kind: pa.DataType | None = None) -> pa.Array:
    """Return the member at a path of each event.

    An enveloped event has the member in its payload.
    """
    payload = pc.struct_field(one_array(events["payload"]), list(path))
    own = one_array(events[path[0]])
    if len(path) > 1:
        own = pc.struct_field(own, list(path[1:]))
    if kind is not None:
        own, payload = _as_type(own, kind), _as_type(payload, kind)
    if payload.null_count == len(payload):
        return own
    return pc.coalesce(own, payload)


def _as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    return values.cast(kind)


def _has_side(events: pa.Table, side: str) -> pa.Array:
    """Return which events, themselves or in their payload, have a row at `side`.

    `side` is "before" or "after".
    """
    own = pc.is_valid(one_array(events[side]))
    in_payload = pc.is_valid(pc.struct_field(one_array(events["payload"]), side))
    return pc.or_(own, in_payload)
