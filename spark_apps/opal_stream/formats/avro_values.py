"""The conversion of Avro's values to a column's type, by the schema that wrote them.

A value that the column cannot hold exactly raises ValueError: it never becomes null, or another
value. Only a number in a column of doubles or floats becomes the nearest double or float.
"""

from collections.abc import Callable, Sequence
from datetime import time as time_of_day
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.definition.schema import type_name
from opal_stream.formats.json_lines import without_extra_digits
from opal_stream.formats.schemas.avro_schema import AvroSchema, Node, base_type, branches, is_record
from opal_stream.formats.schemas.avro_types import logical_type
from opal_stream.formats.schemas.connect import (
    CONNECT_TIMES,
    DATES,
    TIMES_OF_DAY,
    decimals_of_scale,
    scaled_decimal,
)

# Values as fastavro reads them: null or of one type, with the marks that `AvroSchema` adds
Values = Sequence[Any]
Convert = Callable[[Values], pa.Array]
ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
)
# The units of Avro's logical types
_MOMENTS = {
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "timestamp-nanos": "ns",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
    "local-timestamp-nanos": "ns",
}
# The length of a day in each unit
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_MICROS = {"time-millis": 1_000, "time-micros": 1}  # microseconds of the unit of a time of day
_MAX_SCALE = 38
_WITH_ZONE = r"[T ].*([Zz]|[+-]\d{2}(:?\d{2})?)$"
_INTEGERS, _FLOATS = ("int", "long"), ("float", "double")
_TEXTS, _BYTES = ("string", "enum"), ("bytes", "fixed")


class Conversions:
    """The conversions of the values of one schema.

    In a column of times, numbers without a unit in the schema have the unit `time_unit`. In a
    column of dates they are days.
    """

    def __init__(self, schema: AvroSchema, time_unit: str) -> None:
        self._schema = schema
        self._time_unit = time_unit

    def of(self, node: Node, kind: pa.DataType) -> Convert:
        """Return the conversion of values of a type, `node`, to a column's type, `kind`."""
        others = branches(node)
        if not others:
            return partial(_refused, "null", kind)
        if len(others) > 1:
            return self._of_union(node, kind)
        node = self._schema.resolved(others[0])
        if isinstance(node, list):
            return self.of(node, kind)
        if isinstance(node, dict) and isinstance(node["type"], dict | list):
            return self.of(node["type"], kind)
        if pa.types.is_nested(kind):
            return self._nested(node, kind)
        return self._atomic(node, kind)

    def member(self, node: Node, name: str, kind: pa.DataType) -> Convert:
        """Return the conversion of records to one field's values; null for a null record."""
        convert = self.of(node, pa.struct([(name, kind)]))
        return lambda values: pc.struct_field(convert(values), name)

    def _of_union(self, node: Node, kind: pa.DataType) -> Convert:
        """Return a conversion of each value by the branch of the union that wrote it."""
        converts: dict[int, Convert] = {}  # by id() of the branch
        resolved = [self._schema.resolved(branch) for branch in branches(node)]

        def convert(values: Values) -> pa.Array:
            # By id() of the branch: the positions of its values, and the values
            groups: dict[int, tuple[list[int], list[Any]]] = {}
            for position, value in enumerate(values):
                branch, inner = self._schema.chosen(node, value)
                if value is None:  # null fits each type: the first one converts it
                    branch = resolved[0]
                if id(branch) not in converts:
                    converts[id(branch)] = self.of(branch, kind)
                positions, inners = groups.setdefault(id(branch), ([], []))
                positions.append(position)
                inners.append(inner)
            parts: list[tuple[list[int], pa.Array]] = []
            for branch_id, (positions, inners) in groups.items():
                parts.append((positions, converts[branch_id](inners)))
            return join_in_order(parts, kind)

        return convert

    def _nested(self, node: Node, kind: pa.DataType) -> Convert:
        """Return the conversion to a column of lists, maps or structs."""
        if self._is_plain(node, kind):
            return partial(pa.array, type=kind)
        base = base_type(node)
        if base == "array" and pa.types.is_list(kind):
            convert_element = self.of(node["items"], kind.value_type)
            return partial(_lists, convert=convert_element, kind=kind)
        if base == "map" and _is_map_of_texts(kind):
            convert_item = self.of(node["values"], kind.item_type)
            return partial(_maps, convert=convert_item, kind=kind)
        if is_record(node) and pa.types.is_struct(kind):
            fields = self._schema.fields(node)
            members: list[tuple[pa.Field, Convert | None]] = []
            for field in kind:
                convert: Convert | None = None
                if field.name in fields:
                    convert = self.of(fields[field.name], field.type)
                members.append((field, convert))
            return partial(_structs, members=members, kind=kind)
        return partial(_refused, base, kind)

    def _is_plain(self, node: Node, kind: pa.DataType) -> bool:
        """Return whether Arrow converts the values itself, and none has a logical type."""
        others = branches(node)
        if len(others) != 1:
            return False
        node = self._schema.resolved(others[0])
        if not isinstance(node, str) and not isinstance(node["type"], str):
            return False
        base = base_type(node)
        if base == "array" and pa.types.is_list(kind):
            return self._is_plain(node["items"], kind.value_type)
        if base == "map" and _is_map_of_texts(kind):
            return self._is_plain(node["values"], kind.item_type)
        if is_record(node) and pa.types.is_struct(kind):
            fields = self._schema.fields(node)
            return all(
                field.name not in fields or self._is_plain(fields[field.name], field.type)
                for field in kind
            )
        return logical_type(node) is None and _is_same_type(base, kind)

    def _atomic(self, node: Node, kind: pa.DataType) -> Convert:
        """Return the conversion to a column without members."""
        base, logical = base_type(node), logical_type(node)
        if logical is not None:
            return _logical(node, logical, kind)
        if base in _INTEGERS:
            return _named_by_connect(node, kind) or _integers(kind, self._time_unit)
        if base in _FLOATS:
            return _floats(kind)
        if base in _TEXTS:
            return _texts(kind) or partial(_refused, base, kind)
        if base in _BYTES:
            return _bytes(kind) or partial(_refused, base, kind)
        if base == "boolean" and pa.types.is_boolean(kind):
            return partial(pa.array, type=kind)
        if self._is_decimal_with_scale(node):
            return partial(_decimals_with_scale, kind=kind)
        return partial(_refused, base, kind)

    def _is_decimal_with_scale(self, node: Node) -> bool:
        """Return whether a record is a decimal: a whole number in bytes, and its scale."""
        fields = self._schema.fields(node)
        if fields.keys() != {"scale", "value"}:
            return False
        has_scale = self._is_written_as(fields["scale"], _INTEGERS)
        return has_scale and self._is_written_as(fields["value"], _BYTES)

    def _is_written_as(self, node: Node, bases: Sequence[str]) -> bool:
        """Return whether a type is one of `bases`, or null, and has no logical type."""
        others = branches(node)
        if len(others) != 1:
            return False
        kind = self._schema.resolved(others[0])
        return base_type(kind) in bases and logical_type(kind) is None


