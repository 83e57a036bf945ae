"""Random messages in Avro, by its own encoder, and their meaning in a column, by plain Python.

A value is given as it is written: a number for a timestamp, bytes for a decimal, and the number of
the branch next to the value of a union.
Times and dates are compared as numbers, so that they may lie beyond the years of Python.
"""

import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa

Node = Any
UTC_TIME, LOCAL_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
_MICROS: dict[str, int | Fraction] = {
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
    "ns": Fraction(1, 1_000),
}
_DAY_US = 86_400_000_000
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_CONNECT_UNITS = {"Timestamp": "ms", "MicroTimestamp": "us", "NanoTimestamp": "ns"}
_TEXT_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d:\d\d(?:\.\d{1,6})?)(Z|[+-]\d\d:\d\d)?)?\Z"
)


class MisfitError(Exception):
    """The column cannot hold the value as it is."""


def branches(node: Node) -> list[Node]:
    return [branch for branch in (node if isinstance(node, list) else [node]) if branch != "null"]


def base(node: Node) -> str:
    return node["type"] if isinstance(node, dict) else node


def encoded(node: Node, value: Any) -> bytes:
    """Return the bytes that Avro writes."""
    if isinstance(node, list):
        number, inner = value
        return _long(number) + encoded(node[number], inner)
    kind = base(node)
    if kind in _ENCODED:
        return _ENCODED[kind](value)
    if kind == "enum":
        return _long(node["symbols"].index(value))
    if kind == "array":
        return _block([encoded(node["items"], item) for item in value])
    if kind == "map":
        return _block([_text(key) + encoded(node["values"], value[key]) for key in value])
    return b"".join(encoded(field["type"], value[field["name"]]) for field in node["fields"])


def _block(items: list[bytes]) -> bytes:
    return (_long(len(items)) + b"".join(items) if items else b"") + b"\0"


def _text(value: str) -> bytes:
    return _bytes(value.encode())


def _bytes(value: bytes) -> bytes:
    return _long(len(value)) + value


def _long(number: int) -> bytes:
    rest, actual = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        actual.append((rest & 0x7F) | 0x80)
        rest >>= 7
    return bytes([*actual, rest])


_ENCODED: dict[str, Callable[[Any], bytes]] = {
    "null": lambda _: b"",
    "boolean": lambda value: bytes([value]),
    "int": _long,
    "long": _long,
    "float": lambda value: struct.pack("<f", value),
    "double": lambda value: struct.pack("<d", value),
    "string": _text,
    "bytes": _bytes,
    "fixed": bytes,
}


