"""The decoder of messages to rows of a table.

It joins the columns that a value fills with those that the message itself fills. It marks deletes,
reads tombstones, and separates bad messages from good ones.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.json_rows import JsonForm
from opal_lake.data.rejects import BAD, NOTES, ROW, SOURCE, UNCHANGED
from opal_lake.definition.added_columns import former_name
from opal_lake.definition.default_values import default_scalar
from opal_lake.definition.schema import DELETED, Field, Schema, arrow_schema
from opal_lake.definition.table_spec import TableSpec, delete_condition, stream_by_commit
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.columns import (
    HEADER,
    KEY,
    KEY_MEMBER,
    SOURCE_MEMBER,
    check_columns,
    column_and_problems,
    message_column,
)
from opal_stream.formats.keys import KeyReader
from opal_stream.formats.parser_by_format import parser_of
from opal_stream.formats.rows import row_schema
from opal_stream.formats.schemas.former_members import FormerMembers
from opal_stream.formats.schemas.new_columns import (
    Known,
    NewColumns,
    split_by_case,
    split_by_member,
    split_by_refused_column,
)
from opal_stream.formats.unavailable import missing_value_error
from opal_stream.operations.reading import FormatOptions


def row_form_of(options: FormatOptions) -> JsonForm | None:
    """Return the form by which messages that were put aside can be read again.

    Return None if a row is made of more than the value of its message.
    """
    is_plain = options.format == "json" and not options.columns
    if is_plain:
        return JsonForm(time_unit=options.time_unit)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadMessage:
    """A bad message: its position in the batch, its source, and what is wrong with it.

    With `has_new_columns` it is bad for these only, and may be put aside where other bad messages
    stop the stream.
    """

    position: int
    source: str
    reason: str
    has_new_columns: bool = False


@dataclass(slots=True, kw_only=True)
class Decoded:
    """The rows of a batch as an ingest reads them; bad messages have rows with notes.

    - `schema` has the table's columns that the rows have.
    - `skipped` counts ignored tombstones.
    - `new` are columns that the table lacks; the caller decides what happens to them.
    """

    rows: pa.Table
    schema: Schema
    bad: list[BadMessage]
    skipped: int = 0
    new: NewColumns | None = None


class Decoder:
    """A decoder for one state of a table; `renewed` returns one for other columns."""

    def __init__(self, spec: TableSpec, options: FormatOptions) -> None:
        self.options = options
        self._format = options.chosen()
        spec.require_keys("a stream")
        if spec.orders_by_commit:
            raise stream_by_commit()
        self.spec = spec
        # Why the table cannot get a column, by its name and type
        self.refused: dict[tuple[str, str], str] = {}
        self._schema = arrow_schema(spec.schema)
        self._columns = check_columns(
            options.columns, spec.schema, debezium=self._format.is_debezium
        )
        names_of_value = [name for name in self._schema.names if name not in self._columns]
        types = {name: self._type(name) for name in names_of_value}
        known: Known = None
        # The columns whose values a message would lose under their former names, by these names
        self._renamed: dict[str, Field] = {}
        self._former_members = FormerMembers([])
        if options.on_new_columns == "ignore":
            self._renamed = _renamed_of_value(spec.schema, types)
            types |= {name: types[field.name] for name, field in self._renamed.items()}
            of_value = [field for field in spec.schema.fields if field.name in types]
            self._former_members = FormerMembers(of_value)
            types |= self._former_members.types
        else:
            known = frozenset(self._schema.names)
        defaults: dict[str, pa.Scalar] = {}
        for field in spec.schema.fields:
            if field.write is not None and field.name in types:
                defaults[field.name] = default_scalar(field.write, types[field.name])
        self.parser = parser_of(
            options, types, self._members(SOURCE_MEMBER), known=known, defaults=defaults
        )
        self._keys = self._members(KEY_MEMBER)
        self.key_reader = KeyReader(options)
        self._reads_all_keys = bool(self._keys) or KEY in self._columns.values()
        # Debezium's delete event before a tombstone has deleted the row already
        self._skips_tombstones = self._format.is_debezium or options.on_tombstone == "ignore"
        # The key columns that a tombstone's key fills, with their types
        self._tombstone_keys: dict[str, pa.DataType] = {}
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
        read_keys = [
            key if self._reads_key(value) else None
            for value, key in zip(batch.values, batch.keys, strict=True)
        ]
        first_value = self.parser.unseen(batch.values)
        first_key = self.key_reader.unseen(read_keys)
        if first_value is None or first_key is None:
            return first_key if first_value is None else first_value
        return min(first_value, first_key)

    def learn(self, value: bytes | None, key: bytes | None = None) -> None:
        """Learn the schemas of a message that `unseen` returned.

        The first bytes are enough.
        """
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
        """Return the rows of a batch, its bad messages and its new columns."""
        parts: list[pa.Table] = []
        new: NewColumns | None = None
        bad: list[tuple[int, str]] = []
        full = [position for position, value in enumerate(batch.values) if value is not None]
        empty = [position for position, value in enumerate(batch.values) if value is None]
        if full:
            with_values = batch if not empty else batch.take(full)
            rows, wrong, new = self._rows(with_values)
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
        return Decoded(
            rows=rows,
            schema=self.spec.schema,
            bad=messages,
            skipped=skipped,
            new=None if put_aside else new,
        )

    def _rows(
        self, batch: MessageBatch
    ) -> tuple[pa.Table, list[tuple[int, str]], NewColumns | None]:
        """Decode messages that have a value.

        Returns the rows, the positions of bad messages with what is wrong, and the new columns.
        """
        parsed = self.parser.parse([value for value in batch.values if value is not None])
        bad, rows = list(parsed.bad), parsed.rows
        positions = parsed.positions
        if not positions:
            return self.row_schema.empty_table(), bad, None
        lost = self._former_members.refused(rows)
        rows = self._former_members.left_out(rows)
        new, unfit = self._fit(parsed.new)
        bad += unfit
        messages = batch
        if len(positions) < len(batch):
            messages = batch.take(positions)
        of_messages, wrong = self._of_messages(messages, rows)
        parsed_names = frozenset(rows.column_names)
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        for name in self._schema.names:
            if name in of_messages:
                columns[name] = of_messages[name]
            elif name in parsed_names:
                columns[name] = rows[name]
            else:
                columns[name] = pa.nulls(len(positions), self._type(name))
        table = pa.table(columns)
        deleted, unanswered = self._deleted(table, parsed.deleted)
        wrong = unanswered | wrong  # a reason on the right counts, if a row has several
        wrong |= lost | self._with_former_names(rows, parsed.unchanged)
        if parsed.unchanged is not None:
            table, lacking = self._with_unchanged(table, parsed.unchanged, parsed.deleted)
            wrong = lacking | wrong
        bad += [(positions[row], reason) for row, reason in wrong.items()]
        good_rows, all_bad = self._finish(table, deleted, messages, positions, bad)
        return good_rows, all_bad, new

    def _deleted(
        self, table: pa.Table, of_events: pa.Array | None
    ) -> tuple[pa.Array | None, dict[int, str]]:
        """Return which rows are deletes, and why the condition has no answer for some.

        `of_events` are the deletes that change events mark; None for formats without marks.
        """
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

    def _with_former_names(
        self, rows: pa.Table, unchanged: Sequence[tuple[str, ...]] | None
    ) -> dict[int, str]:
        """Return by row what is wrong with messages that call a column by a former name."""
        wrong: dict[int, str] = {}
        for name, field in self._renamed.items():
            reason = f"the message has a member {former_name(name, field.name)}"
            named = pc.indices_nonzero(pc.is_valid(rows[name])).to_pylist()
            wrong |= dict.fromkeys(named, reason)
            for row, names in enumerate(unchanged or ()):
                if name in names:
                    wrong[row] = reason
        return wrong

    def _with_unchanged(
        self, table: pa.Table, unchanged: Sequence[tuple[str, ...]], deleted: pa.Array | None
    ) -> tuple[pa.Table, dict[int, str]]:
        """Add a note to each row with the columns that did not change.

        An ingest fills them.

        Returns the table, and by row what is wrong: a row cannot be ordered without its keys, delta
        and tie-breaks. A delete needs no other values, and gets no note.
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
                wrong[row] = str(missing_value_error(min(missing)))
            is_lacking = names and not is_deleted[row]
            texts.append(json.dumps(names) if is_lacking else None)
        return table.append_column(UNCHANGED, pa.array(texts, pa.string())), wrong

    def _fit(self, new: NewColumns | None) -> tuple[NewColumns | None, list[tuple[int, str]]]:
        """Return the new columns on which the caller decides, and the bad messages.

        A message is bad if one of its new columns or members cannot be added, or if new columns are
        put aside.
        """
        wrong: dict[int, str] = {}
        if new is not None:
            new, wrong = split_by_case(new, self._schema.names, filled=self._columns)
        if new is not None and self.options.on_new_columns == "add":
            new, never = split_by_member(new)
            wrong |= never
        if new is not None and self.refused:
            new, unfit = split_by_refused_column(new, self.refused)
            wrong |= unfit
        if new is not None and self.options.on_new_columns == "add" and new.is_of_schemas:
            # One schema at a time: once its columns are added, other messages may be bad
            new = new.of_first_message()
        if new is not None and self.options.on_new_columns == "quarantine":
            past_of = self.spec.schema.past_of
            wrong |= {position: new.text(position, past_of) for position in new.positions}
        return new, list(wrong.items())

    def _of_messages(
        self, messages: MessageBatch, rows: pa.Table
    ) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """Return the columns that the messages themselves fill, and by row what is wrong.

        `rows` has the members of change events that columns ask for.
        """
        columns: dict[str, pa.Array] = {}
        wrong: dict[int, str] = {}
        of_keys = pa.table({})
        if self._keys:
            of_keys, wrong = self.key_reader.members(messages.keys, self._keys)
        event_paths = frozenset(rows.column_names)
        for name, path in self._columns.items():
            kind = self._type(name)
            unfit: dict[int, str] = {}
            if path in event_paths:
                values_between = partial(_event_values, rows[path].combine_chunks(), kind)
                columns[name], unfit = column_and_problems(
                    len(messages), path, kind, values_between
                )
            elif path.startswith(KEY_MEMBER):
                columns[name] = of_keys[path.removeprefix(KEY_MEMBER)]
            elif path == KEY:
                columns[name], unfit = self.key_reader.whole(messages.keys, kind)
            else:
                values_between = partial(_message_values, messages, path, kind)
                columns[name], unfit = column_and_problems(
                    len(messages), path, kind, values_between
                )
            wrong |= unfit
        return columns, wrong

    def _tombstones(self, batch: MessageBatch) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Return rows that delete the keys of messages without values, and bad messages."""
        if self.spec.deletes is None:
            reason = (
                "a tombstone deletes its key, but the table has no delete condition: ignore "
                "tombstones with on_tombstone='ignore'"
            )
            bad = [(position, reason) for position in range(len(batch))]
            return self.row_schema.empty_table(), bad
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            name: pa.nulls(len(batch), self._type(name)) for name in self._schema.names
        }
        of_messages, wrong = self._of_messages(batch, pa.table({}))
        columns |= of_messages
        if self._tombstone_keys:
            of_keys, wrong_keys = self.key_reader.key_columns(batch.keys, self._tombstone_keys)
            columns |= of_keys
            wrong |= wrong_keys
        delta = self.spec.delta.name
        kind = self._type(delta)
        if delta not in self._columns:
            if pa.types.is_timestamp(kind):
                columns[delta] = message_column(batch, "@timestamp", kind)
            else:
                without_delta = dict.fromkeys(range(len(batch)), _without_delta(delta, kind))
                wrong = without_delta | wrong
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
        """Return the good rows with the notes that an ingest reads, and all bad messages.

        `bad` are the bad messages so far; rows with a null key or delta are bad, too. `positions`
        are those of the rows in the batch.
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
        """Return a row of nulls for each bad message, which an ingest puts aside.

        Its notes say what is wrong, and hold the source and the content of the message.
        """
        positions = [position for position, _ in bad]
        notes: dict[str, pa.Array] = {
            SOURCE: batch.sources().take(pa.array(positions, pa.int64())),
            BAD: pa.array([reason for _, reason in bad], pa.string()),
            ROW: pa.array([batch.shown(position) for position in positions], pa.string()),
        }
        schema = self.row_schema
        columns: dict[str, pa.Array] = {}
        for column in schema:
            if column.name in notes:
                columns[column.name] = notes[column.name]
            else:
                columns[column.name] = pa.nulls(len(bad), column.type)
        return pa.table(columns, schema=schema)

    @property
    def row_schema(self) -> pa.Schema:
        """The schema of the rows that `decode` makes."""
        return row_schema(self.spec, self._notes)

    @property
    def _notes(self) -> list[str]:
        """The names of a row's notes.

        Only change events have the note of unchanged columns.
        """
        return [name for name in NOTES if name != UNCHANGED or self._format.is_debezium]

    def _members(self, prefix: str) -> dict[str, pa.DataType]:
        """Return the members that paths with a prefix name, with their columns' types."""
        members: dict[str, pa.DataType] = {}
        for name, path in self._columns.items():
            if path.startswith(prefix):
                members[path.removeprefix(prefix)] = self._type(name)
        return members

    def _type(self, name: str) -> pa.DataType:
        return self._schema.field(name).type