def join_in_order(parts: Sequence[tuple[Sequence[int], pa.Array]], kind: pa.DataType) -> pa.Array:
    """Join arrays into one.

    Each is given with the positions of its values in the joined one.
    """
    if len(parts) == 1:
        return parts[0][1]
    if not parts:
        return pa.array([], kind)
    all_positions: list[int] = []
    for positions, _ in parts:
        all_positions += positions
    order = pc.sort_indices(pa.array(all_positions, pa.int64()))
    return pa.concat_arrays([array for _, array in parts]).take(order)


def _refused(written: str, kind: pa.DataType, values: Values) -> pa.Array:
    """Return nulls, the only values of the type `written` that fit.

    Raise ValueError for others.
    """
    if any(value is not None for value in values):
        raise ValueError(
            f"a value of Avro's type {written} does not fit a column of type {type_name(kind)}"
        )
    return pa.nulls(len(values), kind)


def _is_map_of_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and pa.types.is_string(kind.key_type))


def _is_same_type(base: str, kind: pa.DataType) -> bool:
    """Return whether values of a plain type of Avro need no conversion for a column."""
    if base == "boolean":
        return bool(pa.types.is_boolean(kind))
    if base in _INTEGERS:
        return bool(pa.types.is_signed_integer(kind))
    if base in _FLOATS:
        return bool(pa.types.is_float64(kind))
    if base in _TEXTS:
        return bool(pa.types.is_string(kind))
    return base in _BYTES and bool(pa.types.is_binary(kind))


def _integers(kind: pa.DataType, unit: str) -> Convert:
    """Return the conversion of whole numbers; as times they have the unit `unit`."""
    if pa.types.is_signed_integer(kind) or pa.types.is_decimal(kind):
        return partial(pa.array, type=kind)
    if pa.types.is_floating(kind):
        return lambda values: pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_timestamp(kind):
        return partial(_moments, unit=unit, kind=kind)
    if pa.types.is_date(kind):
        return partial(_dates, kind=kind)
    return partial(_refused, "int or long", kind)


