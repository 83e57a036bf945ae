"""The definition of a table: its keys, order of time, layout and properties.

Keys, order of time and layout are frozen at creation. Columns, constraints and properties change.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from opal_lake.checked import count, counts, mapped, text
from opal_lake.definition.conditions.condition import Condition, condition
from opal_lake.definition.conditions.faults import DELETES
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.constraints import (
    MAX_CONSTRAINTS,
    plan_constraints,
    use_of,
    use_of_generated,
)
from opal_lake.definition.generated import GeneratedColumn, generated_columns
from opal_lake.definition.properties import (
    PROPERTIES,
    check_properties,
    default_of,
    known_properties,
    plain_properties,
)
from opal_lake.definition.schema import (
    COMMIT,
    Atomic,
    Field,
    Schema,
    atomic_type_name,
    decimal_parts,
    schema_from_json,
    schema_of_arrow,
    schema_to_json,
    type_name,
    with_commit_column,
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
# For each argument that names columns: their role in the table, and the types that they may have
ROLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "keys": ("key", KEY_TYPES),
    "delta": ("delta", ORDER_TYPES),
    "tie_break": ("tie-break", ORDER_TYPES),
    "partition_by": ("partition", PARTITION_TYPES),
}
# Columns of these roles are hashed or compared as texts, so their decimals may have any size
_UNORDERED_ROLES = ("key", "partition")
NO_DELETES = "false"  # the delete condition of a table whose deletes no source row makes
MAX_KEY_BYTES = 64 * 1024
MAX_ORDER_DIGITS = 18  # of a decimal whose unscaled value fits 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """The definition of a table, which names columns by field ids.

    A table without keys has no delta column either, and is append only: each processed row is
    visible. `not_null_ids` lacks keys and delta, which are never null anyway. `constraints` has the
    text of each CHECK by its name.
    """

    schema: Schema
    key_ids: tuple[int, ...]
    delta_id: int | None
    tie_break_ids: tuple[int, ...] = ()
    deletes: str | None = None
    partition_ids: tuple[int, ...] = ()
    file_format: str = "parquet"
    properties: Mapping[str, int | str] = field(default_factory=dict)
    not_null_ids: tuple[int, ...] = ()
    constraints: Mapping[str, str] = field(default_factory=dict)

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
        """The delta column. Raises InvalidInputError for a table without keys."""
        if self.delta_id is None:
            raise without_keys("an operation that uses the delta column")
        return self.by_id(self.delta_id)

    @property
    def orders_by_commit(self) -> bool:
        """True if the delta is the built-in column, which each job fills with one time."""
        return self.schema.commit_id is not None

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
    def not_null(self) -> list[Field]:
        """The columns that are NOT NULL, besides keys and delta."""
        return [self.by_id(number) for number in self.not_null_ids]

    @property
    def checks(self) -> list[tuple[str, Condition]]:
        """The name and the condition of each constraint.

        Raises InvalidInputError for a text that is not a condition on the columns.
        """
        fields = self.schema.fields
        return [
            (name, condition(text, fields, use_of(name))) for name, text in self.constraints.items()
        ]

    @property
    def generated(self) -> list[GeneratedColumn]:
        """The generated columns.

        Raises InvalidInputError for one that cannot be computed, or that a source has to bring.
        """
        columns = generated_columns(self.schema)
        if not columns:
            return columns
        # Deletes and the order of rows are decided before the columns are computed
        ordering = [*[required for _, required in self.required], *self.tie_break]
        deletes = delete_condition(self)
        for column in columns:
            name = column.field.name
            if column.field in ordering:
                raise InvalidInputError(
                    f"column {name!r} is a key, the delta or a tie-break, which the source has to "
                    "bring; generate another column"
                )
            if deletes is not None and name in deletes.column_names:
                raise InvalidInputError(
                    f"the delete condition {deletes.text!r} reads the generated column {name!r}; "
                    f"write it with the columns of {column.expression.text!r} instead"
                )
        return columns

    @property
    def tie_break(self) -> list[Field]:
        return [self.by_id(number) for number in self.tie_break_ids]

    @property
    def key_types(self) -> list[Atomic]:
        """The types of the key columns."""
        return [field.type for field in self.keys if isinstance(field.type, Atomic)]

    @property
    def ordering(self) -> list[Field]:
        """The columns that a row needs for its place in the order of its key."""
        return [*dict.fromkeys([*self.keys, self.delta, *self.tie_break])]

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
        known = {name: value for name, value in arguments.items() if name in PROPERTIES}
        given = {name: value for name, value in known.items() if value is not None}
        properties = plain_properties(given)
        check_properties(properties, self.schema)
        return replace(self, properties={**self.properties, **properties})


def without_keys(what: str) -> InvalidInputError:
    """Return the error for an operation that needs a table with keys.

    `what` names the operation, the subject of the message.
    """
    return InvalidInputError(
        f"{what} needs a table with keys, and this table has none. This version can read, check "
        "and rewrite such a table, but it cannot change its rows or look them up by key"
    )


def refuse_commit_column(spec: TableSpec, names: Iterable[str]) -> None:
    """Raise InvalidInputError for a source with the column that the table fills."""
    if spec.orders_by_commit and any(name.casefold() == COMMIT for name in names):
        raise source_has_commit()


def source_has_commit() -> InvalidInputError:
    """Return the error for a source that brings values of the built-in column."""
    return InvalidInputError(
        f"the source has a column {COMMIT!r}, which the table fills itself with the time of the "
        "job; leave the column out"
    )


def stream_by_commit() -> InvalidInputError:
    """Return the error for a stream into a table that orders rows by their commits."""
    return InvalidInputError(
        f"the table orders rows by the time of their jobs (delta={COMMIT!r}), and a stream has an "
        "order of its own; write the stream into a table whose delta is a column of the messages"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The layout of a new table, which names columns by their names."""

    keys: Sequence[str]
    delta: str
    tie_break: Sequence[str] = ()
    deletes: str | None = None
    partition_by: Sequence[str] = ()
    file_format: str = "parquet"
    properties: Mapping[str, int | str] = field(default_factory=dict)
    not_null: Sequence[str] = ()
    constraints: Mapping[str, str] = field(default_factory=dict)
    generated: Mapping[str, str] = field(default_factory=dict)


