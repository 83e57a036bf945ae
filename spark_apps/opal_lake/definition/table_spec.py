"""What a table is: its keys, its order of time, its layout and its properties. Frozen at creation, but for columns and properties."""

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
# What a column is for a table by the argument that names it, and which types it may have then
ROLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "keys": ("key", KEY_TYPES),
    "delta": ("delta", ORDER_TYPES),
    "tie_break": ("tie-break", ORDER_TYPES),
    "partition_by": ("partition", PARTITION_TYPES),
}
MAX_KEY_BYTES = 64 * 1024
MAX_ORDER_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """The contract between a table and its writers. Columns are identified by their field ids.

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
        return self.schema.field_of_id(number)

    @property
    def keys(self) -> list[Field]:
        return [self.by_id(number) for number in self.key_ids]

    @property
    def has_keys(self) -> bool:
        """Return whether rows replace each other: by key, in the order of the delta column."""
        return bool(self.key_ids)

    @property
    def delta(self) -> Field:
        """The delta column; InvalidInputError for a table without keys, which has none."""
        if self.delta_id is None:
            raise without_keys("what needs a delta column, such as an event time,")
        return self.by_id(self.delta_id)

    def require_keys(self, what: str) -> None:
        """Raise InvalidInputError for a table without keys; `what` is the subject of the message."""
        if not self.has_keys:
            raise without_keys(what)

    @property
    def required(self) -> list[tuple[str, Field]]:
        """Return the columns that are null in no row, each with its role."""
        keys = [("key", column) for column in self.keys]
        return [*keys, ("delta", self.delta)] if self.has_keys else []

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

    def with_given(self, arguments: Mapping[str, Any]) -> "TableSpec":
        """Return a spec with the arguments of an operation in the place of its properties.

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
        raise InvalidInputError(
            "a table without keys cannot be created by this version yet; "
            "give keys=[...], the columns of the primary key"
        )
    if layout.file_format not in FILE_FORMATS:
        raise InvalidInputError(
            f"file format {layout.file_format!r} is unknown; use one of {', '.join(FILE_FORMATS)}"
        )
    if layout.deletes is not None:
        parse(layout.deletes, DELETES)  # the columns of a table that exists may be others
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

    The text may come from any writer: InvalidInputError if it is not of the language.
    """
    return None if spec.deletes is None else condition(spec.deletes, spec.schema.fields, DELETES)


def refuse_text(what: str, names: object) -> None:
    """A string would be read as a list of letters."""
    if isinstance(names, str):
        raise InvalidInputError(
            f"{what}: got the text {names!r}; give a list of column names, as [{names!r}]"
        )


def check_role(schema: Schema, argument: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of the columns that an argument names, as `keys`; their types must allow it."""
    role, allowed = ROLES[argument]
    refuse_text(f"{role} columns", names)
    columns = [schema.field(name) for name in names]
    for column in columns:
        if not _fits(column, role, allowed):
            digits = (
                ""
                if role == "key" or role == "partition"
                else f" of at most {MAX_ORDER_DIGITS} digits"
            )
            types = f"{', '.join(map(atomic_type_name, allowed))} and DECIMAL{digits}"
            raise InvalidInputError(
                f"{role} column {column.name!r} has type {type_name(column.type)}; "
                f"allowed are {types}: cast it or choose another"
            )
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
    deletes = data["deletes"]
    spec = TableSpec(
        schema=schema_from_json(data["schema"]),
        key_ids=counts(data["keys"]),
        delta_id=None if data["delta"] is None else count(data["delta"]),
        tie_break_ids=counts(data["tie_break"]),
        deletes=None if deletes is None else text(deletes),
        partition_ids=counts(data["partition_by"]),
        file_format=text(data["file_format"]),
        properties=known_properties(mapped(data["properties"])),
    )
    _check_roles(spec)
    return spec


def _check_roles(spec: TableSpec) -> None:
    """The checks of `plan_spec`, on a table that any writer may have written."""
    if spec.file_format not in FILE_FORMATS:
        raise ValueError(f"a table of {spec.file_format!r} files is none of this format")
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
        if len(set(ids)) < len(ids) or not all(
            number in columns and _fits(columns[number], role, allowed) for number in ids
        ):
            raise ValueError(
                f"the {role} columns {list(ids)} are no columns, named twice, or of types that they cannot have"
            )


def spec_differences(made: TableSpec, requested: TableSpec) -> list[str]:
    """The differences from a requested specification, in words. Only properties that are requested and not of maintenance count."""
    roles = zip(_ROLES, _roles(made), _roles(requested), strict=True)
    differences = [
        f"{role} is {ours_value!r}, not {requested_value!r}"
        for role, ours_value, requested_value in roles
        if ours_value != requested_value
    ]
    differences += [
        f"properties has {name}={ours_value!r}, not {requested_value!r}"
        for name, ours_value, requested_value in _other_properties(made, requested)
    ]
    ours, theirs = (
        {field.name: field.type for field in spec.schema.fields} for spec in (made, requested)
    )
    differences += [f"column {name!r} is missing" for name in theirs if name not in ours]
    differences += [
        f"column {field.name!r} is in the table only"
        for field in made.schema.fields
        if field.name not in theirs
        and not made.schema.is_added(field)  # who knows the table as it was made goes on
    ]
    both = [name for name in ours if name in theirs]
    names = {name: (type_name(ours[name]), type_name(theirs[name])) for name in both}
    return differences + [
        f"column {name!r} is {ours_value}, not {requested_value}"
        for name, (ours_value, requested_value) in names.items()
        if ours_value != requested_value
    ]


def refuse_another_spec(
    uri: str, made: TableSpec, columns: pa.Schema | None, layout: TableLayout
) -> None:
    """Raises if an existing table differs from the requested one. Without columns, its own are accepted."""
    requested = plan_spec(arrow_schema(made.schema) if columns is None else columns, layout)
    if differences := spec_differences(made, requested):
        text = "; ".join(differences)
        raise InvalidInputError(
            f"{uri} exists already, but {text}. Use the existing definition, or choose another path"
        )


def _other_properties(
    made: TableSpec, requested: TableSpec
) -> list[tuple[str, int | str, int | str]]:
    """Requested properties that differ. Others, and those of maintenance, may differ: `opal set` changes them over the years, while
    pipelines go on requesting the table as it was created.
    """
    asked = (
        (name, value)
        for name, value in requested.properties.items()
        if not PROPERTIES[name].maintenance
    )
    both = ((name, made.properties.get(name, default_of(name)), value) for name, value in asked)
    return [(name, own, asked_value) for name, own, asked_value in both if own != asked_value]


_ROLES = ("keys", "delta", "tie_break", "deletes", "partition_by", "file_format")


def _roles(spec: TableSpec) -> tuple[object, ...]:
    named = [
        [field.name for field in fields]
        for fields in (spec.keys, spec.tie_break, spec.partition_by)
    ]
    delta = spec.delta.name if spec.has_keys else None
    return named[0], delta, named[1], spec.deletes, named[2], spec.file_format
