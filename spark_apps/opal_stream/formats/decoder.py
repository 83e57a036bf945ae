"""Messages to the rows of a table: the value's columns, those of the message, deletes and tombstones, and the messages that are no row."""

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
    return JsonForm(time_unit=options.time_unit) if is_plain else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadMessage:
    """Where it stands in its batch and in Kafka, and what is wrong. One with new columns may be put aside where no other is."""

    position: int
    source: str
    reason: str
    has_new_columns: bool = False


@dataclass(slots=True, kw_only=True)
class Decoded:
    """Rows of a batch, bad ones among them, as an ingest takes them. `new` are columns that the table lacks; somebody has to decide."""

    rows: pa.Table
    bad: list[BadMessage]
    skipped: int = 0  # tombstones that say nothing new
    new: NewColumns | None = None


class Decoder:
    """For one table. Told of a new spec, when the table has other columns."""

    def __init__(self, spec: TableSpec, options: FormatOptions) -> None:
        self.options = options
        self._format = options.chosen()
        spec.require_keys("a stream")
        self.spec = spec
        self.refused: dict[
            tuple[str, str], str
        ] = {}  # why the table cannot get a column, by name and type
        self._schema = arrow_schema(spec.schema)
        self._columns = check_columns(
            options.columns, self._schema, debezium=self._format.is_debezium
        )
        own = {
            column.name: column.type for column in self._schema if column.name not in self._columns
        }
        source = {
            path.removeprefix(SOURCE_MEMBER): self._type(name)
            for name, path in self._of(SOURCE_MEMBER)
        }
        known = None if options.on_new_columns == "ignore" else frozenset(self._schema.names)
        self.parser = parser_of(options, own, source, known=known)
        self._keys = {
            path.removeprefix(KEY_MEMBER): self._type(name) for name, path in self._of(KEY_MEMBER)
        }
        self.key_reader = KeyReader(options)
        self._reads_all_keys = bool(self._keys) or KEY in self._columns.values()
        # The event of Debezium before a tombstone has deleted the row
        self._skips_tombstones = self._format.is_debezium or options.on_tombstone == "ignore"
        self._tombstone_keys: dict[str, pa.DataType] = {}  # that the key of a tombstone fills
        if spec.deletes is not None and not self._skips_tombstones:
            key_names = [key.name for key in spec.keys if key.name not in self._columns]
            self._tombstone_keys = {name: self._type(name) for name in key_names}
        # A change event of Debezium says itself whether it is a delete.
        self._condition = None if self._format.is_debezium else delete_condition(spec)

    @property
    def needs_headers(self) -> bool:
        return any(True for _ in self._of(HEADER))

    def unseen(self, batch: MessageBatch) -> int | None:
        """Return the position of the first message with a new schema, of its value or its key."""
        keys = [
            key if self._reads_key(value) else None
            for value, key in zip(batch.values, batch.keys, strict=True)
        ]
        positions = (self.parser.unseen(batch.values), self.key_reader.unseen(keys))
        return min((position for position in positions if position is not None), default=None)

    def learn(self, value: bytes | None, key: bytes | None = None) -> None:
        """Take the schemas of a message that `unseen` named. The heads of both are enough."""
        if value is not None:
            self.parser.learn(value)
        if key is not None and self._reads_key(value):
            self.key_reader.learn(key)

    def _reads_key(self, value: bytes | None) -> bool:
        """Return whether the key of a message with this value is read."""
        return self._reads_all_keys or (value is None and bool(self._tombstone_keys))

    def renewed(self, spec: TableSpec) -> "Decoder":
        """For the table as it is now. What was learned of schemas stays."""
        new = Decoder(spec, self.options)
        new.refused = self.refused
        new.parser.take_over(self.parser)
        new.key_reader = self.key_reader
        return new

    def decode(self, batch: MessageBatch) -> Decoded:
        parts: list[pa.Table] = []
        new: NewColumns | None = None
        bad: list[tuple[int, str]] = []
        full = [position for position, value in enumerate(batch.values) if value is not None]
        empty = [position for position, value in enumerate(batch.values) if value is None]
        if full:
            rows, wrong, new = self._rows(batch if not empty else batch.take(full))
            new = new and new.moved(full)
            self._add(parts, bad, (rows, wrong), full)
        skipped = 0
        if empty and self._skips_tombstones:
            skipped = len(empty)
        elif empty:
            self._add(parts, bad, self._tombstones(batch.take(empty)), empty)
        if bad:
            parts.append(self._bad_rows(batch, bad))
        rows = pa.concat_tables(parts) if parts else self.row_schema.empty_table()
        put_aside = frozenset(
            new.positions if new is not None and self.options.on_new_columns == "quarantine" else ()
        )
        messages = [
            _bad_message(batch, position, reason, has_new=position in put_aside)
            for position, reason in sorted(bad)
        ]
        return Decoded(rows=rows, bad=messages, skipped=skipped, new=None if put_aside else new)

    def _add(
        self,
        parts: list[pa.Table],
        bad: list[tuple[int, str]],
        made: tuple[pa.Table, list[tuple[int, str]]],
        positions: Sequence[int],
    ) -> None:
        rows, wrong = made
        parts.append(rows)
        bad += [(positions[position], reason) for position, reason in wrong]

    def _rows(
        self, batch: MessageBatch
    ) -> tuple[pa.Table, list[tuple[int, str]], NewColumns | None]:
        """Of messages that have a value."""
        parsed = self.parser.parse([value for value in batch.values if value is not None])
        bad, rows = list(parsed.bad), parsed.rows
        if not parsed.kept:
            return self.row_schema.empty_table(), bad, None
        new, unfit = self._fit(parsed.new)
        bad += unfit
        kept = parsed.kept
        messages = batch if len(kept) == len(batch) else batch.take(kept)
        columns, wrong = self._of_messages(messages, rows)
        given = frozenset(rows.column_names)
        found = {
            name: columns.get(name, rows[name] if name in given else None)
            for name in self._schema.names
        }
        table = pa.table(
            {
                name: column if column is not None else pa.nulls(len(kept), self._type(name))
                for name, column in found.items()
            }
        )
        deleted, unanswered = self._deleted(table, parsed.deleted)
        wrong = unanswered | wrong
        if parsed.unchanged is not None:
            table, without = self._with_unchanged(table, parsed.unchanged, parsed.deleted)
            wrong = without | wrong
        bad += [(kept[position], reason) for position, reason in wrong.items()]
        return *self._finish(table, deleted, messages, kept, bad), new

    def _deleted(
        self, table: pa.Table, of_events: pa.Array | None
    ) -> tuple[pa.Array | None, dict[int, str]]:
        """Which rows delete their key, and why the condition has no answer for some."""
        if self._condition is None:
            return of_events, {}
        answers = self._condition.answers(table)
        failed = [] if answers.failed is None else answers.failed.to_pylist()
        unanswered = [position for position, is_failed in enumerate(failed) if is_failed]
        deleted = pc.fill_null(answers.values, False)
        return deleted, dict.fromkeys(unanswered, self._condition.failure)

    def _with_unchanged(
        self, table: pa.Table, unchanged: Sequence[tuple[str, ...]], deleted: pa.Array | None
    ) -> tuple[pa.Table, dict[int, str]]:
        """With the names of columns that an ingest fills, and rows that cannot be placed without. A deleted row needs no values."""
        ordering = [*self.spec.keys, self.spec.delta, *self.spec.tie_break]
        needed = {column.name for column in ordering}
        is_deleted = [False] * table.num_rows if deleted is None else deleted.to_pylist()
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
        """What somebody has to decide, and the messages that are bad for what the table lacks of them."""
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
            new = new.of_first()  # the others may be bad messages of the table that has these
        if new is not None and self.options.on_new_columns == "quarantine":
            wrong |= {position: new.text(position) for position in new.positions}
        return new, list(wrong.items())

    def _of_messages(
        self, messages: MessageBatch, rows: pa.Table
    ) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """The columns of the messages themselves, and which have no such value."""
        columns: dict[str, pa.Array] = {}
        wrong: dict[int, str] = {}
        of_keys = pa.table({})
        if self._keys:
            of_keys, wrong = self.key_reader.members(messages.keys, self._keys)
        given = frozenset(rows.column_names)
        for name, path in self._columns.items():
            kind = self._type(name)
            if path in given:
                of_events = rows[path].combine_chunks()
                columns[name], without = each(
                    len(messages), path, kind, partial(_event_part, of_events, kind)
                )
                wrong |= without
            elif path.startswith(KEY_MEMBER):
                columns[name] = of_keys[path.removeprefix(KEY_MEMBER)]
            elif path == KEY:
                columns[name], without = self.key_reader.whole(messages.keys, kind)
                wrong |= without
            else:
                columns[name], without = each(
                    len(messages), path, kind, partial(_part, messages, path, kind)
                )
                wrong |= without
        return columns, wrong

    def _tombstones(self, batch: MessageBatch) -> tuple[pa.Table, list[tuple[int, str]]]:
        """A null value deletes the key that the message has."""
        if self.spec.deletes is None:
            reason = "a tombstone deletes its key, but the table has no delete condition"
            return self.row_schema.empty_table(), [
                (position, reason) for position in range(len(batch))
            ]
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            name: pa.nulls(len(batch), self._type(name)) for name in self._schema.names
        }
        wrong: dict[int, str] = {}
        of_messages, without = self._of_messages(batch, pa.table({}))
        columns |= of_messages
        wrong |= without
        if self._tombstone_keys:
            found, without = self.key_reader.key_columns(batch.keys, self._tombstone_keys)
            columns |= found
            wrong |= without
        delta, kind = self.spec.delta.name, self._type(self.spec.delta.name)
        if delta not in self._columns and pa.types.is_timestamp(kind):
            columns[delta] = message_column(batch, "@timestamp", kind)
        elif delta not in self._columns:
            wrong = dict.fromkeys(range(len(batch)), _without_delta(delta, kind)) | wrong
        return self._finish(
            pa.table(columns),
            pa.array([True] * len(batch)),
            batch,
            list(range(len(batch))),
            list(wrong.items()),
        )

    def _finish(
        self,
        table: pa.Table,
        deleted: pa.Array | None,
        messages: MessageBatch,
        kept: Sequence[int],
        bad: list[tuple[int, str]],
    ) -> tuple[pa.Table, list[tuple[int, str]]]:
        """With the marks that an ingest reads, and without the rows that cannot go in."""
        reasons = dict(bad)
        for column in (*self.spec.keys, self.spec.delta):
            role = "delta" if column.id == self.spec.delta_id else "key"
            if table[column.name].null_count:
                nulls = pc.indices_nonzero(pc.is_null(table[column.name])).to_pylist()
                reasons |= {
                    kept[row]: f"{role} column {column.name!r} is null"
                    for row in nulls
                    if kept[row] not in reasons
                }
        if self.spec.deletes is not None:
            table = table.append_column(
                DELETED, deleted if deleted is not None else pa.array([False] * table.num_rows)
            )
        elif deleted is not None and deleted.true_count:
            none = "the event deletes a row, but the table has no delete condition"
            reasons |= {kept[row]: none for row in pc.indices_nonzero(deleted).to_pylist()}
        table = table.append_column(SOURCE, messages.sources())
        for name in (name for name in self._notes if name not in table.column_names):
            table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
        if reasons:
            table = table.filter(
                pa.array([position not in reasons for position in kept], pa.bool_())
            )
        return table.select(self.row_schema.names).cast(self.row_schema), sorted(reasons.items())

    def _bad_rows(self, batch: MessageBatch, bad: Sequence[tuple[int, str]]) -> pa.Table:
        """Null but for what is wrong, where it stood, and what it held: the ingest puts them aside."""
        positions = [position for position, _ in bad]
        notes: dict[str, pa.Array] = {
            SOURCE: batch.sources().take(pa.array(positions, pa.int64())),
            BAD: pa.array([reason for _, reason in bad], pa.string()),
            ROW: pa.array([batch.shown(position) for position in positions], pa.string()),
        }
        schema = self.row_schema
        return pa.table(
            {
                column.name: notes.get(column.name, pa.nulls(len(bad), column.type))
                for column in schema
            },
            schema=schema,
        )

    @property
    def row_schema(self) -> pa.Schema:
        """Of the rows that `decode` makes."""
        return row_schema(self.spec, self._notes)

    @property
    def _notes(self) -> list[str]:
        """Only change events may lack values that did not change."""
        return [name for name in NOTES if name != UNCHANGED or self._format.is_debezium]

    def _of(self, prefix: str) -> list[tuple[str, str]]:
        return [(name, path) for name, path in self._columns.items() if path.startswith(prefix)]

    def _type(self, name: str) -> pa.DataType:
        return self._schema.field(name).type


def _without_delta(name: str, kind: pa.DataType) -> str:
    filled = f"--column {name}={'@timestamp' if pa.types.is_date(kind) else '@offset'}"
    return f"a tombstone has no value for the delta column {name!r}, which is no timestamp: fill it from each message, as by {filled}"


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
