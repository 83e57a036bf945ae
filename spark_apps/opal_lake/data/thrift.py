"""Thrift's compact protocol, the encoding of Parquet footers: structs as trees, and back.

A struct is a mapping of its fields by number, each with its type. The bytes are untrusted: every
value takes at least a byte, lists and texts must end before the bytes do, and structs may nest at
most `_MAX_DEPTH` deep.
"""

from dataclasses import dataclass
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
# The value of a list is the type of its elements, and the elements.
Struct = dict[int, tuple[int, Any]]

_INTEGERS = {I16, I32, I64}
_FIXED = {BYTE: 1, DOUBLE: 8}
LONG_LIST = 15  # elements; the number of so many or more takes bytes of its own
_MAX_STEP = 15  # from one field number to the next, in 4 bits; otherwise the number follows
_MAX_DEPTH = 16
_MAX_BITS = 64


def decode_struct(data: bytes | memoryview) -> Struct:
    """Decode the struct that the bytes begin with; raise ValueError if there is none."""
    return _Reader(memoryview(data)).struct(0)


def decode_struct_at(data: memoryview, at: int) -> tuple[Struct, int]:
    """Decode the struct that begins at a byte; return it and where it ends."""
    reader = _Reader(data, at)
    return reader.struct(0), reader.at


def value_of(fields: Struct, number: int) -> int:
    """Return the value of an integer field, 0 if it is missing."""
    kind, value = fields.get(number, (I64, 0))
    if kind not in _INTEGERS:
        raise ValueError(f"field {number} is not an integer")
    return int(value)


def struct_of(fields: Struct, number: int) -> Struct:
    """Return the value of a field that is a struct."""
    kind, value = fields.get(number, (0, None))
    if kind != STRUCT:
        raise ValueError(f"field {number} is not a struct")
    return dict(value)


def structs_of(fields: Struct, number: int) -> list[Struct]:
    """Return the value of a field that is a list of structs, empty if it is missing."""
    kind, value = fields.get(number, (LIST, (STRUCT, [])))
    is_list_of_structs = kind == LIST and (not value[1] or value[0] == STRUCT)
    if not is_list_of_structs:
        raise ValueError(f"field {number} is not a list of structs")
    return list(value[1])


def decode_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Decode the number at a byte; return it and where it ends."""
    begin = at
    value = shift = 0
    while shift <= _MAX_BITS:
        part = data[at]
        value |= (part & 0x7F) << shift
        at += 1
        shift += 7
        if part < 0x80:
            return value, at
    raise ValueError(f"the number at byte {begin} does not end within {at - begin} bytes")


def encode_struct(fields: Struct) -> bytes:
    """Encode a struct; structs within it may be given as their bytes."""
    return encode_fields(fields) + b"\0"


def encode_fields(fields: Struct, last: int = 0) -> bytes:
    """Encode fields that follow the one numbered `last`, without the struct's end."""
    parts: list[bytes] = []
    for number in sorted(fields):
        kind, value = fields[number]
        step = number - last
        if 0 < step <= _MAX_STEP:
            parts.append(bytes([step << 4 | kind]))
        else:
            parts.append(bytes([kind]) + _zigzag(number))
        # The type of a truth value is its value.
        if kind not in (TRUE, FALSE):
            parts.append(_encode(kind, value))
        last = number
    return b"".join(parts)


def _encode(kind: int, value: Any) -> bytes:
    """Encode a value of a type; bytes of a fixed width are given as bytes."""
    if kind in _INTEGERS:
        return _zigzag(value)
    if kind == STRUCT:
        return bytes(value) if isinstance(value, bytes) else encode_struct(value)
    if kind == BINARY:
        return encode_varint(len(value)) + bytes(value)
    if kind in (LIST, SET):
        element, items = value
        count_bits = min(len(items), LONG_LIST)
        head = bytes([count_bits << 4 | element])
        if len(items) >= LONG_LIST:
            head += encode_varint(len(items))
        return head + b"".join(_encode(element, item) for item in items)
    return bytes(value)


def _zigzag(value: int) -> bytes:
    if value < 0:
        return encode_varint((-value << 1) - 1)
    return encode_varint(value << 1)


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
        """Read a struct up to its end, which is a zero byte."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"its structs nest more than {_MAX_DEPTH} deep")
        fields: Struct = {}
        number = 0
        while head := self.byte():
            kind, step = head & 0x0F, head >> 4
            number = number + step if step else self.integer()
            value = None
            if kind not in (TRUE, FALSE):  # a truth value is in its type
                value = self.value(kind, depth)
            fields[number] = (kind, value)
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
        # In a list a truth value takes a byte.
        if kind in (TRUE, FALSE, *_FIXED):
            return self.bytes(_FIXED.get(kind, 1))
        raise ValueError(f"byte {self.at} has a value of type {kind}, which footers do not have")

    def items(self, depth: int) -> tuple[int, list[Any]]:
        """Read a list; return the type of its elements, and the elements."""
        head = self.byte()
        element, count = head & 0x0F, head >> 4
        if count == LONG_LIST:
            count = self.varint()
        if depth > _MAX_DEPTH or count > len(self.data) - self.at:
            raise ValueError(
                f"a list of {count:,} elements at byte {self.at} of {len(self.data):,} "
                "is too long, or too deep"
            )
        return element, [self.value(element, depth) for _ in range(count)]

    def byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError(
                f"{count:,} bytes at byte {self.at} reach beyond the end at {len(self.data):,}"
            )
        start = self.at
        self.at += count
        return bytes(self.data[start : self.at])

    def varint(self) -> int:
        value, self.at = decode_varint(self.data, self.at)
        return value

    def integer(self) -> int:
        """Read a signed number in zigzag form."""
        value = self.varint()
        return value >> 1 ^ -(value & 1)