def _renamed_of_value(schema: Schema, types: Mapping[str, pa.DataType]) -> dict[str, Field]:
    """Return the renamed columns that values of messages fill, by their former names."""
    renamed = schema.renamed.items()
    return {name: field for name, field in renamed if field.name in types}


def _without_delta(name: str, kind: pa.DataType) -> str:
    path = "@timestamp" if pa.types.is_date(kind) else "@offset"
    return (
        f"a tombstone has no value for the delta column {name!r}, which is not a timestamp: fill "
        f"the column from each message, for example columns={{{name!r}: {path!r}}} "
        f"(--column {name}={path})"
    )


def _bad_message(batch: MessageBatch, position: int, reason: str, *, has_new: bool) -> BadMessage:
    return BadMessage(
        position=position, source=batch.source(position), reason=reason, has_new_columns=has_new
    )


def _event_values(column: pa.Array, kind: pa.DataType, start: int, stop: int) -> pa.Array:
    """Return a part of an event's column in another type."""
    values = column.slice(start, stop - start)
    if pa.types.is_timestamp(kind) and pa.types.is_integer(column.type):
        # Debezium's own times are milliseconds
        values = values.cast(pa.timestamp("ms", tz=kind.tz))
    return values.cast(kind)


def _message_values(
    messages: MessageBatch, path: str, kind: pa.DataType, start: int, stop: int
) -> pa.Array:
    """Return a part of the column that a path of messages fills."""
    return message_column(messages.slice(start, stop), path, kind)
