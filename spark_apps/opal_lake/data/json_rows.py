"""Rows of a table from JSON texts, with only values that every JSON reader reads equally.

A source may read more values, by options that are not stored with a rejected row. No value is
guessed: a row whose values are not certain stays rejected.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, DecimalException
from math import isinf
from typing import Any

from opal_lake.definition.conditions.kinds import INTEGER_BITS, MAX_PRECISION, decimal_kind, holds
from opal_lake.definition.ordering import from_order
from opal_lake.definition.schema import (
    Array,
    Atomic,
    DataType,
    Field,
    Map,
    Struct,
    decimal_parts,
    type_name,
)
from opal_lake.errors import InvalidInputError

_MICROSECONDS = {
    "s": Decimal(1_000_000),
    "ms": Decimal(1_000),
    "us": Decimal(1),
    "ns": Decimal("0.001"),
}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(?P<zone>Z|[+-]\d{2}:\d{2})?")
_GREATEST_FLOAT = 3.4028234663852886e38


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm:
    """The form of a source's rejected rows, each of which is a JSON object.

    `time_unit` is the unit of times that are numbers. A source with a unit reads times without a
    zone as UTC. Within structs and arrays the unit is None, so that such times are refused.
    """

    time_unit: str | None = None

    def __post_init__(self) -> None:
        """Refuse a unit that no source has."""
        if self.time_unit is not None and self.time_unit not in _MICROSECONDS:
            units = ", ".join(_MICROSECONDS)
            raise ValueError(f"time_unit must be one of {units}, got {self.time_unit!r}")


def row_of_json(text: str, fields: Sequence[Field], form: JsonForm) -> dict[str, Any]:
    """Return the values of the columns; raise ValueError if they are not certain."""
    try:
        row = json.loads(
            text, object_pairs_hook=_members, parse_float=Decimal, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"the row is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("the row's JSON nests too deep") from error
    except DecimalException as error:
        raise ValueError("the row has a number that is too large") from error
    if not isinstance(row, dict):
        raise ValueError("the row is not a JSON object")
    return _values(row, fields, "", form)


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("the row's JSON has a key twice")
    return members


def _constant(name: str) -> Any:
    raise ValueError(f"the row's JSON has {name}, which is not a JSON value")


def _values(
    row: Mapping[str, Any], fields: Sequence[Field], parent: str, form: JsonForm
) -> dict[str, Any]:
    """Return the values of fields by name; raise ValueError for a key of no field.

    `parent` is the path of the struct that holds the fields, with a dot; empty for the row.
    """
    known = {field.name for field in fields}
    unknown = next((name for name in row if name not in known), None)
    if unknown is not None:
        if parent:
            raise ValueError(f"unknown key {unknown!r} in column {parent.removesuffix('.')!r}")
        raise ValueError(
            f"unknown key {unknown!r}; add a column {unknown!r} to the table, or drop the row"
        )
    values: dict[str, Any] = {}
    for field in fields:
        path = f"{parent}{field.name}"
        values[field.name] = _value(row.get(field.name), field.type, path, form)
    return values


def _value(value: Any, kind: DataType, path: str, form: JsonForm) -> Any:
    """Return a JSON value as a value of a type; raise ValueError if it is not certain."""
    if value is None:
        return None
    match kind:
        case Struct(fields=fields) if isinstance(value, dict):
            # Within values, streams do not read numbers as times.
            return _values(value, fields, f"{path}.", JsonForm())
        case Array(element=element) if isinstance(value, list):
            name = f"{path}.element"
            return [_value(member, element.type, name, JsonForm()) for member in value]
        case Atomic():
            return _atomic(value, kind, path, form)
        case Map():
            raise ValueError(f"column {path!r} is {type_name(kind)}, which is not read from JSON")
    raise _misfit(path, kind)


def _atomic(value: Any, kind: Atomic, path: str, form: JsonForm) -> Any:
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    precision_and_scale = decimal_parts(kind.name)
    if precision_and_scale and is_number:
        return _decimal(Decimal(value), precision_and_scale, path, kind)
    if kind.name in INTEGER_BITS and is_number and isinstance(value, int):
        limit = 1 << (INTEGER_BITS[kind.name] - 1)
        if -limit <= value < limit:
            return value
    if kind.name in ("float", "double") and is_number:
        return _binary_fraction(value, path, kind)
    if kind.name == "boolean" and isinstance(value, bool):
        return value
    if kind.name == "string" and isinstance(value, str):
        return _text(value, path)
    if kind.name == "date":
        return _date(value, path, kind, form)
    if kind.name in ("timestamp", "timestamp_ntz"):
        return _moment(value, path, kind, form)
    raise _misfit(path, kind)


def _misfit(path: str, kind: DataType) -> ValueError:
    return ValueError(f"column {path!r} is not a valid {type_name(kind)}")


def _decimal(
    value: Decimal, precision_and_scale: tuple[int, int], path: str, kind: Atomic
) -> Decimal:
    digits = value.as_tuple().digits
    # Checked first: exact arithmetic with very many digits takes long
    if len(digits) > 2 * MAX_PRECISION:
        raise _misfit(path, kind)
    if not holds(decimal_kind(*precision_and_scale), value):
        raise _misfit(path, kind)
    return value


def _binary_fraction(value: int | Decimal, path: str, kind: Atomic) -> float:
    try:
        number = float(value)
    except OverflowError as error:
        raise _misfit(path, kind) from error
    is_beyond = kind.name == "float" and abs(number) > _GREATEST_FLOAT
    if isinf(number) or is_beyond:
        raise _misfit(path, kind)
    return number


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"column {path!r} has half of a surrogate pair") from error
    return value


def _date(value: Any, path: str, kind: Atomic, form: JsonForm) -> date:
    is_day_number = type(value) is int and form.time_unit is not None
    try:
        if is_day_number:
            return date(1970, 1, 1) + timedelta(days=value)
        if isinstance(value, str) and _DATE.fullmatch(value):
            return date.fromisoformat(value)
    except (ValueError, OverflowError) as error:
        raise _misfit(path, kind) from error
    raise _misfit(path, kind)


def _moment(value: Any, path: str, kind: Atomic, form: JsonForm) -> datetime:
    if isinstance(value, str):
        return _moment_of_text(value, path, kind, form)
    if type(value) is not int or kind.name != "timestamp":
        raise _misfit(path, kind)
    if form.time_unit is None:
        raise ValueError(f"column {path!r} is a number whose unit of time is unknown")
    microseconds = value * _MICROSECONDS[form.time_unit]
    if microseconds != int(microseconds):
        raise ValueError(
            f"column {path!r} is {value} {form.time_unit}, which is finer than a microsecond"
        )
    try:
        moment = from_order(int(microseconds), kind)
    except (InvalidInputError, OverflowError) as error:
        raise _misfit(path, kind) from error
    assert isinstance(moment, datetime)
    return moment


def _moment_of_text(text: str, path: str, kind: Atomic, form: JsonForm) -> datetime:
    match = _TIME.fullmatch(text)
    if match is None:
        raise _misfit(path, kind)
    has_zone = match["zone"] is not None
    if has_zone and kind.name == "timestamp_ntz":
        raise _misfit(path, kind)
    if not has_zone and kind.name == "timestamp" and form.time_unit is None:
        raise ValueError(f"column {path!r} is a time whose zone is unknown")
    try:
        moment = datetime.fromisoformat(text)
        if has_zone:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _misfit(path, kind) from error
    return moment if kind.name == "timestamp_ntz" else moment.replace(tzinfo=UTC)
