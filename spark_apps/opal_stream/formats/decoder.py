"""The decoder of messages to rows of a table.

It joins the columns of the value and of the message, marks deletes, reads tombstones, and sets bad
messages apart.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.json_rows import JsonForm
from opal_lake.data.rejects import BAD, NOTES, ROW, SOURCE, UNCHANGED
from opal_lake.definition.schema import DELETED, arrow_schema
from opal_lake.definition.table_spec import TableSpec, delete_condition
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.columns import (
    HEADER,
    KEY,
    KEY_MEMBER,
    SOURCE_MEMBER,
    check_columns,
    each,
    message_column,
)
from opal_stream.formats.keys import KeyReader
from opal_stream.formats.parser_by_format import parser_of
from opal_stream.formats.rows import row_schema
from opal_stream.formats.schemas.new_columns import (
    NewColumns,
    apart_by_case,
    apart_by_column,
    apart_by_member,
)
from opal_stream.formats.unavailable import unavailable_value
from opal_stream.operations.reading import FormatOptions


def row_form_of(options: FormatOptions) -> JsonForm | None:
    """Return how messages that are put aside can be read again.

    None where a row is made of more than the value of its message.
    """
    is_plain = options.format == "json" and not options.columns
    if is_plain:
        return JsonForm(time_unit=options.time_unit)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadMessage:
    """A bad message: its position in the batch, its source, and what is wrong.

    One with new columns may be put aside where other bad messages are not.
    """

    position: int
    source: str
    reason: str
    has_new_columns: bool = False


@dataclass(slots=True, kw_only=True)
class Decoded:
    """The rows of a batch as an ingest reads them, bad ones among them.

    `new` are columns that the table lacks: the caller decides what happens to them.
    """

    rows: pa.Table
    bad: list[BadMessage]
    skipped: int = 0  # tombstones that are ignored
    new: NewColumns | None = None


class Decoder:
    """A decoder for one state of a table; `renewed` returns one for other columns."""

    def __init__(self, spec: TableSpec, options: FormatOptions) -> None:
        self.options = options
        self._format = options.chosen()
        spec.require_keys("a stream")
        self.spec = spec
        # Why the table cannot get a column, by its name and type
        self.refused: dict[tuple[str, str], str] = {}
        self._schema = arrow_schema(spec.schema)
        self._columns = check_columns(
            options.columns, self._schema, debezium=self._format.is_debezium
        )
        columns_of_value = [column for column in self._schema if column.name not in self._columns]
        types = {column.name: column.type for column in columns_of_value}
        known = None if options.on_new_columns == "ignore" else frozenset(self._schema.names)
        self.parser = parser_of(options, types, self._members(SOURCE_MEMBER), known=known)
        self._keys = self._members(KEY_MEMBER)
        self.key_reader = KeyReader(options)
        self._reads_all_keys = bool(self._keys) or KEY in self._columns.values()
        # Debezium's delete event before a tombstone has deleted the row already
        self._skips_tombstones = self._format.is_debezium or options.on_tombstone == "ignore"
        self._tombstone_keys: dict[str, pa.DataType] = {}  # columns that a tombstone's key fills
        if spec.deletes is not None and not self._skips_tombstones:
            key_names = [key.name for key in spec.keys if key.name not in self._columns]
            self._tombstone_keys = {name: self._type(name) for name in key_names}
        # A change event of Debezium says itself whether it is a delete
        self._condition = None if self._format.is_debezium else delete_condition(spec)

    @property
    def needs_headers(self) -> bool:
        return any(path.startswith(HEADER) for path in self._columns.values())

    def unseen(self, batch: MessageBatch) -> int | None:
        """Return the position of the first message whose value or key has a new schema."""
        keys = [
            key if self._reads_key(value) else None
            for value, key in zip(batch.values, batch.keys, strict=True)
        ]
        firsts = (self.parser.unseen(batch.values), self.key_reader.unseen(keys))
        return min((position for position in firsts if position is not None), default=None)

    def learn(self, value: bytes | None, key: bytes | None = None) -> None:
        """Learn the schemas of a message that `unseen` named; the heads are enough."""
        if value is not None:
            self.parser.learn(value)
        if key is not None and self._reads_key(value):
            self.key_reader.learn(key)

    def _reads_key(self, value: bytes | None) -> bool:
        """Return whether the key of a message with this value is read."""
        return self._reads_all_keys or (value is None and bool(self._tombstone_keys))

    def renewed(self, spec: TableSpec) -> "Decoder":
        """Return a decoder for the table's current columns; keep the learned schemas."""
        new = Decoder(spec, self.options)
        new.refused = self.refused
        new.parser.take_over(self.parser)
        new.key_reader = self.key_reader
        return new

    def decode(self, batch: MessageBatch) -> Decoded:
        """Return the rows of a batch."""
        parts: list[pa.Table] = []
        new: NewColumns | None = None
        bad: list[tuple[int, str]] = []
        full = [position for position, value in enumerate(batch.values) if value is not None]
        empty = [position for position, value in enumerate(batch.values) if value is None]
        if full:
            rows, wrong, new = self._rows(batch if not empty else batch.take(full))
            if new is not None:
                new = new.moved(full)
            parts.append(rows)
            bad += [(full[position], reason) for position, reason in wrong]
        skipped = 0
        if empty and self._skips_tombstones:
            skipped = len(empty)
        elif empty:
            rows, wrong = self._tombstones(batch.take(empty))
            parts.append(rows)
            bad += [(empty[position], reason) for position, reason in wrong]
        if bad:
            parts.append(self._bad_rows(batch, bad))
        if parts:
            rows = pa.concat_tables(parts)
        else:
            rows = self.row_schema.empty_table()
        put_aside: frozenset[int] = frozenset()
        if new is not None and self.options.on_new_columns == "quarantine":
            put_aside = frozenset(new.positions)
        messages = [
            _bad_message(batch, position, reason, has_new=position in put_aside)
            for position, reason in sorted(bad)
        ]
        return Decoded(rows=rows, bad=messages, skipped=skipped, new=None if put_aside else new)

    def _rows(
        self, batch: MessageBatch
    ) -> tuple[pa.Table, list[tuple[int, str]], NewColumns | None]:
        """Return the rows of messages that have a value, bad ones, and new columns."""
        parsed = self.parser.parse([value for value in batch.values if value is not None])
        bad, rows = list(parsed.bad), parsed.rows
        positions = parsed.positions
        if not positions:
            return self.row_schema.empty_table(), bad, None
        new, unfit = self._fit(parsed.new)
        bad += unfit
        messages = batch if len(positions) == len(batch) else batch.take(positions)
        of_messages, wrong = self._of_messages(messages, rows)
        given = frozenset(rows.column_names)
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        for name in self._schema.names:
            if name in of_messages:
                columns[name] = of_messages[name]
            elif name in given:
                columns[name] = rows[name]
            else:
                columns[name] = pa.nulls(len(positions), self._type(name))
        table = pa.table(columns)
        deleted, unanswered = self._deleted(table, parsed.deleted)
        wrong = unanswered | wrong
        if parsed.unchanged is not None:
            table, without = self._with_unchanged(table, parsed.unchanged, parsed.deleted)
            wrong = without | wrong
        bad += [(positions[row], reason) for row, reason in wrong.items()]
        return *self._finish(table, deleted, messages, positions, bad), new

    def _deleted(
        self, table: pa.Table, of_events: pa.Array | None
    ) -> tuple[pa.Array | None, dict[int, str]]:
        """Return which rows are deletes, and why the condition has no answer for some."""
        if self._condition is None:
            return of_events, {}
        answers = self._condition.answers(table)
        if answers.failed is None:
            failed = []
        else:
            failed = answers.failed.to_pylist()
        unanswered = [position for position, is_failed in enumerate(failed) if is_failed]
        deleted = pc.fill_null(answers.values, False)
        return deleted, dict.fromkeys(unanswered, self._condition.failure)

    def _with_unchanged(
        self, table: pa.Table, unchanged: Sequence[tuple[str, ...]], deleted: pa.Array | None
    ) -> tuple[pa.Table, dict[int, str]]:
        """Note the columns that an ingest fills; return also the rows that need them now.

        A row cannot be ordered without its keys, delta and tie-breaks. A delete needs no other
        values.
        """
        ordering = [*self.spec.keys, self.spec.delta, *self.spec.tie_break]
        needed = {column.name for column in ordering}
        if deleted is None:
            is_deleted = [False] * table.num_rows
        else:
            is_deleted = deleted.to_pylist()
        texts: list[str | None] = []
        wrong: dict[int, str] = {}
        for row, names in enumerate(unchanged):
            missing = needed.intersection(names)
            if missing:
                wrong[row] = str(unavailable_value(min(missing)))
            is_lacking = names and not is_deleted[row]
            texts.append(json.dumps(names) if is_lacking else None)
        return table.append_column(UNCHANGED, pa.array(texts, pa.string())), wrong

    def _fit(self, new: NewColumns | None) -> tuple[NewColumns | None, list[tuple[int, str]]]:
        """Return the new columns to decide on, and the messages that are bad for theirs."""
        wrong: dict[int, str] = {}
        if new is not None:
            new, wrong = apart_by_case(new, self._schema.names, filled=self._columns)
        if new is not None and self.options.on_new_columns == "add":
            new, never = apart_by_member(new)
            wrong |= never
        if new is not None and self.refused:
            new, unfit = apart_by_column(new, self.refused)
            wrong |= unfit
        if new is not None and self.options.on_new_columns == "add" and new.is_of_schemas:
            # Once the table has these, the messages with others may be bad
            new = new.of_first()
        if new is not None and self.options.on_new_columns == "quarantine":
            wrong |= {position: new.text(position) for position in new.positions}
        return new, list(wrong.items())

    def _of_messages(
        self, messages: MessageBatch, rows: pa.Table
    ) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """Return the columns of the messages themselves, and what is wrong with some."""
        columns: dict[str, pa.Array] = {}
        wrong: dict[int, str] = {}
        of_keys = pa.table({})
        if self._keys:
            of_keys, wrong = self.key_reader.members(messages.keys, self._keys)
        given = frozenset(rows.column_names)
        for name, path in self._columns.items():
            kind = self._type(name)
            unfit: dict[int, str] = {}
            if path in given:  # a member of Debezium's event
                part = partial(_event_part, rows[path].combine_chunks(), kind)
                columns[name], unfit = each(len(messages), path, kind, part)
            elif path.startswith(KEY_MEMBER):
                columns[name] = of_keys[path.removeprefix(KEY_MEMBER)]
            elif path == KEY:
                columns[name], unfit = self.key_reader.whole(messages.keys, kind)
            else:
                part = partial(_part, messages, path, kind)
                columns[name], unfit = each(len(messages), path, kind, part)
            wrong |= unfit
        return columns, wrong

    def _tombstones(self, batch: MessageBatch) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Return the deletes of the keys of messages without a value."""
        if self.spec.deletes is None:
            reason = "a tombstone deletes its key, but the table has no delete condition"
            bad = [(position, reason) for position in range(len(batch))]
            return self.row_schema.empty_table(), bad
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            name: pa.nulls(len(batch), self._type(name)) for name in self._schema.names
        }
        wrong: dict[int, str] = {}
        of_messages, without = self._of_messages(batch, pa.table({}))
        columns |= of_messages
        wrong |= without
        if self._tombstone_keys:
            of_keys, without = self.key_reader.key_columns(batch.keys, self._tombstone_keys)
            columns |= of_keys
            wrong |= without
        delta, kind = self.spec.delta.name, self._type(self.spec.delta.name)
        if delta not in self._columns and pa.types.is_timestamp(kind):
            columns[delta] = message_column(batch, "@timestamp", kind)
        elif delta not in self._columns:
            wrong = dict.fromkeys(range(len(batch)), _without_delta(delta, kind)) | wrong
        deleted = pa.array([True] * len(batch))
        positions = list(range(len(batch)))
        return self._finish(pa.table(columns), deleted, batch, positions, list(wrong.items()))

    def _finish(
        self,
        table: pa.Table,
        deleted: pa.Array | None,
        messages: MessageBatch,
        positions: Sequence[int],
        bad: list[tuple[int, str]],
    ) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Return rows with the marks that an ingest reads, without bad ones, and these.

        `positions` are those of the rows in the batch.
        """
        reasons = dict(bad)
        for column in (*self.spec.keys, self.spec.delta):
            if not table[column.name].null_count:
                continue
            role = "delta" if column.id == self.spec.delta_id else "key"
            for row in pc.indices_nonzero(pc.is_null(table[column.name])).to_pylist():
                reasons.setdefault(positions[row], f"{role} column {column.name!r} is null")
        if self.spec.deletes is not None:
            if deleted is None:
                deleted = pa.array([False] * table.num_rows)
            table = table.append_column(DELETED, deleted)
        elif deleted is not None and deleted.true_count:
            reason = "the event deletes a row, but the table has no delete condition"
            deletes = pc.indices_nonzero(deleted).to_pylist()
            reasons |= {positions[row]: reason for row in deletes}
        table = table.append_column(SOURCE, messages.sources())
        for name in self._notes:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
        if reasons:
            is_good = [position not in reasons for position in positions]
            table = table.filter(pa.array(is_good, pa.bool_()))
        schema = self.row_schema
        return table.select(schema.names).cast(schema), sorted(reasons.items())

    def _bad_rows(self, batch: MessageBatch, bad: Sequence[tuple[int, str]]) -> pa.Table:
        """Return rows of nulls with notes: what is wrong, the source and the content.

        The ingest puts them aside.
        """
        positions = [position for position, _ in bad]
        notes: dict[str, pa.Array] = {
            SOURCE: batch.sources().take(pa.array(positions, pa.int64())),
            BAD: pa.array([reason for _, reason in bad], pa.string()),
            ROW: pa.array([batch.shown(position) for position in positions], pa.string()),
        }
        schema = self.row_schema
        columns = {
            column.name: notes.get(column.name, pa.nulls(len(bad), column.type))
            for column in schema
        }
        return pa.table(columns, schema=schema)

    @property
    def row_schema(self) -> pa.Schema:
        """The schema of the rows that `decode` makes."""
        return row_schema(self.spec, self._notes)

    @property
    def _notes(self) -> list[str]:
        """The notes of a row; only change events may lack values that did not change."""
        return [name for name in NOTES if name != UNCHANGED or self._format.is_debezium]

    def _members(self, prefix: str) -> dict[str, pa.DataType]:
        """Return the members that columns ask for under a prefix, with the columns' types."""
        members: dict[str, pa.DataType] = {}
        for name, path in self._columns.items():
            if path.startswith(prefix):
                members[path.removeprefix(prefix)] = self._type(name)
        return members

    def _type(self, name: str) -> pa.DataType:
        return self._schema.field(name).type


def _without_delta(name: str, kind: pa.DataType) -> str:
    path = "@timestamp" if pa.types.is_date(kind) else "@offset"
    return (
        f"a tombstone has no value for the delta column {name!r}, which is not a timestamp: "
        f"fill it from each message, as by --column {name}={path}"
    )


def _bad_message(batch: MessageBatch, position: int, reason: str, *, has_new: bool) -> BadMessage:
    return BadMessage(
        position=position, source=batch.source(position), reason=reason, has_new_columns=has_new
    )


def _event_part(column: pa.Array, kind: pa.DataType, start: int, stop: int) -> pa.Array:
    part = column.slice(start, stop - start)
    if pa.types.is_timestamp(kind) and pa.types.is_integer(column.type):
        part = part.cast(pa.timestamp("ms", tz=kind.tz))  # Debezium's own times are milliseconds
    return part.cast(kind)


def _part(messages: MessageBatch, path: str, kind: pa.DataType, start: int, stop: int) -> pa.Array:
    return message_column(messages.slice(start, stop), path, kind)
