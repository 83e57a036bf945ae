"""Keys of messages: a whole key fills one column, or the members of an object fill several.

A whole key of JSON or Avro is converted like a member of a value with the same text or bytes.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.format_names import FORMATS
from opal_stream.formats.columns import KEY, array_of_bytes, column_and_problems
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
_WHOLE = "key"  # the name of the column of whole keys
_SPACES = b" \t\r\n"
_SHOWN_BYTES = 40


@dataclass(slots=True)
class _Kinds:
    """The positions of keys by kind: texts, plain values, objects and wrong ones.

    Null in none.
    """

    texts: list[int] = field(default_factory=list)
    plain: list[int] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    wrong: Wrong = field(default_factory=dict)


class KeyReader:
    """A reader of keys in the format of the values, or in a format of their own.

    If the stream names no format of keys, a key may also be plain text. Then a key is refused that
    could be JSON or text, and would mean something else as the other.
    """

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._is_guessed = options.key_format is None
        format_name = options.key_format or options.format
        self._form = FORMATS.get(format_name)  # None for "string": plain texts
        self._registry: SchemaRegistry | None = None
        if self._form is not None and self._form.is_registered:
            kind = AVRO if self._form.is_avro else JSON
            self._registry = SchemaRegistry(options.registry or "", kind)
        self._parsers: dict[tuple[tuple[str, pa.DataType], ...], Parser] = {}
        # For Avro, by the first bytes of keys, which name their schema: whether the keys are
        # records, or why the schema is refused
        self._records: dict[bytes, bool] = {}
        self._refused: dict[bytes, str] = {}

    def unseen(self, keys: Keys) -> int | None:
        """Return the position of the first key whose schema was never asked for.

        Return None if there is none.
        """
        if self._registry is None:
            return None
        return first_unseen(self._registry, list(keys))

    def learn(self, key: bytes) -> None:
        """Ask the registry for the schema of a key; the key's first bytes are enough."""
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
            reason = "key: it is an object; fill the column from a member of it, such as @key.id"
            kinds.wrong |= dict.fromkeys(kinds.objects, reason)
        return self._whole(keys, kinds, kind)

    def members(self, keys: Keys, types: Types) -> tuple[pa.Table, Wrong]:
        """Return members of the keys by name; null for a key without the member."""
        present = [position for position, key in enumerate(keys) if key]
        parsed = self._parser(types).parse([key for key in keys if key])
        wrong = {present[index]: f"key: {reason}" for index, reason in parsed.bad}
        # By position of a key: the number of its row in what was parsed
        row_by_position: dict[int, int] = {}
        for row, index in enumerate(parsed.positions):
            row_by_position[present[index]] = row
        if not row_by_position:
            nulls = {name: pa.nulls(len(keys), kind) for name, kind in types.items()}
            return pa.table(nulls), wrong
        members = parsed.rows.select(list(types))
        return members.take(_row_numbers(row_by_position, len(keys))), wrong

    def key_columns(self, keys: Keys, types: Types) -> tuple[dict[str, pa.Array], Wrong]:
        """Return the columns of `types` from the keys.

        An object fills the columns with its members. A plain key fills the only column, and is
        wrong if there are several.
        """
        kinds = self._kinds(keys)
        objects: list[bytes | None] = [None] * len(keys)
        for position in kinds.objects:
            objects[position] = keys[position]
        rows, wrong_objects = self.members(objects, types)
        columns = {name: rows[name].combine_chunks() for name in types}
        if len(types) > 1:
            reason = f"key: one value cannot fill the columns {', '.join(types)}"
            wrong_plain = dict.fromkeys([*kinds.texts, *kinds.plain], reason)
            return columns, kinds.wrong | wrong_objects | wrong_plain
        [(name, kind)] = types.items()
        whole_keys, wrong_whole = self._whole(keys, kinds, kind)
        is_object = pa.array([key is not None for key in objects])
        column = pc.if_else(is_object, columns[name], whole_keys)
        return {name: column}, wrong_whole | wrong_objects

    def _kinds(self, keys: Keys) -> _Kinds:
        """Sort the positions of keys by kind."""
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
        """Return whether a key begins like a value in the format of the stream."""
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
        text_column, wrong_texts = column_and_problems(
            len(texts), KEY, kind, lambda start, stop: array_of_bytes(texts[start:stop], kind)
        )
        for index, reason in wrong_texts.items():
            wrong[kinds.texts[index]] = reason
        # The texts first, then the plain values; `positions` are those of the keys in this order
        arrays = [text_column]
        positions = list(kinds.texts)
        if kinds.plain:
            parser = self._parser({_WHOLE: kind}, is_whole=True)
            parsed = parser.parse([keys[position] or b"" for position in kinds.plain])
            for index, reason in parsed.bad:
                wrong[kinds.plain[index]] = f"key: {reason}"
            positions += [kinds.plain[index] for index in parsed.positions]
            if parsed.positions:
                arrays += parsed.rows[_WHOLE].chunks
        row_by_position = {position: row for row, position in enumerate(positions)}
        row_numbers = _row_numbers(row_by_position, len(keys))
        return pa.concat_arrays(arrays).take(row_numbers), wrong

    def _parser(self, types: Types, *, is_whole: bool = False) -> Parser:
        """Return the parser for some members, or for whole keys; each is made once."""
        columns = tuple(types.items())
        if is_whole:  # apart from a parser of a member with the same name
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
        """Parse plain values; lists, objects and texts that are not JSON are bad."""
        plain: list[int] = []
        bad: list[tuple[int, str]] = []
        for position, value in enumerate(values):
            reason = _why_no_plain_json(value)
            if reason is None:
                plain.append(position)
            else:
                bad.append((position, reason))
        # The parent reads objects: each value becomes the only member of one
        name = _WHOLE.encode()
        parsed = super().parse([b'{"%b":%b}' % (name, values[position]) for position in plain])
        # The parent counts the plain values only, the caller all values
        parsed.positions = [plain[index] for index in parsed.positions]
        parsed.bad = [(plain[index], reason) for index, reason in parsed.bad]
        parsed.bad += bad
        return parsed


