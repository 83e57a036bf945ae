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
    Schema,
    Struct,
    decimal_parts,
    default_array,
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

    - `time_unit` is the unit of times that are numbers. A source with a unit reads times without a
      zone as UTC. Within structs and arrays the unit is None, so that such times are refused.
    - `schema` has the columns of the table when the rows were rejected: the keys of the objects are
      their names. None stands for the columns of the ingest that rejects the rows.
    """

    time_unit: str | None = None
    schema: Schema | None = None

    def __post_init__(self) -> None:
        """Refuse a unit that no source has."""
        if self.time_unit is not None and self.time_unit not in _MICROSECONDS:
            units = ", ".join(_MICROSECONDS)
            raise ValueError(f"time_unit must be one of {units}, got {self.time_unit!r}")


def row_of_json(text: str, schema: Schema, form: JsonForm) -> dict[str, Any]:
    """Return the values of the columns; raise ValueError if they are not certain.

    A column without a key has its default, or is null.
    """
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
    earlier = form.schema or schema
    _refuse_unknown(row, schema, earlier)
    return _values(row, schema.fields, earlier.fields, "", form)


def _refuse_unknown(row: Mapping[str, Any], schema: Schema, earlier: Schema) -> None:
    """Raise ValueError for a key that names no column, neither now nor before."""
    known = {*schema.names, *earlier.names}
    for key in row:
        if key in known:
            continue
        if schema.had(key):
            raise ValueError(
                f"unknown key {key!r}{schema.past_of(key)}; ingest the row again from its source, "
                "with the names of now"
            )
        raise ValueError(f"unknown key {key!r}; add a column {key!r} to the table, or drop the row")


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("the row's JSON has a key twice")
    return members


def _constant(name: str) -> Any:
    raise ValueError(f"the row's JSON has {name}, which is not a JSON value")


def _values(
    row: Mapping[str, Any],
    fields: Sequence[Field],
    earlier: Sequence[Field],
    parent: str,
    form: JsonForm,
) -> dict[str, Any]:
    """Return the values of fields by name; raise ValueError for a key of no field.

    `earlier` are the fields when the row was rejected. `parent` is the path of the struct that
    holds the fields, with a dot; empty for the row.
    """
    keys = _keys_of_fields(row, fields, earlier, parent)
    earlier_types = {field.id: field.type for field in earlier}
    values: dict[str, Any] = {}
    for field in fields:
        key = keys.get(field.id)
        if key is None and field.write is not None:
            values[field.name] = default_array(field, field.write, 1)[0].as_py()
            continue
        value = None if key is None else row[key]
        before = earlier_types.get(field.id, field.type)
        values[field.name] = _value(value, field.type, before, f"{parent}{field.name}", form)
    return values


def _keys_of_fields(
    row: Mapping[str, Any], fields: Sequence[Field], earlier: Sequence[Field], parent: str
) -> dict[int, str]:
    """Return the key of each field that the row has, by field id.

    A key names the field that had this name when the row was rejected. If none had, it names the
    field that has it now: the field may have been added for such rows, or renamed.
    """
    by_id = {field.id: field for field in fields}
    by_name = {field.name: field for field in fields}
    earlier_by_name = {field.name: field for field in earlier}
    where = f" in column {parent.removesuffix('.')!r}" if parent else ""
    keys: dict[int, str] = {}
    for key in row:
        before = earlier_by_name.get(key)
        field = by_name.get(key) if before is None else by_id.get(before.id)
        if field is None and before is None:
            raise ValueError(f"unknown key {key!r}{where}")
        if field is None:
            # The column was dropped. Rows that are in the table have lost its values, too
            if key in by_name:
                raise ValueError(
                    f"key {key!r}{where} has two meanings: the column that had this name when the "
                    "row was rejected was dropped, and another one has it now; ingest the row "
                    "again from its source"
                )
            continue
        if field.id in keys:
            raise ValueError(
                f"keys {keys[field.id]!r} and {key!r}{where} both name column {field.name!r} now; "
                "ingest the row again from its source"
            )
        keys[field.id] = key
    return keys


def _value(value: Any, kind: DataType, earlier: DataType, path: str, form: JsonForm) -> Any:
    """Return a JSON value as a value of a type; raise ValueError if it is not certain.

    `earlier` is the type that the column had when the row was rejected.
    """
    if value is None:
        return None
    match kind:
        case Struct(fields=fields) if isinstance(value, dict):
            members = earlier.fields if isinstance(earlier, Struct) else ()
            # Within values, streams do not read numbers as times.
            return _values(value, fields, members, f"{path}.", JsonForm())
        case Array(element=element) if isinstance(value, list):
            name = f"{path}.element"
            before = earlier.element.type if isinstance(earlier, Array) else element.type
            return [_value(member, element.type, before, name, JsonForm()) for member in value]
        case Atomic():
            return _atomic_or_earlier(value, kind, earlier, path, form)
        case Map():
            raise ValueError(f"column {path!r} is {type_name(kind)}, which is not read from JSON")
    raise _misfit(path, kind)


def _atomic_or_earlier(
    value: Any, kind: Atomic, earlier: DataType, path: str, form: JsonForm
) -> Any:
    """Return a value of a type, or of the narrower type that the column had before."""
    is_former_day = kind.name == "timestamp_ntz" and earlier == Atomic(name="date")
    if not is_former_day:
        # Every other wider type reads what a narrower one reads
        return _atomic(value, kind, path, form)
    try:
        return _atomic(value, kind, path, form)
    except ValueError:
        day = _date(value, path, Atomic(name="date"), form)
        return datetime(day.year, day.month, day.day)


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