def _named_by_connect(node: Node, kind: pa.DataType) -> Convert | None:
    """Return the conversion of a time that Connect or Debezium name in the schema.

    Return None for other types, and for a column of numbers: such a time is a plain number.
    """
    name = node.get("connect.name") if isinstance(node, dict) else None
    is_temporal = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if not isinstance(name, str) or not is_temporal:
        return None
    if name in TIMES_OF_DAY:
        return partial(_refused, name, kind)
    if name in DATES:
        return partial(_dates, kind=kind)
    if name in CONNECT_TIMES:
        return partial(_moments, unit=CONNECT_TIMES[name], kind=kind)
    return None


def _logical(node: Node, logical: str, kind: pa.DataType) -> Convert:
    """Return the conversion of values with a logical type."""
    refused = partial(_refused, logical, kind)
    is_temporal = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if logical in _MOMENTS:
        if is_temporal:
            return partial(_moments, unit=_MOMENTS[logical], kind=kind)
        # A table has no nanoseconds: such a time may fill a column of numbers
        if logical.endswith("nanos") and pa.types.is_int64(kind):
            return partial(pa.array, type=kind)
        return refused
    if logical == "date":
        return partial(_dates, kind=kind) if is_temporal else refused
    if logical in _MICROS:
        if pa.types.is_string(kind):
            return partial(_times_of_day, unit_us=_MICROS[logical])
        return refused
    if logical == "decimal":
        if _holds_decimals(kind):
            return partial(_decimals, scale=node.get("scale", 0), kind=kind)
        return refused
    # The only other logical type is uuid
    return _uuid_conversion(node, kind) or refused


def _uuid_conversion(node: Node, kind: pa.DataType) -> Convert | None:
    """Return the conversion of UUIDs, written as text or in 16 bytes.

    Return None for other columns.
    """
    is_fixed = base_type(node) == "fixed"
    if is_fixed and pa.types.is_binary(kind):
        return partial(pa.array, type=kind)
    if not pa.types.is_string(kind):
        return None
    return partial(_uuids, parse=_uuid_of_bytes if is_fixed else UUID)


def _moments(values: Values, unit: str, kind: pa.DataType) -> pa.Array:
    """Return timestamps or dates of numbers of a unit since 1970."""
    numbers = pa.array(values, pa.int64())
    if pa.types.is_timestamp(kind):
        return numbers.cast(pa.timestamp(unit, kind.tz)).cast(kind)
    days = pc.divide(numbers, _DAY[unit])
    is_within_day = pc.not_equal(pc.multiply(days, _DAY[unit]), numbers)
    if pc.any(is_within_day).as_py():
        raise ValueError("a time within a day does not fit a column of dates")
    return _days(days, kind)


def _dates(values: Values, kind: pa.DataType) -> pa.Array:
    return _days(pa.array(values, pa.int64()), kind)


