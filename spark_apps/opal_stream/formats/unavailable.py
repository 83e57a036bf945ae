"""Debezium's placeholder for a large value that an update did not touch, in all its forms.

A text is the placeholder itself, bytes are its bytes (in JSON their base64), an array of texts has
it as its only element, an hstore as its only key and value. Arrays of other types have an element
for each of its bytes: numbers, decimals, dates, true for each of them.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from hashlib import md5
from json.decoder import scanstring  # type: ignore[attr-defined]  # the json module's own
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.errors import InvalidInputError
from opal_stream.format_names import UNAVAILABLE

REMEDY = "set REPLICA IDENTITY FULL at its table"
_HEX = "hex:"  # begins a placeholder that is given in hexadecimal digits, as Debezium takes it
_ESCAPES = (rb"\u", rb"\/")
_MIN_BYTES = 8  # a shorter placeholder may as well be a value, above all its hexadecimal digits
_SPACE = re.compile(r"[ \t\n\r]*")
_SIDES = ("before", "after")
_DECODER = json.JSONDecoder()
_EPOCH = date(1970, 1, 1)
_MAX_DIGITS = 38
_ROW = tuple[dict[str, Any], dict[str, tuple[int, int]]]


def missing_value_error(column: str) -> ValueError:
    """Return the error of a column whose value is needed, and did not change."""
    return ValueError(
        f"the event lacks the value of column {column!r}, which did not change: {REMEDY}"
    )


class Placeholder:
    """The value of `unavailable.value.placeholder` of the connector."""

    def __init__(self, given: str = UNAVAILABLE) -> None:
        self._data = _bytes_of(given)
        self._text = self._data.decode(errors="replace")
        encoded = {base64.b64encode(self._data), base64.urlsafe_b64encode(self._data)}
        digits = self._data.hex()
        of_hstore = json.dumps({self._text: self._text}, ensure_ascii=False)
        self._texts = {
            self._text,
            *(text.decode() for text in encoded),
            digits,
            digits.upper(),
            of_hstore,
            of_hstore.replace('": "', '":"'),
        }
        self._uuid = str(UUID(bytes=md5(self._data, usedforsecurity=False).digest(), version=3))
        self._numbers = [byte - 256 if byte > 127 else byte for byte in self._data]  # Java's bytes
        self._bytes = {self._data, *(text.encode() for text in self._texts)}

    def split(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the members that are the placeholder.

        Raises ValueError for a placeholder within a member.
        """
        names = []
        for name, value in row.items():
            # Most values: the check by class is the quickest
            if value.__class__ in (int, float, bool) or value is None:
                continue
            if self._is_whole(value):
                names.append(name)
            elif self._is_within(value):
                raise ValueError(
                    f"a part of member {name!r} is the placeholder of a value that did not change, "
                    f"and only whole columns are looked up: {REMEDY}"
                )
        return tuple(names)

    def may_be_in(self, rows: pa.Array) -> bool:
        """Return whether a value of an array, or within one, looks like the placeholder."""
        kind = rows.type
        if pa.types.is_struct(kind):
            return any(self.may_be_in(rows.field(number)) for number in range(kind.num_fields))
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return self._may_be_list(rows) or self.may_be_in(rows.values)
        if pa.types.is_map(kind):
            return self.may_be_in(rows.keys) or self.may_be_in(rows.items)
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            return False
        # Lengths first: they are compared quicker than values, and almost none fits
        fits = pc.is_in(pc.binary_length(rows), value_set=self._lengths)
        if not fits.true_count:
            return False
        values = rows.filter(fits).cast(pa.binary())
        return bool(pc.is_in(values, value_set=self._values).true_count)

    def may_be_in_text(self, value: bytes) -> bool:
        """Return whether the text of a message in JSON may hold the placeholder."""
        # Escapes that JSON does not need: only a parser knows the letters that they stand for
        if any(escape in value for escape in _ESCAPES):
            return True
        return any(needle in value for needle in self._needles) or bool(self._listed.search(value))

    def removed(self, value: bytes) -> tuple[bytes, tuple[str, ...]]:
        """Return a change event in JSON with null for unchanged members, and their names.

        Both rows get nulls; the names are those of the row after the change.
        """
        if not self.may_be_in_text(value):
            return value, ()
        text = value.decode()
        try:
            event, spans = _members(text, 0)
            if isinstance(event.get("payload"), dict):
                event, spans = _members(text, spans["payload"][0])
            names_by_side: dict[str, tuple[str, ...]] = {}
            cuts: list[tuple[int, int]] = []
            for side in _SIDES:
                if isinstance(event.get(side), dict):
                    row, member_spans = _members(text, spans[side][0])
                    names_by_side[side] = self.split(row)
                    cuts += [member_spans[name] for name in names_by_side[side]]
        except RecursionError as error:
            raise ValueError("the message is nested too deeply") from error
        for start, stop in sorted(cuts, reverse=True):  # from the end, so that spans stay right
            text = f"{text[:start]}null{text[stop:]}"
        return text.encode(), names_by_side.get("after", ())

    @cached_property
    def _lengths(self) -> pa.Array:
        lengths = {len(form) for form in self._bytes} | {len(self._uuid)}
        return pa.array(sorted(lengths), pa.int32())

    @cached_property
    def _values(self) -> pa.Array:
        return pa.array([*self._bytes, self._uuid.encode()], pa.binary())

    @cached_property
    def _needles(self) -> list[bytes]:
        """The forms of the placeholder as JSON writes them, without quotes."""
        needles = {self._uuid}
        for text in self._texts:
            plain = json.dumps(text, ensure_ascii=False)
            escaped = json.dumps(text)
            needles |= {plain[1:-1], escaped[1:-1]}
        return [needle.encode() for needle in needles]

    @cached_property
    def _listed(self) -> re.Pattern[bytes]:
        """The pattern of the start of an array with an element for each byte."""
        first = self._numbers[0]
        digit = re.escape(base64.b64encode(self._data[:1]))
        number = rb"%d(?:\.0*)?|-?[\d.]+[eE][+-]?\d+" % first
        within = rb'(?:"%b"|\{[^{}]*"%b"[^{}]*\})' % (digit, digit)
        return re.compile(rb"\[\s*(?:%b|%b|true)\s*[,\]]" % (number, within))

    def _is_whole(self, value: Any) -> bool:
        match value:
            case str():
                return value in self._texts
            case bytes():
                return value in self._bytes
            case (str(), member) if isinstance(value, tuple):  # of a union in Avro, with its type
                return self._is_whole(member)
            case {**members} if len(members) == 1:
                return members == {self._text: self._text}
            case [element] if self._is_only_element(element):
                return True
            case list() if len(value) == len(self._numbers):
                return self._is_bytes(value)
        return False

    def _is_only_element(self, element: Any) -> bool:
        if isinstance(element, list | dict | tuple):
            return False
        return str(element) == self._uuid or self._is_whole(element)

    def _is_bytes(self, values: Sequence[Any]) -> bool:
        """Return whether each element is what a byte of the placeholder becomes.

        Raises ValueError for an array of true alone, which may also be a value.
        """
        if all(value is True for value in values):
            raise ValueError(
                f"an array of {len(values)} true values may be an array that did not change, or "
                f"a new value: {REMEDY}"
            )
        numbers = [_number(value) for value in values]
        if None in numbers:
            return False
        # Decimals have the scale of their column, which is unknown here
        has_scale = self._numbers[0] and any(isinstance(number, Decimal) for number in numbers)
        scales = range(_MAX_DIGITS + 1 if has_scale else 1)
        return any(self._has_scale(numbers, scale) for scale in scales)

    def _has_scale(self, numbers: Sequence[Any], scale: int) -> bool:
        """Return whether the numbers are the placeholder's bytes as decimals of a scale."""
        for number, byte in zip(numbers, self._numbers, strict=True):
            if number != Decimal(byte).scaleb(-scale):
                return False
        return True

    def _is_within(self, value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(self._is_anywhere, (*value.keys(), *value.values())))
        if isinstance(value, list | tuple):
            return any(map(self._is_anywhere, value))
        return False

    def _is_anywhere(self, value: Any) -> bool:
        return self._is_whole(value) or self._is_within(value)

    def _may_be_list(self, rows: pa.Array) -> bool:
        """Return whether a list has an element for each byte, and the first one fits."""
        kind = rows.type.value_type
        fits = pc.fill_null(pc.equal(pc.list_value_length(rows), len(self._numbers)), False)
        if not fits.true_count:
            return False
        if pa.types.is_integer(kind):
            first: int | str = self._numbers[0]
        elif pa.types.is_string(kind):
            first = base64.b64encode(self._data[:1]).decode()
        else:
            return True
        first_elements = pc.list_element(rows.filter(fits), 0)
        return bool(pc.any(pc.equal(first_elements, first)).as_py())


