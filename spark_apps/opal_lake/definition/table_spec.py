"""The definition of a table: its keys, order of time, layout and properties.

It is frozen at creation, except for added columns and for properties.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from opal_lake.checked import count, counts, mapped, text
from opal_lake.definition.conditions.condition import Condition, condition
from opal_lake.definition.conditions.faults import DELETES
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.properties import (
    PROPERTIES,
    check_properties,
    default_of,
    known_properties,
    plain_properties,
)
from opal_lake.definition.schema import (
    Atomic,
    Field,
    Schema,
    arrow_schema,
    atomic_type_name,
    decimal_parts,
    schema_from_json,
    schema_of_arrow,
    schema_to_json,
    type_name,
)
from opal_lake.errors import InvalidInputError

FILE_FORMATS = ("parquet", "orc")
KEY_TYPES = (
    "boolean",
    "byte",
    "short",
    "integer",
    "long",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
)
ORDER_TYPES = ("byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz")
PARTITION_TYPES = KEY_TYPES
# By the argument that names a column: its role in the table, and the types that it may have
ROLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "keys": ("key", KEY_TYPES),
    "delta": ("delta", ORDER_TYPES),
    "tie_break": ("tie-break", ORDER_TYPES),
    "partition_by": ("partition", PARTITION_TYPES),
}
_UNORDERED_ROLES = ("key", "partition")  # hashed or compared as texts: decimals of every size
MAX_KEY_BYTES = 64 * 1024
MAX_ORDER_DIGITS = 18  # as many as 64 bits hold


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """The contract between a table and its writers. It names columns by field ids.

    A table without keys, which has no delta either, is append only: each processed row is visible.
    """

    schema: Schema
    key_ids: tuple[int, ...]
    delta_id: int | None
    tie_break_ids: tuple[int, ...] = ()
    deletes: str | None = None
    partition_ids: tuple[int, ...] = ()
    file_format: str = "parquet"
    properties: Mapping[str, int | str] = field(default_factory=dict)

    def by_id(self, number: int) -> Field:
        """Return the column with a field id."""
        return self.schema.field_of_id(number)

    @property
    def keys(self) -> list[Field]:
        return [self.by_id(number) for number in self.key_ids]

    @property
    def has_keys(self) -> bool:
        """True if rows replace each other: by key, in the order of the delta column."""
        return bool(self.key_ids)

    @property
    def delta(self) -> Field:
        """The delta column; InvalidInputError for a table without keys, which has none."""
        if self.delta_id is None:
            raise without_keys("what needs a delta column, such as an event time,")
        return self.by_id(self.delta_id)

    def require_keys(self, what: str) -> None:
        """Raise InvalidInputError for a table without keys.

        `what` is the subject of the message.
        """
        if not self.has_keys:
            raise without_keys(what)

    @property
    def required(self) -> list[tuple[str, Field]]:
        """The columns that are never null, each with its role."""
        if not self.has_keys:
            return []
        keys = [("key", column) for column in self.keys]
        return [*keys, ("delta", self.delta)]

    @property
    def tie_break(self) -> list[Field]:
        return [self.by_id(number) for number in self.tie_break_ids]

    @property
    def partition_by(self) -> list[Field]:
        return [self.by_id(number) for number in self.partition_ids]

    def integer(self, name: str) -> int:
        """Return a property that is a number, set or default."""
        value = self.properties.get(name, default_of(name))
        assert isinstance(value, int)
        return value

    def word(self, name: str) -> str:
        """Return a property that is a word or a text, set or default."""
        return str(self.properties.get(name, default_of(name)))

    def with_given(self, arguments: Mapping[str, Any]) -> "TableSpec":
        """Return a spec in which the arguments of an operation replace properties.

        Arguments that are None, or that are not properties, change nothing.
        """
        given = {
            name: value
            for name, value in arguments.items()
            if name in PROPERTIES and value is not None
        }
        properties = plain_properties(given)
        check_properties(properties, self.schema)
        return replace(self, properties={**self.properties, **properties})


def without_keys(what: str) -> InvalidInputError:
    """Return the error for what this version does only for tables with keys."""
    return InvalidInputError(
        f"{what} needs a table with keys, and this one has none: it is append only, and this "
        "version can read, check and rewrite it, but not change its rows or look them up by key"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The layout of a new table as a user words it: by column names."""

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
        raise InvalidInputError(
            "a table without keys cannot be created by this version yet; "
            "give keys=[...], the columns of the primary key"
        )
    if layout.file_format not in FILE_FORMATS:
        raise InvalidInputError(
            f"file format {layout.file_format!r} is unknown; use one of {', '.join(FILE_FORMATS)}"
        )
    if layout.deletes is not None:
        # Only parsed: the layout may be compared with an existing table of other columns
        parse(layout.deletes, DELETES)
    properties = plain_properties(layout.properties)
    check_properties(properties, schema)
    return TableSpec(
        schema=schema,
        key_ids=check_role(schema, "keys", layout.keys),
        delta_id=check_role(schema, "delta", [layout.delta])[0],
        tie_break_ids=check_role(schema, "tie_break", layout.tie_break),
        deletes=layout.deletes,
        partition_ids=check_role(schema, "partition_by", layout.partition_by),
        file_format=layout.file_format,
        properties=properties,
    )


def delete_condition(spec: TableSpec) -> Condition | None:
    """Return the table's delete condition; None for a table without deletes.

    The text may come from any writer: InvalidInputError if it is not of the language (I25).
    """
    if spec.deletes is None:
        return None
    return condition(spec.deletes, spec.schema.fields, DELETES)