def _why_no_plain_json(value: bytes) -> str | None:
    """Return why a text is not one plain value of JSON; None if it is one.

    The text is put into an object: several values in it would become further members of that.
    """
    if _first(value) in (b"[", b"{"):
        return "it is a list or an object, not a plain value"
    try:
        json.loads(value.decode())
    except ValueError as error:
        return (
            f"{_shown(value)} is not JSON: {error}; if keys are plain text, use key_format='string'"
        )
    return None


def _is_json_text(key: bytes) -> bool:
    return _first(key) == b'"' or key.strip(_SPACES) == b"null"


def _two_readings(key: bytes) -> str:
    return (
        f"key: {_shown(key)} is a value of JSON, or a text that looks like one; choose with "
        "key_format='json' (or the format of the registry), or key_format='string'"
    )


def _first(key: bytes) -> bytes:
    return key.lstrip(_SPACES)[:1]


def _shown(key: bytes) -> str:
    text = key.decode(errors="replace")
    if len(text) <= _SHOWN_BYTES:
        return text
    return f"{text[:_SHOWN_BYTES]}..."


def _row_numbers(row_by_position: Mapping[int, int], count: int) -> pa.Array:
    """Return the row number of each of `count` keys; null for a key without a row."""
    return pa.array([row_by_position.get(position) for position in range(count)], pa.int64())


def _is_of_records(registered: RegisteredSchema) -> bool:
    """Return whether values of an Avro schema can be records."""
    from opal_stream.formats.schemas.avro_schema import AvroSchema, branches, is_record

    schema = AvroSchema(registered.text, registered.references)
    return any(is_record(schema.resolved(branch)) for branch in branches(schema.root))