def _days(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return dates, or timestamps at their beginnings, of days since 1970."""
    dates = numbers.cast(pa.int32()).cast(pa.date32())
    if not pa.types.is_timestamp(kind):
        return dates.cast(kind)
    return dates.cast(pa.timestamp("s", kind.tz)).cast(kind)


def _times_of_day(values: Values, unit_us: int) -> pa.Array:
    texts = [None if value is None else _time_text(value * unit_us) for value in values]
    return pa.array(texts, pa.string())


def _time_text(micros: int) -> str:
    seconds, micros = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return str(time_of_day(hour, minute, second, micros))


def _uuids(values: Values, parse: Callable[[Any], UUID]) -> pa.Array:
    texts = [None if value is None else str(parse(value)) for value in values]
    return pa.array(texts, pa.string())


def _uuid_of_bytes(value: bytes) -> UUID:
    return UUID(bytes=value)


def _floats(kind: pa.DataType) -> Convert:
    if pa.types.is_float64(kind):
        return partial(pa.array, type=kind)
    if pa.types.is_floating(kind):
        return lambda values: _narrowed(pa.array(values, pa.float64()), kind)
    if pa.types.is_signed_integer(kind):
        return lambda values: pa.array(values, pa.float64()).cast(kind)
    return partial(_refused, "float or double", kind)


def _narrowed(doubles: pa.Array, kind: pa.DataType) -> pa.Array:
    narrowed = doubles.cast(kind)
    is_beyond = pc.and_(pc.is_inf(narrowed), pc.is_finite(doubles))
    if pc.any(is_beyond).as_py():
        raise ValueError(f"a number is too large for a column of type {type_name(kind)}")
    return narrowed


def _holds_decimals(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_signed_integer(kind)
    )


def _decimals(values: Values, scale: int, kind: pa.DataType) -> pa.Array:
    """Return decimals of one scale; each value is a whole number in bytes."""
    wholes = [
        None if value is None else int.from_bytes(value, "big", signed=True) for value in values
    ]
    if pa.types.is_decimal(kind) and scale <= _MAX_SCALE:
        return decimals_of_scale(wholes, scale).cast(kind)
    decimals = [None if whole is None else scaled_decimal(whole, scale) for whole in wholes]
    return _of_decimals(decimals, kind)


def _decimals_with_scale(values: Values, kind: pa.DataType) -> pa.Array:
    """Return Debezium's decimals of variable scale: each value has its own scale."""
    if not _holds_decimals(kind):
        return _refused("record", kind, values)
    decimals: list[Decimal | None] = []
    for value in values:
        if value is None:
            decimals.append(None)
            continue
        whole = int.from_bytes(value["value"], "big", signed=True)
        decimals.append(scaled_decimal(whole, value["scale"]))
    return _of_decimals(decimals, kind)


def _of_decimals(values: Sequence[Decimal | None], kind: pa.DataType) -> pa.Array:
    """Return decimals in a column's type: decimal, number or text."""
    if pa.types.is_decimal(kind):
        return pa.array(values, kind)
    if pa.types.is_floating(kind):
        doubles = [None if value is None else float(value) for value in values]
        return _narrowed(_finite(doubles), kind)
    if pa.types.is_signed_integer(kind):
        wholes = [None if value is None else _whole(value) for value in values]
        return pa.array(wholes, kind)
    texts = [None if value is None else format(value, "f") for value in values]
    return pa.array(texts, kind)


def _finite(doubles: Sequence[float | None]) -> pa.Array:
    numbers = pa.array(doubles, pa.float64())
    if pc.any(pc.is_inf(numbers)).as_py():
        raise ValueError("a decimal is too large for a double")
    return numbers


def _whole(value: Decimal) -> int:
    if value != value.to_integral_value():
        raise ValueError(f"{value} is not a whole number")
    return int(value)


def _texts(kind: pa.DataType) -> Convert | None:
    """Return the conversion of texts to a column; None if the column takes none."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return partial(pa.array, type=kind)
    if pa.types.is_timestamp(kind):
        return lambda values: _moments_of_texts(pa.array(values, pa.string()), kind)
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return lambda values: pa.array(values, pa.string()).cast(kind)
    return None


def _moments_of_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the times that texts name.

    A text without a zone is in UTC. A column without a zone refuses texts with one.
    """
    texts = without_extra_digits(texts)
    if kind.tz is None:
        return texts.cast(kind)
    has_zone = pc.match_substring_regex(texts, _WITH_ZONE)
    texts_with_zone = pc.if_else(has_zone, texts, None)
    texts_in_utc = pc.if_else(has_zone, None, texts)
    times_in_utc = texts_in_utc.cast(pa.timestamp(kind.unit)).cast(kind)
    return pc.coalesce(texts_with_zone.cast(kind), times_in_utc)


def _bytes(kind: pa.DataType) -> Convert | None:
    """Return the conversion of bytes to a column; None if the column takes none."""
    is_fit = pa.types.is_binary(kind) or pa.types.is_string(kind)
    if is_fit:
        return partial(pa.array, type=kind)
    return None


def _lists(values: Values, convert: Convert, kind: pa.DataType) -> pa.Array:
    """Return lists; `convert` converts the elements of all lists at once."""
    elements: list[Any] = []
    for value in values:
        if value:
            elements += value
    return pa.ListArray.from_arrays(_offsets(values), convert(elements), type=kind)


def _maps(values: Values, convert: Convert, kind: pa.DataType) -> pa.Array:
    """Return maps; `convert` converts the items of all maps at once."""
    keys: list[str] = []
    items: list[Any] = []
    for value in values:
        if value:
            keys += value
            items += value.values()
    key_array = pa.array(keys, pa.string())
    return pa.MapArray.from_arrays(_offsets(values), key_array, convert(items), type=kind)


def _offsets(values: Values) -> pa.Array:
    """Return the offset of each list's first element, then the end of all.

    The value is null for a null list.
    """
    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += len(value or ())
    return pa.array([*offsets, end], pa.int32())


def _structs(
    values: Values, members: Sequence[tuple[pa.Field, Convert | None]], kind: pa.DataType
) -> pa.Array:
    """Return structs.

    A member is null if the schema lacks its field (`convert` is None).
    """
    columns: list[pa.Array] = []
    for field, convert in members:
        if convert is None:
            columns.append(pa.nulls(len(values), field.type))
            continue
        name = field.name
        columns.append(convert([None if value is None else value[name] for value in values]))
    is_null = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=is_null)
