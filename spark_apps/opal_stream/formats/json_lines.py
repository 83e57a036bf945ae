"""The parser of JSON values to rows: it joins the values to lines, which Arrow parses at once.

A timestamp is either ISO text (without a zone in UTC), or a number of the stream's unit since 1970.
A date is either text, or a number of days since 1970. The parser learns from the values which form
a column has. A column without a member has its default, or is null. Members that the table lacks
are left out, and reported if the parser knows the table's columns.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from opal_lake.errors import InvalidInputError
from opal_stream.formats.absent_members import NO_DEFAULTS, Defaults, with_defaults_of_absent
from opal_stream.formats.depth import check_depth
from opal_stream.formats.parser import Parsed, halve_until_good
from opal_stream.formats.schemas.connect import Forms
from opal_stream.formats.schemas.inferred import inferred_columns
from opal_stream.formats.schemas.members import members_of_values, nested_types
from opal_stream.formats.schemas.new_columns import Known, is_new, with_members

ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    UnicodeDecodeError,
    ValueError,
    OverflowError,
)
_ZEROS = r"(\.\d{6})0+(Z|[+-]\d\d(?::?\d\d)?)?$"
_NANOSECONDS = r"\.\d{7,}(Z|[+-]\d\d(?::?\d\d)?)?$"
_NOT_A_TIME = "Failed to convert JSON to timestamp"
_CHANGED = re.compile(r"Column\(/(?P<path>.+)\) changed from (string to number|number to string)")
_NO_FORM = re.compile(r"Column\(/(?P<path>.+)\) changed from (string|number) to (?P<kind>\w+)")
# Puts columns into the schema of the object around them
SchemaOf = Callable[[pa.Schema], pa.Schema]


class TypedJson:
    """A reader of columns of the given types.

    If the table's columns are `known`, it also reads the members that are not among them.
    """

    def __init__(
        self, types: Mapping[str, pa.DataType], time_unit: str = "ms", known: Known = None
    ) -> None:
        for name, kind in types.items():
            if _has_map(kind):
                raise InvalidInputError(
                    f"column {name!r} is a map, or has one in it, and only streams of Avro fill "
                    "maps: choose an Avro format, or another type of column"
                )
        self.types = dict(types)
        self.time_unit = time_unit
        self.known = known
        # Nested columns: their members that the table lacks are reported
        self.nested = {} if known is None else nested_types(types)
        self.forms: Forms = {}  # the forms of columns that a schema in the next values names
        # Columns in the less usual form: timestamps as numbers, dates as numbers of days
        self._other: set[str] = set()
        # Timestamps that are read as text first, as they may have more digits than microseconds
        self._as_text: set[str] = set()

    def schema(self) -> pa.Schema:
        """Return the columns in their raw types."""
        return pa.schema([(name, self.raw_type(name)) for name in self.types])

    def read(
        self, values: Sequence[bytes], schema_of: SchemaOf = lambda columns: columns
    ) -> pa.Table:
        """Return a row for each value, with columns in their raw types.

        `schema_of` puts the columns into the schema of the object around them. If a column turns
        out to have its other form, the values are read again.
        """
        others = "ignore" if self.known is None else "infer"
        changed_forms: set[str] = set()
        while True:
            try:
                return _read_lines(values, schema_of(self.schema()), others)
            except pa.ArrowInvalid as error:
                text = str(error)
                times = self._times() - self._as_text
                if _NOT_A_TIME in text and times:
                    self._as_text |= times
                    continue
                refusal = self._refusal(text)
                if refusal is not None:
                    raise refusal from error
                changed = _CHANGED.search(text)
                column = _column_of(changed["path"]) if changed else ""
                has_both_forms = column in changed_forms
                if has_both_forms or not _has_two_forms(self.types.get(column)):
                    raise  # the caller parses the halves of the batch separately
                changed_forms.add(column)
                self._other ^= {column}

    def _refusal(self, error: str) -> ValueError | None:
        """Return the error of a time that is neither text nor number.

        Return None for other mistakes.

        Arrow's own message names the form of the messages before it. This one does not depend on
        other messages of the batch.
        """
        match = _NO_FORM.search(error)
        if match is None or match["kind"] in ("string", "number"):
            return None
        path = match["path"]
        if not _has_two_forms(self.types.get(_column_of(path))):
            return None
        return ValueError(
            f"JSON parse error: Column(/{path}) is {match['kind']}, not a text or a number"
        )

    def convert(self, columns: Mapping[str, pa.ChunkedArray]) -> pa.Table:
        """Return the columns converted to their own types."""
        return pa.table({name: self._convert(name, column) for name, column in columns.items()})

    def raw_type(self, name: str) -> pa.DataType:
        """Return the type in which Arrow reads a column from JSON, before its conversion."""
        kind = self.types[name]
        type_by_schema = self._schema_type(name)
        if type_by_schema is not None:
            return type_by_schema
        if name in self._other:
            if pa.types.is_timestamp(kind):
                return pa.int64()
            return pa.int32()
        is_text = pa.types.is_date(kind) or name in self._as_text
        if is_text:
            return pa.string()
        return kind

    def _times(self) -> set[str]:
        return {name for name, kind in self.types.items() if pa.types.is_timestamp(kind)}

    def _schema_type(self, name: str) -> pa.DataType | None:
        """Return the raw type of a column by the schema in the values.

        Return None if there is none.
        """
        if name not in self.forms:
            return None
        try:
            return self.forms[name].raw_type(self.types[name])
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from error

    def _convert(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        kind = self.types[name]
        if self._schema_type(name) is not None:
            return self.forms[name].convert(column, kind)
        if column.type == kind:
            return column
        if pa.types.is_timestamp(kind) and pa.types.is_integer(column.type):
            return column.cast(pa.timestamp(self.time_unit, kind.tz)).cast(kind)
        if name in self._as_text:
            return self._of_texts(name, column)
        return column.cast(kind)

    def _of_texts(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the times of texts; raise ValueError for nanoseconds that are not 0.

        Arrow's parser of JSON reads the texts, so that they mean the same as in a message.
        """
        texts = without_extra_digits(column)
        if texts.equals(column):
            self._as_text.discard(name)  # the next batch is read without this detour
        lines = [json.dumps({"v": text}).encode() for text in texts.to_pylist()]
        if not lines:
            return column.cast(self.types[name])
        schema = pa.schema([("v", self.types[name])])
        return _read_lines(lines, schema, "ignore")["v"]


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a copy if it has one chunk."""
    if column.num_chunks != 1:
        return column.combine_chunks()
    return column.chunk(0)


def without_extra_digits(texts: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return texts of times without the zeros after the microseconds.

    Raises ValueError for other digits there: a table does not store them.
    """
    short = pc.replace_substring_regex(texts, _ZEROS, r"\1\2")
    too_long = pc.fill_null(pc.match_substring_regex(short, _NANOSECONDS), False)
    if pc.any(too_long).as_py():
        text = short.filter(too_long)[0].as_py()
        raise ValueError(f"the time {text!r} has nanoseconds, but a table stores only microseconds")
    return short


