"""Keys of messages: a whole key as one column, or the members of a key that is an object.

A whole key of JSON or Avro means what a member of a value means that is written like it.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.format_names import FORMATS
from opal_stream.formats.columns import KEY, each, of_bytes
from opal_stream.formats.json_lines import JsonParser
from opal_stream.formats.parser import Parsed, Parser
from opal_stream.formats.references import RegisteredSchema
from opal_stream.formats.registry import (
    AVRO,
    HEAD_BYTES,
    JSON,
    SchemaRegistry,
    first_unseen,
    schema_id,
)
from opal_stream.formats.registry_json import RegistryJsonParser
from opal_stream.operations.reading import FormatOptions

Keys = Sequence[bytes | None]
Types = Mapping[str, pa.DataType]
Wrong = dict[int, str]  # by the position of a key: what is wrong with it
_WHOLE = "key"  # the column of whole keys
_SPACES = b" \t\r\n"
_SHOWN_BYTES = 40


@dataclass(slots=True)
class _Kinds:
    """The positions of keys by what they are; null keys are in none."""

    texts: list[int] = field(default_factory=list)
    plain: list[int] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    wrong: Wrong = field(default_factory=dict)


class KeyReader:
    """A reader of keys in the format of the values, or in their own.

    Where the stream names no format of keys, a key may also be a plain text. A key that would be
    another value as JSON than as text is refused then.
    """

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._is_guessed = options.key_format is None
        self._form = FORMATS.get(options.key_format or options.format)  # None for plain texts
        self._registry: SchemaRegistry | None = None
        if self._form is not None and self._form.is_registered:
            kind = AVRO if self._form.is_avro else JSON
            self._registry = SchemaRegistry(options.registry or "", kind)
        self._parsers: dict[tuple[tuple[str, pa.DataType], ...], Parser] = {}
        # For Avro, by the head of keys: whether they are records, or why their schema is refused
        self._records: dict[bytes, bool] = {}
        self._refused: dict[bytes, str] = {}

    def unseen(self, keys: Keys) -> int | None:
        """Return the position of the first key with a schema that was never asked for."""
        if self._registry is None:
            return None
        return first_unseen(self._registry, list(keys))

    def learn(self, key: bytes) -> None:
        """Ask the registry for the schema of a key; its head is enough."""
        if self._registry is None:
            return
        with suppress(ValueError):  # reading the key reports what is wrong with its schema
            self._registry.schema(schema_id(key))

    def whole(self, keys: Keys, kind: pa.DataType) -> tuple[pa.Array, Wrong]:
        """Return the keys as one column; null for a null key."""
        kinds = self._kinds(keys)
        if self._is_guessed and self._registry is None:
            kinds.texts = sorted(kinds.texts + kinds.objects)
        else:
            reason = "key: it is an object; fill the column from a member of it, as @key.id"
            kinds.wrong |= dict.fromkeys(kinds.objects, reason)
        return self._whole(keys, kinds, kind)

    def members(self, keys: Keys, types: Types) -> tuple[pa.Table, Wrong]:
        """Return members of the keys by name; null where a key lacks one."""
        present = [position for position, key in enumerate(keys) if key]
        parsed = self._parser(types).parse([key for key in keys if key])
        wrong = {present[position]: f"key: {reason}" for position, reason in parsed.bad}
        rows = {present[position]: row for row, position in enumerate(parsed.positions)}
        if not rows:
            nulls = {name: pa.nulls(len(keys), kind) for name, kind in types.items()}
            return pa.table(nulls), wrong
        members = parsed.rows.select(list(types))
        return members.take(_row_numbers(rows, len(keys))), wrong

    def key_columns(self, keys: Keys, types: Types) -> tuple[dict[str, pa.Array], Wrong]:
        """Return the columns that keys fill: a plain key one, an object its members."""
        kinds = self._kinds(keys)
        wrong = dict(kinds.wrong)
        objects: list[bytes | None] = [None] * len(keys)
        for position in kinds.objects:
            objects[position] = keys[position]
        rows, wrong_objects = self.members(objects, types)
        columns = {name: rows[name].combine_chunks() for name in types}
        if len(types) > 1:
            reason = f"key: one value cannot fill the columns {', '.join(types)}"
            plain = dict.fromkeys([*kinds.texts, *kinds.plain], reason)
            return columns, wrong | wrong_objects | plain
        [(name, kind)] = types.items()
        whole, unfit = self._whole(keys, kinds, kind)
        is_object = pa.array([key is not None for key in objects])
        return {name: pc.if_else(is_object, columns[name], whole)}, unfit | wrong_objects

    def _kinds(self, keys: Keys) -> _Kinds:
        kinds = _Kinds()
        for position, key in enumerate(keys):
            if key is None:
                continue
            if self._form is None:
                kinds.texts.append(position)
                continue
            if self._is_guessed and not self._is_formatted(key):
                if _is_json_text(key):
                    kinds.wrong[position] = _two_readings(key)
                else:
                    kinds.texts.append(position)
                continue
            try:
                is_object = self._is_object(key)
            except ValueError as error:
                kinds.wrong[position] = f"key: {error}"
                continue
            if is_object:
                kinds.objects.append(position)
            else:
                kinds.plain.append(position)
        return kinds

    def _is_formatted(self, key: bytes) -> bool:
        """Return whether a key begins as the format of the values does."""
        if self._registry is not None:
            return key[:1] == b"\0"
        return _first(key) == b"{"

    def _is_object(self, key: bytes) -> bool:
        """Return whether a key has members; raise ValueError if its schema cannot be read."""
        if self._registry is None:
            return _first(key) == b"{"
        head, number = key[:HEAD_BYTES], schema_id(key)
        if self._form is None or not self._form.is_avro:
            return _first(key[HEAD_BYTES:]) == b"{"
        if head in self._refused:
            raise ValueError(self._refused[head])
        if head not in self._records:
            registered = self._registry.schema(number)
            try:
                self._records[head] = _is_of_records(registered)
            except ValueError as error:
                self._refused[head] = str(error)  # an id never changes its meaning
                raise
        return self._records[head]

    def _whole(self, keys: Keys, kinds: _Kinds, kind: pa.DataType) -> tuple[pa.Array, Wrong]:
        """Return the texts and the plain values among the keys; null elsewhere."""
        wrong = dict(kinds.wrong)
        texts = [keys[position] for position in kinds.texts]
        text_column, wrong_texts = each(
            len(texts), KEY, kind, lambda start, stop: of_bytes(texts[start:stop], kind)
        )
        for position, reason in wrong_texts.items():
            wrong[kinds.texts[position]] = reason
        positions, parts = list(kinds.texts), [text_column]
        if kinds.plain:
            parser = self._parser({_WHOLE: kind}, is_whole=True)
            parsed = parser.parse([keys[position] or b"" for position in kinds.plain])
            for position, reason in parsed.bad:
                wrong[kinds.plain[position]] = f"key: {reason}"
            positions += [kinds.plain[position] for position in parsed.positions]
            if parsed.positions:
                parts += parsed.rows[_WHOLE].chunks
        rows = {position: row for row, position in enumerate(positions)}
        return pa.concat_arrays(parts).take(_row_numbers(rows, len(keys))), wrong

    def _parser(self, types: Types, *, is_whole: bool = False) -> Parser:
        """Return the parser for some members, or for whole keys; each is made once."""
        columns = tuple(types.items())
        if is_whole:  # a member may have the name of the column of whole keys
            columns = (("", pa.null()), *columns)
        if columns not in self._parsers:
            self._parsers[columns] = self._new_parser(types, is_whole=is_whole)
        return self._parsers[columns]

    def _new_parser(self, types: Types, *, is_whole: bool) -> Parser:
        unit = self._options.time_unit
        if self._registry is not None and self._form is not None and self._form.is_avro:
            from opal_stream.formats.avro import AvroParser  # fastavro is needed here only

            whole_name = _WHOLE if is_whole else None
            return AvroParser(self._registry, types, time_unit=unit, whole_name=whole_name)
        make = WholeJsonParser if is_whole else JsonParser
        inner: Parser = make(types, unit)
        if self._registry is None:
            return inner
        return RegistryJsonParser(self._registry, inner, types)


class WholeJsonParser(JsonParser):
    """A parser of plain values of JSON to a table of one column."""

    def parse(self, values: Sequence[bytes]) -> Parsed:
        good: list[int] = []
        wrong: list[tuple[int, str]] = []
        for position, value in enumerate(values):
            reason = _why_no_plain_json(value)
            if reason is None:
                good.append(position)
            else:
                wrong.append((position, reason))
        name = _WHOLE.encode()
        parsed = super().parse([b'{"%b":%b}' % (name, values[position]) for position in good])
        parsed.positions = [good[position] for position in parsed.positions]
        parsed.bad = [(good[position], reason) for position, reason in parsed.bad]
        parsed.bad += wrong
        return parsed


def _why_no_plain_json(value: bytes) -> str | None:
    """Return why a text is not one plain value of JSON; None if it is one.

    A text of several values is refused: it would become further members of the row.
    """
    if _first(value) in (b"[", b"{"):
        return "it is a list or an object, not a plain value"
    try:
        json.loads(value.decode())
    except ValueError as error:
        return f"{_shown(value)} is not JSON: {error}; is it a text, --key-format string?"
    return None


def _is_json_text(key: bytes) -> bool:
    return _first(key) == b'"' or key.strip(_SPACES) == b"null"


def _two_readings(key: bytes) -> str:
    return (
        f"key: {_shown(key)} is a value of JSON, or a text that looks like one; choose by "
        "--key-format: json (or the format of the registry), or string"
    )


def _first(key: bytes) -> bytes:
    return key.lstrip(_SPACES)[:1]


def _shown(key: bytes) -> str:
    text = key.decode(errors="replace")
    if len(text) <= _SHOWN_BYTES:
        return text
    return f"{text[:_SHOWN_BYTES]}..."


def _row_numbers(rows: Mapping[int, int], count: int) -> pa.Array:
    """Return the row of each key; null for a key without one."""
    return pa.array([rows.get(position) for position in range(count)], pa.int64())


def _is_of_records(registered: RegisteredSchema) -> bool:
    from opal_stream.formats.schemas.avro_schema import AvroSchema, branches, is_record

    schema = AvroSchema(registered.text, registered.references)
    return any(is_record(schema.resolved(branch)) for branch in branches(schema.root))
