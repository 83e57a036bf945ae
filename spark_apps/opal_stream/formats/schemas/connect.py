"""The schema of Kafka Connect beside a change event: the types of columns, and how JSON holds the values that it has no form for.

Debezium writes decimals as the bytes of a whole number, in base64, whose scale only the schema has, and times as numbers of several units.
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

_DECIMAL, VARIABLE = (
    "org.apache.kafka.connect.data.Decimal",
    "io.debezium.data.VariableScaleDecimal",
)
_MOST_DIGITS, _MOST_SCHEMAS = 38, 64
_MOST_SCALE, _MOST_BITS = 1_000, 3_300
_EXACT = Context(prec=2 * _MOST_SCALE)
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
# Numbers since 1970, of the unit beside them
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
_NESTED = "it has decimals in base64 within a list or an object, which are not read: set decimal.handling.mode=string"
_TIME_OF_DAY = "it is a time of day, which is no timestamp"
_CONNECT_NAMED = {
    **dict.fromkeys(DATES, pa.date32()),
    "io.debezium.time.ZonedTimestamp": pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How JSON holds a column: as a time of a unit, or as bytes or a decimal in base64; one without a scale brings it with each value.

    `unfit` is why a value is read into no column of the kinds that it would be wrong in.
    """

    unit: str | None = None
    scale: int | None = None
    is_bytes: bool = False
    unfit: str = ""

    def raw_type(self, kind: pa.DataType) -> pa.DataType | None:
        """As which type it is read; None where a column of that kind takes it as it is. A ValueError where it would be wrong there."""
        if self.unfit:
            if pa.types.is_nested(kind) or pa.types.is_timestamp(kind):
                raise ValueError(self.unfit)
            return None
        if self.unit is not None:
            return pa.int64() if pa.types.is_timestamp(kind) else None
        if self.is_bytes:
            return pa.string() if pa.types.is_binary(kind) else None
        return (
            pa.string()
            if self.scale is not None
            else pa.struct([("scale", pa.int32()), ("value", pa.string())])
        )

    def convert(self, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        """From what was read to the column's own type; an error where it does not fit."""
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
        return pa.chunked_array(
            [
                of_variable_scale(values, kind)
                if self.scale is None
                else of_scale(
                    [None if value is None else _whole(value) for value in values], self.scale
                ).cast(kind)
            ]
        )


Holding = Mapping[str, Held]


class ConnectSchemas:
    """Looks at the schemas in front of values. All values of one schema begin with the same bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, Holding] = {}
        self._columns: dict[bytes, dict[str, pa.DataType]] = {}

    def holding(self, values: Sequence[bytes]) -> Holding:
        """By column; a ValueError where values hold one differently: they are parsed apart."""
        head, found = b"", None
        for value in values:
            if head and value.startswith(head):
                continue
            head = self._head(value)
            holding = self._known.get(head, {})
            if found is not None and holding != found:
                raise ValueError("the messages have different schemas")
            found = holding
        return found or {}

    def columns(self, value: bytes, time_unit: str) -> dict[str, pa.DataType]:
        """Return what `connect_columns` does, of a value that `holding` took; once for each schema."""
        head = self._head(value)
        if not head:
            return connect_columns(value, time_unit) if b'"schema"' in value else {}
        if head not in self._columns:
            self._columns[head] = connect_columns(value, time_unit)
        return self._columns[head]

    def _head(self, value: bytes) -> bytes:
        """Up to the end of the schema; empty where there is none."""
        known = next((head for head in self._known if value.startswith(head)), None)
        match = _HEAD.match(value) if known is None else None
        if known is not None or match is None:
            return known or b""
        text = value[match.end() :].decode()
        try:
            schema, length = json.JSONDecoder().raw_decode(text)
            holding = _holding(schema)
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError("the schema in the message is none of Kafka Connect") from error
        head = value[: match.end()] + text[:length].encode()
        if len(self._known) >= _MOST_SCHEMAS:
            self._known.clear()
            self._columns.clear()
        self._known[head] = holding
        return head


def connect_columns(value: bytes, time_unit: str) -> dict[str, pa.DataType]:
    """What a change event says of its row, if it brings its schema with it; nothing where that is none of Kafka Connect."""
    try:
        event = json.loads(value)
        fields = _fields(event.get("schema") if isinstance(event, dict) else None)
        types = {str(field["field"]): _connect_type(field, time_unit) for field in fields}
    except (TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {name: kind for name, kind in types.items() if kind is not None}


def _fields(schema: Any) -> list[Mapping[str, Any]]:
    """Of the row after the change, which are those of the row before it."""
    row = next((field for field in _members(schema) if field.get("field") == "after"), {})
    return [field for field in _members(row) if "field" in field]


def _members(schema: Any) -> list[Mapping[str, Any]]:
    members = schema.get("fields") if isinstance(schema, dict) else None
    return (
        [field for field in members if isinstance(field, dict)] if isinstance(members, list) else []
    )


def _holding(schema: Any) -> Holding:
    found = {str(field["field"]): _held(field) for field in _fields(schema)}
    return {name: held for name, held in found.items() if held is not None}


def _held(field: Mapping[str, Any]) -> Held | None:
    name = str(field.get("name"))
    if name == _DECIMAL and field.get("type") == "bytes":
        return Held(scale=_parameter(field, "scale", 0))
    if name == VARIABLE:
        return Held()
    if field.get("type") == "bytes":
        return Held(is_bytes=True)
    if name in TIMES_OF_DAY:
        return Held(unfit=_TIME_OF_DAY)
    if name in DATES:
        return Held(unit=_DAYS)
    if name in CONNECT_TIMES:
        return Held(unit=CONNECT_TIMES[name])
    return Held(unfit=_NESTED) if _has(field, _is_decimal) else None


def _parameter(field: Mapping[str, Any], name: str, default: int) -> int:
    return int((field.get("parameters") or {}).get(name, default))


def _connect_type(field: Mapping[str, Any], time_unit: str) -> pa.DataType | None:
    """None where the value says it as well; null where JSON cannot fill what a table would have."""
    name = str(field.get("name"))
    if name == VARIABLE:
        return pa.string()  # as exact, and of any scale
    if _has(field, _is_map) or (name != _DECIMAL and _has(field, _is_decimal)):
        return pa.null()
    if name == _DECIMAL:
        precision = min(_parameter(field, "connect.decimal.precision", _MOST_DIGITS), _MOST_DIGITS)
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


def _has(schema: Any, what: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Whether it or one within it is such."""
    if not isinstance(schema, dict):
        return False
    return what(schema) or any(
        _has(inner, what) for inner in (schema.get("items"), *_members(schema))
    )


def of_variable_scale(values: Sequence[Mapping[str, Any] | None], kind: pa.DataType) -> pa.Array:
    """Decimals of which each brings its scale, with its digits as bytes or in base64."""
    decimals = [
        None if value is None else scaled(_whole(value["value"]), value["scale"])
        for value in values
    ]
    if pa.types.is_decimal(kind):
        return pa.array(decimals, kind)
    return pa.array(
        [None if value is None else format(value, "f") for value in decimals], pa.string()
    ).cast(kind)


def scaled(whole: int, scale: int) -> Decimal:
    """Return a decimal exactly. ValueError where it has more digits than anybody writes: a few bytes would make a text of gigabytes."""
    if whole.bit_length() > _MOST_BITS or abs(scale) > _MOST_SCALE:
        raise ValueError(f"a decimal has more than {_MOST_SCALE:,} digits")
    return Decimal(whole).scaleb(-scale, _EXACT)


def _whole(value: str | bytes) -> int:
    return int.from_bytes(
        value if isinstance(value, bytes) else base64.b64decode(value, validate=True),
        "big",
        signed=True,
    )


def of_scale(wholes: Sequence[int | None], scale: int) -> pa.Array:
    """Return decimals of one scale. ValueError where one has more than 38 digits."""
    try:
        data = b"".join((whole or 0).to_bytes(16, "little", signed=True) for whole in wholes)
    except OverflowError as error:
        raise ValueError(f"a decimal has more than {_MOST_DIGITS} digits") from error
    decimals = pa.Array.from_buffers(
        pa.decimal128(_MOST_DIGITS, scale), len(wholes), [None, pa.py_buffer(data)]
    )
    decimals.validate(full=True)
    return pc.if_else(
        pa.array([whole is not None for whole in wholes], pa.bool_()),
        decimals,
        pa.scalar(None, decimals.type),
    )
