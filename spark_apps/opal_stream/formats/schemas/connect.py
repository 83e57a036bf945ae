"""The schema of Kafka Connect next to a change event.

It has the types of columns, and says in which form JSON writes them. Debezium writes decimals as
the bytes of a whole number, in base64, whose scale only the schema has, and times as numbers of
several units.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE = "io.debezium.data.VariableScaleDecimal"
_MAX_DIGITS = 38  # of a decimal of Arrow
_MAX_SCHEMAS = 64  # that are remembered
_MAX_SCALE, _MAX_BITS = 1_000, 3_300  # 3,300 bits are about 1,000 digits
_EXACT = Context(prec=2 * _MAX_SCALE)
_HEAD = re.compile(rb'\s*\{\s*"schema"\s*:\s*')
_CONNECT = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.string(),  # base64 in JSON
}
# Numbers since 1970, of these units
CONNECT_TIMES = {
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
}
_DAYS = "days"
DATES = ("org.apache.kafka.connect.data.Date", "io.debezium.time.Date")
TIMES_OF_DAY = (
    "org.apache.kafka.connect.data.Time",
    "io.debezium.time.Time",
    "io.debezium.time.MicroTime",
    "io.debezium.time.NanoTime",
)
_NESTED = (
    "it has decimals in base64 within a list or an object, which are not read: "
    "set decimal.handling.mode=string"
)
_TIME_OF_DAY = "it is a time of day, which is not a timestamp"
_CONNECT_NAMED = {
    **dict.fromkeys(DATES, pa.date32()),
    "io.debezium.time.ZonedTimestamp": pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form in which JSON writes a column.

    It is a time of a unit, or bytes or a decimal in base64. A decimal without a scale brings it
    with each value. `unfit` is why columns of some types cannot hold it.
    """

    unit: str | None = None
    scale: int | None = None
    is_bytes: bool = False
    unfit: str = ""

    def raw_type(self, kind: pa.DataType) -> pa.DataType | None:
        """Return the type as which a column is read; None if it needs no conversion.

        Raises ValueError if the values would be wrong in the column.
        """
        if self.unfit:
            if pa.types.is_nested(kind) or pa.types.is_timestamp(kind):
                raise ValueError(self.unfit)
            return None
        if self.unit is not None:
            if pa.types.is_timestamp(kind):
                return pa.int64()
            return None
        if self.is_bytes:
            if pa.types.is_binary(kind):
                return pa.string()
            return None
        if self.scale is not None:
            return pa.string()
        return pa.struct([("scale", pa.int32()), ("value", pa.string())])

    def convert(self, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        """Return a column in its own type; raise an error where a value does not fit."""
        if self.unit == _DAYS:
            return column.cast(pa.int32()).cast(pa.date32()).cast(kind)
        if self.unit is not None:
            return column.cast(pa.timestamp(self.unit, kind.tz)).cast(kind)
        values = column.to_pylist()
        if self.is_bytes:
            decoded = [
                None if value is None else base64.b64decode(value, validate=True)
                for value in values
            ]
            return pa.chunked_array([pa.array(decoded, kind)])
        if self.scale is None:
            return pa.chunked_array([decimals_of_variable_scale(values, kind)])
        wholes = [None if value is None else _whole(value) for value in values]
        return pa.chunked_array([decimals_of_scale(wholes, self.scale).cast(kind)])


Forms = Mapping[str, Form]


class ConnectSchemas:
    """The schemas in front of values; those of one schema begin with the same bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, Forms] = {}
        self._columns: dict[bytes, dict[str, pa.DataType]] = {}

    def forms(self, values: Sequence[bytes]) -> Forms:
        """Return the forms of columns; raise ValueError where values differ in them.

        Then the halves of the batch are parsed apart.
        """
        head = b""
        common: Forms | None = None
        for value in values:
            if head and value.startswith(head):
                continue
            head = self._head(value)
            forms = self._known.get(head, {})
            if common is not None and forms != common:
                raise ValueError("the messages have different schemas")
            common = forms
        return common or {}

    def columns(self, value: bytes, time_unit: str) -> dict[str, pa.DataType]:
        """Return `connect_columns` of a value that `forms` read; once for each schema."""
        head = self._head(value)
        if not head:
            if b'"schema"' in value:
                return connect_columns(value, time_unit)
            return {}
        if head not in self._columns:
            self._columns[head] = connect_columns(value, time_unit)
        return self._columns[head]

    def _head(self, value: bytes) -> bytes:
        """Return a value up to the end of its schema; empty without a schema."""
        for head in self._known:
            if value.startswith(head):
                return head
        match = _HEAD.match(value)
        if match is None:
            return b""
        text = value[match.end() :].decode()
        try:
            schema, length = json.JSONDecoder().raw_decode(text)
            forms = _forms(schema)
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError("the schema in the message is not one of Kafka Connect") from error
        head = value[: match.end()] + text[:length].encode()
        if len(self._known) >= _MAX_SCHEMAS:
            self._known.clear()
            self._columns.clear()
        self._known[head] = forms
        return head


def connect_columns(value: bytes, time_unit: str) -> dict[str, pa.DataType]:
    """Return the types of a change event's row, if it brings its schema with it.

    Returns none if that is not a schema of Kafka Connect.
    """
    try:
        event = json.loads(value)
        fields = _fields(event.get("schema") if isinstance(event, dict) else None)
        types = {str(field["field"]): _connect_type(field, time_unit) for field in fields}
    except (TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {name: kind for name, kind in types.items() if kind is not None}


def _fields(schema: Any) -> list[Mapping[str, Any]]:
    """Return the fields of the row after the change: the row before it has the same."""
    rows = [field for field in _members(schema) if field.get("field") == "after"]
    if not rows:
        return []
    return [field for field in _members(rows[0]) if "field" in field]


def _members(schema: Any) -> list[Mapping[str, Any]]:
    members = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(members, list):
        return []
    return [field for field in members if isinstance(field, dict)]


def _forms(schema: Any) -> Forms:
    forms: dict[str, Form] = {}
    for field in _fields(schema):
        form = _form(field)
        if form is not None:
            forms[str(field["field"])] = form
    return forms


def _form(field: Mapping[str, Any]) -> Form | None:
    """Return the form of a column; None if JSON writes it as a table reads it."""
    name = str(field.get("name"))
    if name == _DECIMAL and field.get("type") == "bytes":
        return Form(scale=_parameter(field, "scale", 0))
    if name == VARIABLE:
        return Form()
    if field.get("type") == "bytes":
        return Form(is_bytes=True)
    if name in TIMES_OF_DAY:
        return Form(unfit=_TIME_OF_DAY)
    if name in DATES:
        return Form(unit=_DAYS)
    if name in CONNECT_TIMES:
        return Form(unit=CONNECT_TIMES[name])
    if _has(field, _is_decimal):
        return Form(unfit=_NESTED)
    return None


def _parameter(field: Mapping[str, Any], name: str, default: int) -> int:
    return int((field.get("parameters") or {}).get(name, default))


def _connect_type(field: Mapping[str, Any], time_unit: str) -> pa.DataType | None:
    """Return the type of a column.

    None if its values show it as well; null if JSON cannot fill the type that a table would have.
    """
    name = str(field.get("name"))
    if name == VARIABLE:
        return pa.string()  # as exact, and of any scale
    if _has(field, _is_map) or (name != _DECIMAL and _has(field, _is_decimal)):
        return pa.null()
    if name == _DECIMAL:
        precision = min(_parameter(field, "connect.decimal.precision", _MAX_DIGITS), _MAX_DIGITS)
        return pa.decimal128(precision, _parameter(field, "scale", 0))
    if name in _CONNECT_NAMED:
        return _CONNECT_NAMED[name]
    if CONNECT_TIMES.get(name) == time_unit:
        return pa.timestamp("us")
    return _CONNECT.get(str(field.get("type")))


def _is_map(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "map"


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    return schema.get("name") in (_DECIMAL, VARIABLE)


def _has(schema: Any, predicate: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Return whether a predicate holds for a schema, or one within it."""
    if not isinstance(schema, dict):
        return False
    parts = (schema.get("items"), *_members(schema))
    return predicate(schema) or any(_has(part, predicate) for part in parts)


def decimals_of_variable_scale(
    values: Sequence[Mapping[str, Any] | None], kind: pa.DataType
) -> pa.Array:
    """Return decimals, each of which brings its scale, and its digits in base64."""
    decimals = [
        None if value is None else scaled_decimal(_whole(value["value"]), value["scale"])
        for value in values
    ]
    if pa.types.is_decimal(kind):
        return pa.array(decimals, kind)
    texts = [None if value is None else format(value, "f") for value in decimals]
    return pa.array(texts, pa.string()).cast(kind)


def scaled_decimal(whole: int, scale: int) -> Decimal:
    """Return a decimal exactly; raise ValueError for more than 1,000 digits.

    With a huge scale a few bytes would become a text of gigabytes.
    """
    if whole.bit_length() > _MAX_BITS or abs(scale) > _MAX_SCALE:
        raise ValueError(f"a decimal has more than {_MAX_SCALE:,} digits")
    return Decimal(whole).scaleb(-scale, _EXACT)


def _whole(value: str | bytes) -> int:
    data = value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
    return int.from_bytes(data, "big", signed=True)


def decimals_of_scale(wholes: Sequence[int | None], scale: int) -> pa.Array:
    """Return decimals of one scale; raise ValueError for more than 38 digits."""
    try:
        # Arrow's own layout of decimals: 16 bytes each
        data = b"".join((whole or 0).to_bytes(16, "little", signed=True) for whole in wholes)
    except OverflowError as error:
        raise ValueError(f"a decimal has more than {_MAX_DIGITS} digits") from error
    decimals = pa.Array.from_buffers(
        pa.decimal128(_MAX_DIGITS, scale), len(wholes), [None, pa.py_buffer(data)]
    )
    decimals.validate(full=True)
    is_valid = pa.array([whole is not None for whole in wholes], pa.bool_())
    return pc.if_else(is_valid, decimals, pa.scalar(None, decimals.type))
