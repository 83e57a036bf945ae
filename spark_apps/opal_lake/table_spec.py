"""What a table is: its keys, its order of time, its layout and its properties. Frozen at creation, but for columns and properties."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from opal_lake.errors import InvalidInputError
from opal_lake.properties import PROPERTIES, check_properties, default_of, plain_properties
from opal_lake.schema import (
    Atomic,
    DataType,
    Field,
    Schema,
    arrow_schema,
    decimal_parts,
    schema_from_json,
    schema_of_arrow,
    schema_to_json,
    type_to_json,
)

FILE_FORMATS = ("parquet", "orc")
KEY_TYPES = ("boolean", "byte", "short", "integer", "long", "string", "binary", "date", "timestamp", "timestamp_ntz")
ORDER_TYPES = ("byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz")
PARTITION_TYPES = KEY_TYPES
MAX_KEY_BYTES = 64 * 1024
MAX_ORDER_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """The contract between a table and whoever writes to it. Columns are named by their field ids."""

    schema: Schema
    key_ids: tuple[int, ...]
    delta_id: int
    tie_break_ids: tuple[int, ...] = ()
    deletes: str | None = None
    partition_ids: tuple[int, ...] = ()
    file_format: str = "parquet"
    properties: Mapping[str, int | str] = field(default_factory=dict)

    def by_id(self, number: int) -> Field:
        return next(column for column in self.schema.fields if column.id == number)

    @property
    def keys(self) -> list[Field]:
        return [self.by_id(number) for number in self.key_ids]

    @property
    def delta(self) -> Field:
        return self.by_id(self.delta_id)

    @property
    def tie_break(self) -> list[Field]:
        return [self.by_id(number) for number in self.tie_break_ids]

    @property
    def partition_by(self) -> list[Field]:
        return [self.by_id(number) for number in self.partition_ids]

    def integer(self, name: str) -> int:
        """A property that is a number, set or default."""
        value = self.properties.get(name, default_of(name))
        assert isinstance(value, int)
        return value

    def word(self, name: str) -> str:
        """A property that is a word or a text, set or default."""
        return str(self.properties.get(name, default_of(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """How a user words a new table: by column names."""

    keys: Sequence[str]
    delta: str
    tie_break: Sequence[str] = ()
    deletes: str | None = None
    partition_by: Sequence[str] = ()
    file_format: str = "parquet"
    properties: Mapping[str, int | str] = field(default_factory=dict)


def plan_spec(arrow: pa.Schema, layout: TableLayout) -> TableSpec:
    """Check a new table's columns and layout and give out the field ids."""
    schema = schema_of_arrow(arrow)
    if not layout.keys:
        raise InvalidInputError("a table needs at least one key column: keys=[...]")
    if layout.file_format not in FILE_FORMATS:
        raise InvalidInputError(f"file format {layout.file_format!r} is unknown; use one of {', '.join(FILE_FORMATS)}")
    properties = plain_properties(layout.properties)
    check_properties(properties, schema)
    return TableSpec(
        schema=schema,
        key_ids=_ids(schema, "key", layout.keys, KEY_TYPES),
        delta_id=_ids(schema, "delta", [layout.delta], ORDER_TYPES)[0],
        tie_break_ids=_ids(schema, "tie-break", layout.tie_break, ORDER_TYPES),
        deletes=layout.deletes,
        partition_ids=_ids(schema, "partition", layout.partition_by, PARTITION_TYPES),
        file_format=layout.file_format,
        properties=properties,
    )


def refuse_text(what: str, names: object) -> None:
    """A text is a sequence of its letters, and nobody means those."""
    if isinstance(names, str):
        raise InvalidInputError(f"{what}: got the text {names!r}; give a list of column names, as [{names!r}]")


