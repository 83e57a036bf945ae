"""Changes of the values that rows get which lack a column."""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa

from opal_lake.definition.changes.change import Change
from opal_lake.definition.changes.paths import target_of, with_field
from opal_lake.definition.conditions.expression import VALUE, expression
from opal_lake.definition.conditions.printer import literal_text
from opal_lake.definition.conditions.typing import Columns
from opal_lake.definition.default_values import DefaultValue, stored_default
from opal_lake.definition.schema import Atomic, Field, type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class SetDefault(Change):
    """The value of a column in new rows that lack it; existing rows keep theirs.

    `value` is a literal: a text such as `'new'` in its quotes, a number, or a Python value.
    """

    verb: ClassVar[str] = "set_default"
    done: ClassVar[str] = "defaults_set"
    example: ClassVar[str] = '{"set_default": "a", "value": "\'new\'"}'
    literals: ClassVar[tuple[str, ...]] = ("value",)

    column: str
    value: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain_literal(self.value))
        Change.__post_init__(self)

    def applied(self, spec: TableSpec) -> TableSpec:
        target = target_of(spec.schema, self.column)
        if not target.is_top:
            raise refused_part(self.column)
        column = target.field
        if column in [required for _, required in spec.required]:
            raise InvalidInputError(
                f"column {column.name!r} is a key or the delta, which every row has to bring; "
                "choose another column"
            )
        default = default_of(self.value, column)
        if default is None:
            raise InvalidInputError(
                f"the default of column {column.name!r} is NULL; drop_default has that effect"
            )
        changed = replace(column, write=default)
        return replace(spec, schema=with_field(spec.schema, target, changed))

    def note(self) -> str:
        return f"set the default of column {self.column!r} to {self.value}"


@dataclass(frozen=True, slots=True)
class DropDefault(Change):
    """A column that is null again in new rows that lack it.

    Existing rows keep their values.
    """

    verb: ClassVar[str] = "drop_default"
    done: ClassVar[str] = "defaults_dropped"
    example: ClassVar[str] = '{"drop_default": "a"}'

    column: str

    def applied(self, spec: TableSpec) -> TableSpec:
        target = target_of(spec.schema, self.column)
        changed = replace(target.field, write=None)
        return replace(spec, schema=with_field(spec.schema, target, changed))

    def note(self) -> str:
        return f"dropped the default of column {self.column!r}"


def default_of(given: object, column: Field) -> DefaultValue | None:
    """Return the stored form of a literal for a column; None for NULL.

    Raises InvalidInputError for a text that is not a literal, or that does not fit the column.
    """
    if given is None:
        return None
    if not isinstance(column.type, Atomic):
        raise InvalidInputError(
            f"column {column.name!r} is {type_name(column.type)}, and only columns without parts "
            "have a default; leave the default out"
        )
    try:
        literal = expression(given, column, Columns(fields=[], use=VALUE))
        if literal.typed is None:
            return None
        # One row without columns, for which a literal has its value
        value = literal.values(pa.table({"": pa.nulls(1)}))[0]
        return stored_default(value) if value.is_valid else None
    except (InvalidInputError, ValueError) as error:
        raise InvalidInputError(
            f"the default of column {column.name!r} of type {type_name(column.type)}: {error}\n"
            "Write a literal of that type, a text in quotes within quotes, such as \"'new'\""
        ) from error


def plain_literal(given: object) -> object:
    """Return a literal in a form that JSON holds: values that JSON lacks become texts."""
    if isinstance(given, datetime) and given.tzinfo is not None:
        given = given.astimezone(UTC)
    if isinstance(given, date | Decimal | bytes):
        return literal_text(given)
    return given


def refused_part(path: str) -> InvalidInputError:
    """Return the error for a default of a part of a column."""
    return InvalidInputError(
        f"{path!r} is part of a column, and only whole columns have a default; leave the default "
        "out, or add the value as a column of its own"
    )
