"""Thrift's compact protocol, which footers of Parquet files are written in: any struct as a tree, and back.

A struct is its fields by number, each with its type. What is read is untrusted: every value takes at least a byte, lists and texts end
where the bytes end, and structs nest as deep as those of a footer.
"""

from dataclasses import dataclass
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
Struct = dict[int, tuple[int, Any]]  # of a list the value is the type of its elements, and they

_INTEGERS = {I16, I32, I64}
_FIXED = {BYTE: 1, DOUBLE: 8}
LONG_LIST = 15  # and more: then their number follows
_MOST_DEPTH = 16
_MOST_BITS = 64


def decode_struct(data: bytes | memoryview) -> Struct:
    """The struct that the bytes begin with; ValueError if they are none."""
    return _Reader(memoryview(data)).struct(0)


def decode_struct_at(data: memoryview, at: int) -> tuple[Struct, int]:
    """Return the struct that begins at a byte, and where it ends."""
    reader = _Reader(data, at)
    return reader.struct(0), reader.at


def value_of(fields: Struct, number: int) -> int:
    """Of an integer field, 0 if it is not there."""
    kind, value = fields.get(number, (I64, 0))
    if kind not in _INTEGERS:
        raise ValueError(f"field {number} is no number")
    return int(value)


def struct_of(fields: Struct, number: int) -> Struct:
    """Of a field that is a struct itself."""
    kind, value = fields.get(number, (0, None))
    if kind != STRUCT:
        raise ValueError(f"field {number} is no struct")
    return dict(value)


def structs_of(fields: Struct, number: int) -> list[Struct]:
    """Of a field that is a list of structs."""
    kind, value = fields.get(number, (LIST, (STRUCT, [])))
    if kind != LIST or (value[1] and value[0] != STRUCT):
        raise ValueError(f"field {number} is no list of structs")
    return list(value[1])


def decode_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number at a byte, and where it ends."""
    value = shift = 0
    while shift <= _MOST_BITS:
        part = data[at]
        value |= (part & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if part < 0x80:
            return value, at
    raise ValueError(f"the number that ends at byte {at} has more than {_MOST_BITS} bits")


def encode_struct(fields: Struct) -> bytes:
    """The inverse. In the place of a struct within may be its bytes."""
    return encode_fields(fields) + b"\0"


def encode_fields(fields: Struct, last: int = 0) -> bytes:
    """Those of a struct that come after the field of that number, without the end of the struct."""
    parts = []
    for number in sorted(fields):
        kind, value = fields[number]
        step = number - last
        parts.append(
            bytes([step << 4 | kind]) if 0 < step <= LONG_LIST else bytes([kind]) + _zigzag(number)
        )
        parts.append(b"" if kind in (TRUE, FALSE) else _encode(kind, value))
        last = number
    return b"".join(parts)


def _encode(kind: int, value: Any) -> bytes:
    if kind in _INTEGERS:
        return _zigzag(value)
    if kind == STRUCT:
        return bytes(value) if isinstance(value, bytes) else encode_struct(value)
    if kind == BINARY:
        return encode_varint(len(value)) + bytes(value)
    if kind in (LIST, SET):
        element, items = value
        head = (
            bytes([len(items) << 4 | element])
            if len(items) < LONG_LIST
            else bytes([LONG_LIST << 4 | element]) + encode_varint(len(items))
        )
        return head + b"".join(_encode(element, item) for item in items)
    return bytes(value)


def _zigzag(value: int) -> bytes:
    return encode_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def encode_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


@dataclass(slots=True)
class _Reader:
    data: memoryview
    at: int = 0

    def struct(self, depth: int) -> Struct:
        if depth > _MOST_DEPTH:
            raise ValueError(f"its structs nest more than {_MOST_DEPTH} deep")
        fields: Struct = {}
        number = 0
        while head := self.byte():
            kind, step = head & 0x0F, head >> 4
            number = number + step if step else self.integer()
            fields[number] = (kind, None if kind in (TRUE, FALSE) else self.value(kind, depth))
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if kind in _INTEGERS:
            return self.integer()
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind == BINARY:
            return self.bytes(self.varint())
        if kind in (LIST, SET):
            return self.items(depth + 1)
        if kind in (TRUE, FALSE, *_FIXED):  # in a list a truth value takes a byte
            return self.bytes(_FIXED.get(kind, 1))
        raise ValueError(f"byte {self.at} has a value of type {kind}, which footers do not have")

    def items(self, depth: int) -> tuple[int, list[Any]]:
        head = self.byte()
        element, count = head & 0x0F, head >> 4
        count = self.varint() if count == LONG_LIST else count
        if depth > _MOST_DEPTH or count > len(self.data) - self.at:
            raise ValueError(
                f"a list of {count:,} elements at byte {self.at} of {len(self.data):,} is too long, or too deep"
            )
        return element, [self.value(element, depth) for _ in range(count)]

    def byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError(
                f"{count:,} bytes at byte {self.at} reach beyond the {len(self.data):,} that there are"
            )
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def varint(self) -> int:
        value, self.at = decode_varint(self.data, self.at)
        return value

    def integer(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)