def plain(node: Node) -> Node:
    """Return a schema without logical types."""
    if isinstance(node, list):
        return [plain(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    parts = {name: part for name, part in node.items() if name != "logicalType"}
    for name in ("items", "values"):
        if name in parts:
            parts[name] = plain(parts[name])
    if "fields" in parts:
        parts["fields"] = [{**field, "type": plain(field["type"])} for field in parts["fields"]]
    return parts


def without_branches(node: Node, value: Any) -> Any:
    """Return a value as fastavro reads it."""
    if isinstance(node, list):
        number, inner = value
        return without_branches(node[number], inner)
    if base(node) == "array":
        return [without_branches(node["items"], item) for item in value]
    if base(node) == "map":
        return {key: without_branches(node["values"], item) for key, item in value.items()}
    if base(node) != "record":
        return value
    types = {field["name"]: field["type"] for field in node["fields"]}
    return {name: without_branches(types[name], item) for name, item in value.items()}


# What a value means in a column


def fitted(node: Node, value: Any, kind: pa.DataType) -> Any:
    """Return what a column holds of a value; raise MisfitError if it cannot."""
    if isinstance(node, list):
        number, inner = value
        return fitted(node[number], inner, kind)
    if base(node) == "null":
        return None
    if not pa.types.is_nested(kind):
        return _fitted_plain(node, value, kind)
    match base(node):
        case "array" if pa.types.is_list(kind):
            return [fitted(node["items"], item, kind.value_type) for item in value]
        case "map" if pa.types.is_map(kind):
            return [(key, fitted(node["values"], value[key], kind.item_type)) for key in value]
        case "record" if pa.types.is_struct(kind):
            own = {field["name"]: field["type"] for field in node["fields"]}
            return {
                member.name: fitted(own[member.name], value[member.name], member.type)
                if member.name in own
                else None
                for member in kind
            }
    raise MisfitError


def _fitted_plain(node: Node, value: Any, kind: pa.DataType) -> Any:
    logical = node.get("logicalType") if isinstance(node, dict) else None
    if logical and logical != "duration":
        return _of_logical(node, logical, value, kind)
    connect = str(node.get("connect.name") if isinstance(node, dict) else "").rpartition(".")[2]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if connect == "Date":
            return _of_days(value, kind)
        if connect in _CONNECT_UNITS:
            return _of_moment(Fraction(value) * _MICROS[_CONNECT_UNITS[connect]], kind)
        if connect.endswith("Time"):
            raise MisfitError
    if base(node) == "record":
        names = [field["name"] for field in node["fields"]]
        if names != ["scale", "value"]:
            raise MisfitError
        return _of_decimal(_decimal(value["value"], value["scale"]), kind)
    if base(node) not in _OF_PLAIN:
        raise MisfitError
    return _OF_PLAIN[base(node)](value, kind)


def _of_logical(node: Node, logical: str, value: Any, kind: pa.DataType) -> Any:
    unit = _UNITS.get(logical.rpartition("-")[2], "")
    if "timestamp" in logical:
        is_number = unit == "ns" and kind == pa.int64()
        return value if is_number else _of_moment(Fraction(value) * _MICROS[unit], kind)
    if logical == "date":
        return _of_days(value, kind)
    if logical.startswith("time-"):
        return _of_time(value * _MICROS[unit], kind)
    if logical == "decimal":
        return _of_decimal(_decimal(value, node.get("scale", 0)), kind)
    return _of_uuid(value, kind)


def _of_boolean(value: bool, kind: pa.DataType) -> Any:
    return _only(value, kind == pa.bool_())


def _only(value: Any, fits: bool) -> Any:
    if not fits:
        raise MisfitError
    return value


def _of_integer(value: int, kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        return _only(value, -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1))
    if pa.types.is_floating(kind):
        return _only(float(value), abs(value) <= (2**24 if kind == pa.float32() else 2**53))
    if pa.types.is_decimal(kind):
        return _of_decimal(Decimal(value), kind)
    if pa.types.is_timestamp(kind):
        return _of_moment(Fraction(value) * 1_000, kind)
    return _of_days(_only(value, kind == pa.date32()), kind)


def _of_float(value: float, kind: pa.DataType) -> Any:
    if kind == pa.float64():
        return value
    if kind == pa.float32():
        return _single(value)
    if not pa.types.is_integer(kind) or not math.isfinite(value) or value != int(value):
        raise MisfitError
    return _of_integer(int(value), kind)


def _single(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError as error:
        raise MisfitError from error


def _of_text(value: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return value
    if pa.types.is_binary(kind):
        return value.encode()
    if pa.types.is_decimal(kind) and re.fullmatch(r"-?\d+(\.\d+)?", value):
        return _of_decimal(Decimal(value), kind)
    parts = _TEXT_TIME.match(value)
    if parts is None:
        raise MisfitError
    day, clock, zone = parts.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock or '00:00:00'}{zone or 'Z'}")
    except ValueError as error:
        raise MisfitError from error
    micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if pa.types.is_date(kind):
        return _only(micros // _DAY_US, clock is None)
    return _only(micros, pa.types.is_timestamp(kind) and not (zone and kind.tz is None))


def _of_bytes(value: bytes, kind: pa.DataType) -> Any:
    if pa.types.is_binary(kind):
        return value
    try:
        return _only(value.decode(), pa.types.is_string(kind))
    except UnicodeDecodeError as error:
        raise MisfitError from error


def _of_moment(micros: Fraction, kind: pa.DataType) -> Any:
    if pa.types.is_date(kind):
        return _of_days(_whole(micros / _DAY_US), kind)
    return _only(_whole(micros), pa.types.is_timestamp(kind) and -(2**63) <= micros < 2**63)


def _whole(number: Fraction) -> int:
    return int(_only(number, number.denominator == 1))


def _of_days(days: int, kind: pa.DataType) -> Any:
    if not -(2**31) <= days < 2**31:
        raise MisfitError
    if pa.types.is_timestamp(kind):
        return _of_moment(Fraction(days) * _DAY_US, kind)
    return _only(days, pa.types.is_date(kind))


def _of_time(micros: Any, kind: pa.DataType) -> Any:
    if not pa.types.is_string(kind) or not 0 <= micros < _DAY_US:
        raise MisfitError
    return str((datetime(1970, 1, 1) + timedelta(microseconds=int(micros))).time())


def _of_uuid(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bytes) and pa.types.is_binary(kind):
        return value
    try:
        actual = UUID(bytes=value) if isinstance(value, bytes) else UUID(value)
    except ValueError as error:
        raise MisfitError from error
    return _only(str(actual), pa.types.is_string(kind))


def _decimal(value: bytes, scale: int) -> Decimal:
    whole = int.from_bytes(value, "big", signed=True)
    return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -scale))


def _of_decimal(value: Decimal, kind: pa.DataType) -> Any:
    exact = Fraction(value)
    if pa.types.is_decimal(kind):
        whole = _whole(exact * 10**kind.scale)
        return Decimal(_only(whole, abs(whole) < 10**kind.precision)).scaleb(-kind.scale)
    if pa.types.is_integer(kind):
        return _of_integer(_whole(exact), kind)
    if pa.types.is_floating(kind):
        return _of_float(float(value), kind)
    return _only(format(value, "f"), pa.types.is_string(kind))


_OF_PLAIN: dict[str, Callable[[Any, pa.DataType], Any]] = {
    "boolean": _of_boolean,
    **dict.fromkeys(("int", "long"), _of_integer),
    **dict.fromkeys(("float", "double"), _of_float),
    **dict.fromkeys(("string", "enum"), _of_text),
    **dict.fromkeys(("bytes", "fixed"), _of_bytes),
}


def new_members(node: Node, kind: pa.DataType, path: str) -> list[str]:
    """Return the members of all branches that a column lacks."""
    actual: list[str] = []
    for branch in branches(node):
        if base(branch) == "array" and pa.types.is_list(kind):
            actual += new_members(branch["items"], kind.value_type, f"{path}[]")
        elif base(branch) == "map" and pa.types.is_map(kind):
            actual += new_members(branch["values"], kind.item_type, f"{path}[]")
        elif base(branch) == "record" and pa.types.is_struct(kind):
            known = {member.name: member.type for member in kind}
            for field in branch["fields"]:
                member_path = f"{path}.{field['name']}"
                if field["name"] in known:
                    actual += new_members(field["type"], known[field["name"]], member_path)
                else:
                    actual.append(member_path)
    return list(dict.fromkeys(actual))


def plain_values(array: Any) -> list[Any]:
    """Return the values of a column in the form of this model."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return list(
            array.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32()).to_pylist()
        )
    if not pa.types.is_nested(kind):
        return list(array.to_pylist())
    values = [array[number] for number in range(len(array))]
    if pa.types.is_struct(kind):
        columns = {member.name: plain_values(array.field(member.name)) for member in kind}
        return [
            {name: column[number] for name, column in columns.items()} if value.is_valid else None
            for number, value in enumerate(values)
        ]
    if pa.types.is_list(kind):
        return [plain_values(value.values) if value.is_valid else None for value in values]
    return [_entries(value) if value.is_valid else None for value in values]


def _entries(value: Any) -> list[tuple[str, Any]]:
    entries = value.values
    return list(zip(plain_values(entries.field(0)), plain_values(entries.field(1)), strict=True))


# Random schemas and values


KINDS: list[pa.DataType] = [
    pa.bool_(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(9, 2),
    pa.decimal128(38, 9),
    pa.string(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    UTC_TIME,
    UTC_TIME,
    LOCAL_TIME,
    pa.list_(pa.int64()),
    pa.list_(UTC_TIME),
    pa.list_(pa.string()),
    pa.struct([("a", pa.int64()), ("b", pa.string())]),
    pa.struct([("a", UTC_TIME), ("b", pa.decimal128(9, 2)), ("c", pa.list_(pa.date32()))]),
    pa.map_(pa.string(), pa.int64()),
    pa.map_(pa.string(), LOCAL_TIME),
]
_LOGICAL = [
    *(("long", f"timestamp-{unit}") for unit in _UNITS),
    *(("long", f"local-timestamp-{unit}") for unit in _UNITS),
    ("int", "date"),
    ("int", "time-millis"),
    ("long", "time-micros"),
    ("string", "uuid"),
]
_CONNECT = [
    ("long", "io.debezium.time.Timestamp"),
    ("long", "io.debezium.time.MicroTimestamp"),
    ("long", "io.debezium.time.NanoTimestamp"),
    ("int", "io.debezium.time.Date"),
    ("long", "io.debezium.time.MicroTime"),
]
_PLAIN = ("boolean", "int", "long", "float", "double", "bytes", "string")
_NUMBERS = (0, 1, -1, 5, 127, 128, 19_723, -40_000, 86_400_000, 1_700_000_000)
_LONGS = (*_NUMBERS, 1_700_000_000_123, 1_700_000_000_123_456, 2**53, 2**53 + 1, 2**62, -(2**63))
_DOUBLES = (0.0, 1.0, -2.5, 0.1, 1e300, 16_777_217.0, math.inf, 300.0)
_TEXTS = (
    "",
    "abc",
    "né",
    "5",
    "12.5",
    "-12.345",
    "2024-01-02",
    "2024-01-02T03:04:05Z",
    "2024-01-02 03:04:05",
    "2024-01-02T03:04:05.123456",
    "2024-01-02T03:04:05+02:00",
    "2024-02-30",
    "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
)
_BYTES = (b"", b"abc", b"\xff\x00", b"\x04\xd2", b"\xfb\x2e", b"\x7f" * 20)


_VALUES: dict[str, Sequence[Any]] = {
    "null": (None,),
    "boolean": (True, False),
    "int": _NUMBERS,
    "long": _LONGS,
    "float": [_single(value) for value in _DOUBLES if value != 1e300],
    "double": _DOUBLES,
    "string": _TEXTS,
    "bytes": _BYTES,
}


@dataclass(slots=True, kw_only=True)
class Maker:
    """A generator of schemas and values.

    Names of types are used again, with other members or in another namespace.
    """

    random: Random

    def schema(self, columns: Sequence[str], kinds: Sequence[pa.DataType]) -> Node:
        """Return a record with some columns, in any order, and sometimes with others."""
        pairs = [*zip(columns, kinds, strict=True)]
        fields = [
            self._field(name, self.node_for(kind))
            for name, kind in pairs
            if self._one_in(4, not_=True)
        ]
        fields += [self._field(f"x{number}", self.node()) for number in (1, 2) if self._one_in(5)]
        self.random.shuffle(fields)
        usual = [("id", "long"), ("op", "string"), ("at", _logical("long", "timestamp-micros"))]
        fields = [*({"name": name, "type": kind} for name, kind in usual), *fields]
        namespace = self.random.choice(("a", "b"))
        return _named_apart({"type": "record", "name": f"{namespace}.Order", "fields": fields})

    def _field(self, name: str, node: Node) -> dict[str, Any]:
        field = {"name": name, "type": node}
        if self._one_in(4):
            field["aliases"] = [f"old_{name}", "c0"]
        if isinstance(node, list) and node[0] == "null":
            field["default"] = None
        elif node == "string":
            field["default"] = "by default"
        return field

    def node_for(self, kind: pa.DataType) -> Node:
        """Mostly one that goes with the column."""
        if self._one_in(5):
            return self.node()
        return self._nullable(
            [self._natural(kind) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        )

    def node(self, depth: int = 0) -> Node:
        """Return a value of any type."""
        count = self.random.choice((1, 1, 1, 2, 3))
        return self._nullable([self._any(depth) for _ in range(count)])

    def value(self, node: Node) -> Any:
        """Return a value of a type, as it is written."""
        pick = self.random.choice
        if isinstance(node, list):
            number = self.random.randrange(len(node))
            return number, self.value(node[number])
        kind = base(node)
        if kind in _VALUES:
            return pick(_VALUES[kind])
        if kind == "fixed":
            return bytes(pick((0, 1, 65, 255)) for _ in range(node["size"]))
        if kind == "enum":
            return pick(node["symbols"])
        if kind == "array":
            return [self.value(node["items"]) for _ in range(pick((0, 1, 3)))]
        if kind == "map":
            return {f"k{number}": self.value(node["values"]) for number in range(pick((0, 1, 2)))}
        fields = {field["name"]: self.value(field["type"]) for field in node["fields"]}
        if fields.keys() == {"scale", "value"}:
            fields["scale"] = pick((0, 2, -2, 9, 40))
        return fields

    def _one_in(self, count: int, *, not_: bool = False) -> bool:
        return (self.random.randrange(count) == 0) is not not_

    def _nullable(self, nodes: list[Node]) -> Node:
        """Return the types of a union: each plain type once, and each name."""
        kinds: dict[str, Node] = {}
        for branch in nodes:
            key = branch["name"] if isinstance(branch, dict) and "name" in branch else base(branch)
            kinds.setdefault(key, branch)
        actual = list(kinds.values())
        if self._one_in(2):
            actual.insert(self.random.choice((0, len(actual))), "null")
        return actual if len(actual) > 1 else actual[0]

    def _natural(self, kind: pa.DataType) -> Node:
        pick = self.random.choice
        if pa.types.is_list(kind):
            return {"type": "array", "items": self._nullable([self._natural(kind.value_type)])}
        if pa.types.is_map(kind):
            return {"type": "map", "values": self._nullable([self._natural(kind.item_type)])}
        if pa.types.is_struct(kind):
            return self._record(
                [(m.name, self.node_for(m.type)) for m in kind if self._one_in(6, not_=True)]
            )
        if pa.types.is_timestamp(kind):
            return pick(
                ("long", "string", self._meaning(), self._meaning(), _logical("int", "date"))
            )
        if pa.types.is_date(kind):
            return pick(("int", "string", _logical("int", "date"), self._meaning()))
        if pa.types.is_decimal(kind):
            return pick(
                ("int", "long", self._decimal(), self._decimal(), self._variable(), "string")
            )
        if pa.types.is_integer(kind):
            return pick(("int", "long", "double", self._decimal(), self._meaning()))
        if pa.types.is_floating(kind):
            return pick(("float", "double", "int", self._variable()))
        if pa.types.is_boolean(kind):
            return "boolean"
        return pick(
            ("string", "bytes", self._enum(), self._fixed(), self._meaning(), self._variable())
        )

    def _any(self, depth: int) -> Node:
        nested = [self._array, self._map, self._any_record] if depth < 2 else []
        plain = [self._meaning, self._decimal, self._variable, self._enum, self._fixed]
        make = self.random.choice([*nested, *plain, *(lambda: self.random.choice(_PLAIN),) * 4])
        return make(depth) if make in nested else make()  # type: ignore[operator]

    def _array(self, depth: int) -> Node:
        return {"type": "array", "items": self.node(depth + 1)}

    def _map(self, depth: int) -> Node:
        return {"type": "map", "values": self.node(depth + 1)}

    def _any_record(self, depth: int) -> Node:
        return self._record(
            [(name, self.node(depth + 1)) for name in ("a", "b") if self._one_in(2)]
        )

    def _record(self, members: list[tuple[str, Node]]) -> Node:
        if self._one_in(8):
            members = [*members, ("z", self.random.choice(_PLAIN))]
        fields = [{"name": name, "type": kind} for name, kind in members]
        return {"type": "record", "name": self._name("Inner"), "fields": fields}

    def _name(self, name: str) -> str:
        return f"{self.random.choice(('a', 'b', 'c'))}.{name}"

    def _meaning(self) -> Node:
        if self._one_in(3):
            kind, name = self.random.choice(_CONNECT)
            return {"type": kind, "connect.name": name}
        return _logical(*self.random.choice(_LOGICAL))

    def _decimal(self) -> Node:
        scale = self.random.choice((0, 2, 4))
        digits = {"logicalType": "decimal", "precision": 18, "scale": scale}
        if self._one_in(3):
            return {"type": "fixed", "name": self._name("Amount"), "size": 9, **digits}
        return {"type": "bytes", **digits}

    def _variable(self) -> Node:
        fields = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
        return {"type": "record", "name": "io.debezium.data.VariableScaleDecimal", "fields": fields}

    def _enum(self) -> Node:
        return {"type": "enum", "name": self._name("Colour"), "symbols": ["RED", "GREEN"]}

    def _fixed(self) -> Node:
        logical, size = self.random.choice(((None, 3), ("duration", 12), ("uuid", 16)))
        fixed = {"type": "fixed", "name": self._name("Bits"), "size": size}
        return {**fixed, "logicalType": logical} if logical else fixed


def _logical(kind: str, name: str) -> Node:
    return {"type": kind, "logicalType": name}


def _named_apart(schema: Node) -> Node:
    """Return a schema that defines each name once.

    A name that stands for another type before gets a number.
    """
    known: dict[str, Node] = {}

    def walked(node: Node) -> Node:
        if isinstance(node, list):
            return [walked(branch) for branch in node]
        if not isinstance(node, dict):
            return node
        parts = {
            name: walked(part) if name in ("items", "values") else part
            for name, part in node.items()
        }
        if "fields" in node:
            fields = [{**field, "type": walked(field["type"])} for field in node["fields"]]
            parts["fields"] = fields
        if "name" in parts:
            name, number = parts["name"], 1
            while name in known:
                name, number = f"{parts['name']}{number}", number + 1
            known[name] = parts
            parts["name"] = name
        return parts

    return walked(schema)