def plan_spec(arrow: pa.Schema, layout: TableLayout) -> TableSpec:
    """Return a new table's spec; raise InvalidInputError if the layout is not valid."""
    schema = schema_of_arrow(arrow)
    if layout.delta == COMMIT:
        schema = with_commit_column(schema)
        _check_commit_layout(layout)
    schema = _with_generated(schema, layout.generated)
    if not layout.keys:
        raise InvalidInputError(
            "this version cannot create a table without keys; "
            "give keys=[...], the columns of the primary key"
        )
    if layout.file_format not in FILE_FORMATS:
        raise InvalidInputError(
            f"file format {layout.file_format!r} is unknown; use one of {', '.join(FILE_FORMATS)}"
        )
    if layout.deletes is not None:
        # Not bound to columns: the layout may be compared with an existing table of other columns
        parse(layout.deletes, DELETES)
    constraints = plan_constraints(layout.constraints)
    properties = plain_properties(layout.properties)
    check_properties(properties, schema)
    key_ids = check_role(schema, "keys", layout.keys)
    delta_id = check_role(schema, "delta", [layout.delta])[0]
    return TableSpec(
        schema=schema,
        key_ids=key_ids,
        delta_id=delta_id,
        tie_break_ids=check_role(schema, "tie_break", layout.tie_break),
        deletes=layout.deletes,
        partition_ids=check_role(schema, "partition_by", layout.partition_by),
        file_format=layout.file_format,
        properties=properties,
        not_null_ids=_not_null_ids(schema, layout.not_null, {*key_ids, delta_id}),
        constraints=constraints,
    )


def _with_generated(schema: Schema, generated: Mapping[str, str]) -> Schema:
    """Return the schema with expressions of generated columns, by their names."""
    fields = list(schema.fields)
    for name, written in generated.items():
        # Not bound to columns, as the delete condition
        parse(written, use_of_generated(name))
        column = schema.field(name)
        fields[fields.index(column)] = replace(column, generated=written)
    return replace(schema, fields=tuple(fields))


