"""JSON values to rows: joined to lines and parsed by Arrow at once.

A timestamp may be ISO text, in UTC without a zone, or a number of the stream's unit since 1970; a date text or days since 1970. Which of
both a column holds is learned from the values. Columns without a member are null, members that the table does not have are left out, and
told of where somebody asks.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from opal_lake.errors import InvalidInputError
from opal_stream.formats.depth import check_depth
from opal_stream.formats.parser import Parsed, halve_until_good
from opal_stream.formats.schemas.connect import Holding
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
_NO_FORM = re.compile(r"Column\(/(?P<path>.+)\) changed from (string|number) to (?P<found>\w+)")
SchemaOf = Callable[[pa.Schema], pa.Schema]


class TypedJson:
    """Parses into columns of these types, and into such as are not `known`."""

    def __init__(
        self, types: Mapping[str, pa.DataType], time_unit: str = "ms", known: Known = None
    ) -> None:
        if maps := [name for name, kind in types.items() if _has_map(kind)]:
            raise InvalidInputError(
                f"column {maps[0]!r} is a map, or has one in it, which a stream fills from Avro alone"
            )
        self.types = dict(types)
        self.time_unit = time_unit
        self.known = known
        self.nested = (
            {} if known is None else nested_types(types)
        )  # columns whose members somebody asks for
        self.holding: Holding = {}  # what is known of how the next values hold columns
        self._other: set[str] = set()  # columns whose values come in the other of the two forms
        self._as_text: set[str] = set()  # times of more digits than microseconds, perhaps

    def schema(self) -> pa.Schema:
        """As the values hold the columns."""
        return pa.schema([(name, self.raw_type(name)) for name in self.types])

    def read(
        self, values: Sequence[bytes], schema_of: SchemaOf = lambda columns: columns
    ) -> pa.Table:
        """A row for each value, or an error; the columns are not converted yet. `schema_of` says what is around them."""
        turned: set[str] = set()
        while True:
            try:
                return _read_lines(
                    values, schema_of(self.schema()), "ignore" if self.known is None else "infer"
                )
            except pa.ArrowInvalid as error:
                if _NOT_A_TIME in str(error) and (times := self._times() - self._as_text):
                    self._as_text |= times
                    continue
                changed = _CHANGED.search(str(error))
                column = changed["path"].rpartition("/")[2] if changed else ""
                if (other := self._of_no_form(str(error))) is not None:
                    raise other from error
                if column in turned or not _has_two_forms(self.types.get(column)):
                    raise  # both forms in one batch: its halves are parsed apart
                turned.add(column)
                self._other ^= {column}

    def _of_no_form(self, error: str) -> ValueError | None:
        """What is wrong with a value of neither form. Which form other messages had must not be in the reason."""
        match = _NO_FORM.search(error)
        if match is None or match["found"] in ("string", "number"):
            return None
        if not _has_two_forms(self.types.get(match["path"].rpartition("/")[2])):
            return None
        return ValueError(
            f"JSON parse error: Column(/{match['path']}) is {match['found']}, not a text or a number"
        )

    def convert(self, columns: Mapping[str, pa.ChunkedArray]) -> pa.Table:
        """To the columns' own types."""
        return pa.table({name: self._convert(name, column) for name, column in columns.items()})

    def raw_type(self, name: str) -> pa.DataType:
        """As the values hold a column."""
        kind = self.types[name]
        if (raw := self._held_as(name)) is not None:
            return raw
        if name in self._other:
            return pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
        return pa.string() if pa.types.is_date(kind) or name in self._as_text else kind

    def _times(self) -> set[str]:
        return {name for name, kind in self.types.items() if pa.types.is_timestamp(kind)}

    def _held_as(self, name: str) -> pa.DataType | None:
        try:
            return self.holding[name].raw_type(self.types[name]) if name in self.holding else None
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from error

    def _convert(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        kind = self.types[name]
        if self._held_as(name) is not None:
            return self.holding[name].convert(column, kind)
        if column.type == kind:
            return column
        if pa.types.is_timestamp(kind) and pa.types.is_integer(column.type):
            return column.cast(pa.timestamp(self.time_unit, kind.tz)).cast(kind)
        if name in self._as_text:
            return self._of_texts(name, column)
        return column.cast(kind)

    def _of_texts(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Times by Arrow's parser of JSON, which takes no more digits than microseconds."""
        texts = of_microseconds(column)
        if texts.equals(column):
            self._as_text.discard(name)  # the next batch is read without this detour
        lines = [b"{%b}" % (b'"v":' + json.dumps(text).encode()) for text in texts.to_pylist()]
        schema = pa.schema([("v", self.types[name])])
        return _read_lines(lines, schema, "ignore")["v"] if lines else column.cast(self.types[name])


def one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def of_microseconds(texts: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Leave out zeros behind microseconds. Raise ValueError for other digits: a table has no place for them."""
    short = pc.replace_substring_regex(texts, _ZEROS, r"\1\2")
    too_long = pc.fill_null(pc.match_substring_regex(short, _NANOSECONDS), False)
    if pc.any(too_long).as_py():
        text = short.filter(too_long)[0].as_py()
        raise ValueError(f"the time {text!r} is more exact than the microseconds of a table")
    return short


def _has_two_forms(kind: pa.DataType | None) -> bool:
    return kind is not None and bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _read_lines(values: Sequence[bytes], schema: pa.Schema, others: str) -> pa.Table:
    """Each value begins an object and Arrow counts as many rows as values: then each row is that of its value."""
    if others == "infer":  # what is skipped may nest as it likes
        for value in values:
            check_depth(value)
    lines = b"\n".join(values)
    if (
        lines.count(b"\n") != len(values) - 1
    ):  # in JSON a line break can only be space between tokens
        lines = b"\n".join(value.replace(b"\n", b" ") for value in values)
    if not all(value.startswith(b"{") for value in values):
        lines = b"\n".join(_object(value) for value in values)
    lines.decode()
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
    stripped = value.strip().replace(b"\n", b" ")
    if not stripped.startswith(b"{"):
        raise ValueError("the message is no JSON object")
    return stripped


def _has_map(kind: pa.DataType) -> bool:
    inner = (
        [kind.field(number).type for number in range(kind.num_fields)]
        if pa.types.is_nested(kind)
        else []
    )
    return pa.types.is_map(kind) or any(map(_has_map, inner))


class JsonParser:
    """Plain JSON objects."""

    def __init__(
        self, types: Mapping[str, pa.DataType], time_unit: str = "ms", known: Known = None
    ) -> None:
        self._json = TypedJson(types, time_unit, known)

    def parse(self, values: Sequence[bytes]) -> Parsed:
        return halve_until_good(values, self._parse, ERRORS)

    def _parse(self, values: Sequence[bytes]) -> Parsed:
        rows = self._json.read(values)
        columns = zip(rows.column_names, rows.columns, strict=True)
        others = {
            name: one_array(column) for name, column in columns if is_new(name, self._json.known)
        }
        new = inferred_columns(others) if others else None
        if self._json.nested:
            nested = {name: one_array(rows[name]) for name in self._json.nested}
            new = with_members(new, members_of_values(nested, self._json.nested))
        return Parsed(
            rows=self._json.convert({name: rows[name] for name in self._json.types}),
            kept=[],
            new=new,
        )

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        """Nothing says what a value's schema is."""
        return None

    def learn(self, value: bytes) -> None:
        """As `unseen`."""

    def take_over(self, other: "JsonParser") -> None:
        """As `unseen`."""