def _column_of(path: str) -> str:
    """Return the column of a path in Arrow's messages, such as `payload/after/at`."""
    return path.rpartition("/")[2]


def _has_two_forms(kind: pa.DataType | None) -> bool:
    return kind is not None and bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _read_lines(values: Sequence[bytes], schema: pa.Schema, others: str) -> pa.Table:
    """Return a row for each value.

    Raise ValueError if a value is not exactly one object.

    Each value must begin with a brace, and Arrow must return as many rows as values: then each row
    is that of its value. With `others` "infer" Arrow returns members that the schema lacks, too;
    with "ignore" it skips them.
    """
    if others == "infer":  # Arrow skips deep members safely, but infers their types recursively
        for value in values:
            check_depth(value)
    lines = b"\n".join(values)
    # A line break in JSON is only space between tokens: a string cannot contain one
    if lines.count(b"\n") != len(values) - 1:
        lines = b"\n".join(value.replace(b"\n", b" ") for value in values)
    if not all(value.startswith(b"{") for value in values):
        lines = b"\n".join(_object(value) for value in values)
    lines.decode()  # Arrow would accept bytes that are not UTF-8
    table = pj.read_json(
        pa.py_buffer(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=others, newlines_in_values=False
        ),
    )
    if table.num_rows != len(values):
        raise ValueError("the message holds more than one JSON object")
    return table


def _object(value: bytes) -> bytes:
    """Return a value without space around it, on one line.

    Raise ValueError if no object begins.
    """
    stripped = value.strip().replace(b"\n", b" ")
    if not stripped.startswith(b"{"):
        raise ValueError("the message is not a JSON object")
    return stripped


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    if not pa.types.is_nested(kind):
        return False
    return any(_has_map(kind.field(number).type) for number in range(kind.num_fields))


class JsonParser:
    """A parser of plain JSON objects."""

    def __init__(
        self,
        types: Mapping[str, pa.DataType],
        time_unit: str = "ms",
        known: Known = None,
        *,
        defaults: Defaults = NO_DEFAULTS,
    ) -> None:
        self._json = TypedJson(types, time_unit, known)
        self._defaults = defaults

    def parse(self, values: Sequence[bytes]) -> Parsed:
        return halve_until_good(values, self._parse, ERRORS)

    def _parse(self, values: Sequence[bytes]) -> Parsed:
        rows = self._json.read(values)
        new_names = [name for name in rows.column_names if is_new(name, self._json.known)]
        new_values = {name: one_array(rows[name]) for name in new_names}
        new = inferred_columns(new_values) if new_values else None
        if self._json.nested:
            nested = {name: one_array(rows[name]) for name in self._json.nested}
            new = with_members(new, members_of_values(nested, self._json.nested))
        own = {name: rows[name] for name in self._json.types}
        converted = with_defaults_of_absent(self._json.convert(own), values, self._defaults)
        return Parsed(rows=converted, positions=[], new=new)

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        """Return None: a value does not name a schema."""
        return None

    def learn(self, value: bytes) -> None:
        """Do nothing, as a value does not name a schema."""

    def take_over(self, other: "JsonParser") -> None:
        """Do nothing, as no schema is learned."""