def _check_commit_layout(layout: TableLayout) -> None:
    """Raise InvalidInputError for roles that the built-in delta excludes."""
    if layout.tie_break:
        raise InvalidInputError(
            f"tie_break={list(layout.tie_break)!r} cannot be with delta={COMMIT!r}: all rows of a "
            "job have one delta; leave out tie_break"
        )
    if COMMIT in (*layout.keys, *layout.partition_by):
        raise InvalidInputError(
            f"the built-in column {COMMIT!r} cannot be a key or a partition column; choose a "
            "column of the schema"
        )


def _not_null_ids(
    schema: Schema, names: Sequence[str], implied: Collection[int]
) -> tuple[int, ...]:
    """Return the ids of columns declared NOT NULL, without the `implied` ones.

    `implied` are the columns that are never null in any table: keys and delta.
    """
    refuse_text("not_null", names)
    ids = {schema.field(name).id for name in names}
    return tuple(sorted(ids.difference(implied)))


def delete_condition(spec: TableSpec) -> Condition | None:
    """Return the table's delete condition; None for a table without deletes.

    Raises InvalidInputError for a text that is not a condition: any writer may have written it
    (I25).
    """
    if spec.deletes is None:
        return None
    return condition(spec.deletes, spec.schema.fields, DELETES)


def refuse_text(what: str, names: object) -> None:
    """Raise InvalidInputError for a text in the place of a list of column names.

    Python would read it as a list of letters. `what` is the subject of the message.
    """
    if isinstance(names, str):
        raise InvalidInputError(
            f"{what}: got the text {names!r}; give a list of column names such as [{names!r}]"
        )


def check_role(schema: Schema, argument: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of the columns that an argument such as `keys` names.

    Raises InvalidInputError if a column is unknown, named twice, or of a forbidden type.
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
        raise InvalidInputError(
            f"{role} columns {list(names)!r} name a column twice; leave one out"
        )
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
    data: dict[str, Any] = {
        "schema": schema_to_json(spec.schema),
        "keys": list(spec.key_ids),
        "delta": spec.delta_id,
        "tie_break": list(spec.tie_break_ids),
        "deletes": spec.deletes,
        "partition_by": list(spec.partition_ids),
        "file_format": spec.file_format,
        "properties": dict(spec.properties),
    }
    if spec.not_null_ids:
        data["not_null"] = list(spec.not_null_ids)
    if spec.constraints:
        data["constraints"] = dict(spec.constraints)
    return data


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
        not_null_ids=counts(data.get("not_null", [])),
        constraints=_constraints_from_json(data.get("constraints", {})),
    )
    _check_roles(spec)
    return spec


def _constraints_from_json(data: Any) -> dict[str, str]:
    constraints = {text(name): text(value) for name, value in mapped(data).items()}
    if len(constraints) > MAX_CONSTRAINTS:
        raise ValueError(f"a table has at most {MAX_CONSTRAINTS} constraints")
    return constraints


def _check_roles(spec: TableSpec) -> None:
    """Raise ValueError for roles in a stored spec that `plan_spec` would refuse."""
    if spec.file_format not in FILE_FORMATS:
        raise ValueError(f"the file format {spec.file_format!r} is unknown")
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
        are_known = len(known) == len(ids)
        are_different = len(set(ids)) == len(ids)
        have_fitting_types = all(_fits(column, role, allowed) for column in known)
        if not (are_known and are_different and have_fitting_types):
            raise ValueError(
                f"the {role} columns {list(ids)} are unknown, named twice, or of types that they "
                "cannot have"
            )
    _check_commit_column(spec)
    not_null = set(spec.not_null_ids)
    if not not_null <= columns.keys() or len(not_null) < len(spec.not_null_ids):
        raise ValueError(
            f"the NOT NULL columns {list(spec.not_null_ids)} are unknown or named twice"
        )


def _check_commit_column(spec: TableSpec) -> None:
    """Raise ValueError for a built-in column that is not the delta, or has tie-breaks."""
    if not spec.orders_by_commit:
        return
    is_delta = spec.delta_id == spec.schema.commit_id
    if not is_delta or spec.tie_break_ids or spec.delta.type != Atomic(name="timestamp"):
        raise ValueError(
            "the built-in column is not the delta column, or not a timestamp, or has tie-breaks"
        )