def _bytes_of(given: str) -> bytes:
    try:
        if given.startswith(_HEX):
            data = bytes.fromhex(given.removeprefix(_HEX))
        else:
            data = given.encode()
    except ValueError as error:
        raise InvalidInputError(
            f"unavailable_value={given!r} has no hexadecimal digits after {_HEX!r}; give the "
            "unavailable.value.placeholder of the connector"
        ) from error
    if not data:
        raise InvalidInputError(
            "unavailable_value is empty; give the unavailable.value.placeholder of the connector"
        )
    if len(data) < _MIN_BYTES:
        raise InvalidInputError(
            f"unavailable_value={given!r} is shorter than {_MIN_BYTES} bytes, and may as well be "
            "a value; set unavailable.value.placeholder of the connector to a longer text, and "
            "give the same here"
        )
    return data


def _number(value: Any) -> Decimal | int | float | None:
    """Return the number that an element of an array stands for; otherwise None."""
    match value:
        case bool():
            return None
        case int() | float() | Decimal():
            return value
        case datetime():
            if value.tzinfo is None:
                return None
            return round(value.timestamp() * 1000)
        case date():
            return (value - _EPOCH).days
        case {"scale": int(scale), "value": str() | bytes() as whole} if len(value) == 2:
            digits = _number(whole)
            return None if digits is None else Decimal(digits).scaleb(-scale)
        case bytes() if len(value) == 1:
            return int.from_bytes(value, signed=True)
        case str() if len(value) == 4:
            try:
                return _number(base64.b64decode(value, validate=True))
            except ValueError:
                return None
    return None


def _members(text: str, start: int) -> _ROW:
    """Return the members of an object in JSON, and the span of each value in the text."""
    values: dict[str, Any] = {}
    spans: dict[str, tuple[int, int]] = {}
    position = _past_space(text, start)
    if text[position : position + 1] != "{":
        raise ValueError("the message is not a JSON object")
    position = _past_space(text, position + 1)
    while text[position : position + 1] == '"':
        name, position = scanstring(text, position + 1)
        position = _past_space(text, position)
        if text[position : position + 1] != ":":
            raise ValueError(f"the message is not JSON: member {name!r} has no value")
        begin = _past_space(text, position + 1)
        values[name], end = _DECODER.raw_decode(text, begin)
        spans[name] = (begin, end)
        position = _past_space(text, end)
        if text[position : position + 1] != ",":
            break
        position = _past_space(text, position + 1)
    return values, spans


def _past_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    if match:
        return match.end()
    return position