def _ids(schema: Schema, role: str, names: Sequence[str], allowed: Sequence[str]) -> tuple[int, ...]:
    refuse_text(f"{role} columns", names)
    columns = [schema.field(name) for name in names]
    for column in columns:
        if not _fits(column, role, allowed):
            kind = column.type.name if isinstance(column.type, Atomic) else "nested"
            digits = "" if role == "key" or role == "partition" else f" of at most {MAX_ORDER_DIGITS} digits"
            types = f"{', '.join(allowed)} and decimals{digits}"
            raise InvalidInputError(f"{role} column {column.name!r} has type {kind}; allowed are {types}: cast it or choose another")
    numbers = tuple(column.id for column in columns)
    if len(set(numbers)) != len(numbers):
        raise InvalidInputError(f"{role} columns {list(names)!r} name a column twice")
    return numbers


def _fits(column: Field, role: str, allowed: Sequence[str]) -> bool:
    if not isinstance(column.type, Atomic):
        return False
    if parts := decimal_parts(column.type.name):
        return role in ("key", "partition") or parts[0] <= MAX_ORDER_DIGITS
    return column.type.name in allowed


def spec_to_json(spec: TableSpec) -> dict[str, Any]:
    return {
        "schema": schema_to_json(spec.schema),
        "keys": list(spec.key_ids),
        "delta": spec.delta_id,
        "tie_break": list(spec.tie_break_ids),
        "deletes": spec.deletes,
        "partition_by": list(spec.partition_ids),
        "file_format": spec.file_format,
        "properties": dict(spec.properties),
    }


def spec_from_json(data: dict[str, Any]) -> TableSpec:
    return TableSpec(
        schema=schema_from_json(data["schema"]),
        key_ids=tuple(data["keys"]),
        delta_id=data["delta"],
        tie_break_ids=tuple(data["tie_break"]),
        deletes=data["deletes"],
        partition_ids=tuple(data["partition_by"]),
        file_format=data["file_format"],
        properties=data["properties"],
    )


def spec_differences(made: TableSpec, wanted: TableSpec) -> list[str]:
    """What another specification says otherwise, in words. Of properties only those that it names and that maintenance does not go by."""
    roles = zip(_ROLES, _roles(made), _roles(wanted), strict=True)
    found = [f"{role} is {one!r}, not {other!r}" for role, one, other in roles if one != other]
    found += [f"properties has {name}={one!r}, not {other!r}" for name, one, other in _other_properties(made, wanted)]
    ours, theirs = ({field.name: field.type for field in spec.schema.fields} for spec in (made, wanted))
    found += [f"column {name!r} is missing" for name in theirs if name not in ours]
    found += [f"column {name!r} is there too" for name in ours if name not in theirs]
    both = [name for name in ours if name in theirs]
    names = {name: (_type_text(ours[name]), _type_text(theirs[name])) for name in both}
    return found + [f"column {name!r} is {one}, not {other}" for name, (one, other) in names.items() if one != other]


def refuse_another_spec(uri: str, made: TableSpec, columns: pa.Schema | None, layout: TableLayout) -> None:
    """Raises when a table that is there is not the one that is wanted. Without columns its own are as good as any."""
    wanted = plan_spec(arrow_schema(made.schema) if columns is None else columns, layout)
    if differences := spec_differences(made, wanted):
        said = "; ".join(differences)
        raise InvalidInputError(f"{uri} is there, but was made otherwise: {said}. Give what it has, or choose another path")


def _other_properties(made: TableSpec, wanted: TableSpec) -> list[tuple[str, int | str, int | str]]:
    """Properties that are asked for and stand otherwise. What nobody asks for may be as it is, and so may what maintenance goes by:
    `opal set` changes both over the years, while whoever names the table goes on saying how it was made.
    """
    asked = ((name, value) for name, value in wanted.properties.items() if not PROPERTIES[name].maintenance)
    both = ((name, made.properties.get(name, default_of(name)), value) for name, value in asked)
    return [(name, one, other) for name, one, other in both if one != other]


_ROLES = ("keys", "delta", "tie_break", "deletes", "partition_by", "file_format")


def _roles(spec: TableSpec) -> tuple[object, ...]:
    named = [[field.name for field in fields] for fields in (spec.keys, spec.tie_break, spec.partition_by)]
    return named[0], spec.delta.name, named[1], spec.deletes, named[2], spec.file_format


def _type_text(kind: DataType) -> str:
    return kind.name if isinstance(kind, Atomic) else str(type_to_json(kind))