def refuse_text(what: str, names: object) -> None:
    """Raise InvalidInputError for a text, which would be read as a list of letters."""
    if isinstance(names, str):
        raise InvalidInputError(
            f"{what}: got the text {names!r}; give a list of column names, as [{names!r}]"
        )


def check_role(schema: Schema, argument: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of the columns that an argument names, as `keys`.

    InvalidInputError if a column is unknown, named twice, or of a type that its role forbids.
    """
    role, allowed = ROLES[argument]
    refuse_text(f"{role} columns", names)
    columns = [schema.field(name) for name in names]
    for column in columns:
        if not _fits(column, role, allowed):
            raise InvalidInputError(
                f"{role} column {column.name!r} has type {type_name(column.type)}; "
                f"allowed are {_allowed_types(role, allowed)}: cast it or choose another"
            )
    numbers = tuple(column.id for column in columns)
    if len(set(numbers)) != len(numbers):
        raise InvalidInputError(f"{role} columns {list(names)!r} name a column twice")
    return numbers


def _allowed_types(role: str, allowed: Sequence[str]) -> str:
    names = ", ".join(map(atomic_type_name, allowed))
    if role in _UNORDERED_ROLES:
        return f"{names} and DECIMAL"
    return f"{names} and DECIMAL of at most {MAX_ORDER_DIGITS} digits"


def _fits(column: Field, role: str, allowed: Sequence[str]) -> bool:
    if not isinstance(column.type, Atomic):
        return False
    decimal = decimal_parts(column.type.name)
    if decimal is not None:
        precision, _ = decimal
        return role in _UNORDERED_ROLES or precision <= MAX_ORDER_DIGITS
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
    delta, deletes = data["delta"], data["deletes"]
    spec = TableSpec(
        schema=schema_from_json(data["schema"]),
        key_ids=counts(data["keys"]),
        delta_id=None if delta is None else count(delta),
        tie_break_ids=counts(data["tie_break"]),
        deletes=None if deletes is None else text(deletes),
        partition_ids=counts(data["partition_by"]),
        file_format=text(data["file_format"]),
        properties=known_properties(mapped(data["properties"])),
    )
    _check_roles(spec)
    return spec


def _check_roles(spec: TableSpec) -> None:
    """Raise ValueError for roles that `plan_spec` refuses, whoever has written them."""
    if spec.file_format not in FILE_FORMATS:
        raise ValueError(f"a table of {spec.file_format!r} files is not of this format")
    if spec.has_keys != (spec.delta_id is not None):
        raise ValueError("a table has keys and a delta column, or neither")
    if not spec.has_keys and (spec.tie_break_ids or spec.deletes is not None):
        raise ValueError("a table without keys has tie-breaks or a delete condition")
    ids_by_argument = {
        "keys": spec.key_ids,
        "delta": () if spec.delta_id is None else (spec.delta_id,),
        "tie_break": spec.tie_break_ids,
        "partition_by": spec.partition_ids,
    }
    columns = {column.id: column for column in spec.schema.fields}
    for argument, ids in ids_by_argument.items():
        role, allowed = ROLES[argument]
        known = [columns[number] for number in ids if number in columns]
        has_others = len(known) < len(ids) or len(set(ids)) < len(ids)
        if has_others or not all(_fits(column, role, allowed) for column in known):
            raise ValueError(
                f"the {role} columns {list(ids)} are unknown, named twice, or of types that they "
                "cannot have"
            )


def spec_differences(made: TableSpec, requested: TableSpec) -> list[str]:
    """Return in words how a table differs from a requested specification.

    Of the properties only those count that are requested and not of maintenance. Columns that were
    added later do not count either: whoever knows the table as it was created goes on.
    """
    differences: list[str] = []
    for role, own, other in zip(_ROLES, _roles(made), _roles(requested), strict=True):
        if own != other:
            differences.append(f"{role} is {own!r}, not {other!r}")
    for name, other in requested.properties.items():
        # `opal set` changes properties of maintenance while pipelines still request the first ones
        if PROPERTIES[name].maintenance:
            continue
        own = made.properties.get(name, default_of(name))
        if own != other:
            differences.append(f"properties has {name}={own!r}, not {other!r}")
    return differences + _column_differences(made.schema, requested.schema)


def _column_differences(made: Schema, requested: Schema) -> list[str]:
    own = {column.name: column.type for column in made.fields}
    other = {column.name: column.type for column in requested.fields}
    differences = [f"column {name!r} is missing" for name in other if name not in own]
    for column in made.fields:
        if column.name in other:
            continue
        if not made.is_added(column):
            differences.append(f"column {column.name!r} is in the table only")
    for name, kind in own.items():
        own_type, other_type = type_name(kind), type_name(other.get(name, kind))
        if own_type != other_type:
            differences.append(f"column {name!r} is {own_type}, not {other_type}")
    return differences


def refuse_another_spec(
    uri: str, made: TableSpec, columns: pa.Schema | None, layout: TableLayout
) -> None:
    """Raise InvalidInputError if an existing table differs from the requested one.

    Without columns, those of the table are accepted.
    """
    if columns is None:
        columns = arrow_schema(made.schema)
    requested = plan_spec(columns, layout)
    differences = spec_differences(made, requested)
    if differences:
        raise InvalidInputError(
            f"{uri} exists already, but {'; '.join(differences)}. "
            "Use the existing definition, or choose another path"
        )


_ROLES = ("keys", "delta", "tie_break", "deletes", "partition_by", "file_format")


def _roles(spec: TableSpec) -> tuple[object, ...]:
    """Return what `_ROLES` names, in its order."""
    delta = spec.delta.name if spec.has_keys else None
    return (
        [field.name for field in spec.keys],
        delta,
        [field.name for field in spec.tie_break],
        spec.deletes,
        [field.name for field in spec.partition_by],
        spec.file_format,
    )
