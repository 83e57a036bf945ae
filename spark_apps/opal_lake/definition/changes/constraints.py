"""Changes of constraints: NOT NULL of columns, and CHECK conditions by name."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from opal_lake.definition.changes.change import Change
from opal_lake.definition.changes.paths import target_of
from opal_lake.definition.changes.uses import by_ids
from opal_lake.definition.constraints import check_constraint, plan_constraints, use_of
from opal_lake.definition.schema import Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class SetNotNull(Change):
    """A column in which no row may have a null from now on, but for deletes."""

    verb: ClassVar[str] = "set_not_null"
    done: ClassVar[str] = "not_null_set"
    example: ClassVar[str] = '{"set_not_null": "a"}'
    checks_rows: ClassVar[bool] = True

    column: str

    def applied(self, spec: TableSpec) -> TableSpec:
        column = _top_level(spec, self.column)
        if column.id in spec.not_null_ids or _is_implied(spec, column):
            return spec
        return replace(spec, not_null_ids=tuple(sorted([*spec.not_null_ids, column.id])))

    def note(self) -> str:
        return f"column {self.column!r} is now NOT NULL"


@dataclass(frozen=True, slots=True)
class DropNotNull(Change):
    """A column in which rows may have nulls again."""

    verb: ClassVar[str] = "drop_not_null"
    done: ClassVar[str] = "not_null_dropped"
    example: ClassVar[str] = '{"drop_not_null": "a"}'

    column: str

    def applied(self, spec: TableSpec) -> TableSpec:
        column = _top_level(spec, self.column)
        if _is_implied(spec, column):
            raise InvalidInputError(
                f"column {column.name!r} is a key or the delta, which are never null"
            )
        remaining = tuple(number for number in spec.not_null_ids if number != column.id)
        return replace(spec, not_null_ids=remaining)

    def note(self) -> str:
        return f"column {self.column!r} may be null"


@dataclass(frozen=True, slots=True)
class AddConstraint(Change):
    """A condition that no row may make false from now on, but for deletes."""

    verb: ClassVar[str] = "add_constraint"
    done: ClassVar[str] = "constraints_added"
    example: ClassVar[str] = '{"add_constraint": "positive", "check": "a > 0"}'
    checks_rows: ClassVar[bool] = True

    name: str
    check: str

    def applied(self, spec: TableSpec) -> TableSpec:
        check_constraint(self.name, self.check)
        known = _name_of(spec, self.name)
        if known is not None:
            text = spec.constraints[known]
            if (known, text) == (self.name, self.check):
                return spec
            raise InvalidInputError(
                f"constraint {known!r} exists already, with the condition {text!r}; drop it "
                "before, or choose another name"
            )
        constraints = plan_constraints({**spec.constraints, self.name: self.check})
        return replace(spec, constraints=constraints)

    def note(self) -> str:
        return f"added constraint {self.name!r}: {self.check}"


@dataclass(frozen=True, slots=True)
class DropConstraint(Change):
    """A condition that rows may make false again."""

    verb: ClassVar[str] = "drop_constraint"
    done: ClassVar[str] = "constraints_dropped"
    example: ClassVar[str] = '{"drop_constraint": "positive"}'

    name: str

    def applied(self, spec: TableSpec) -> TableSpec:
        known = _name_of(spec, self.name)
        if known is None:
            names = ", ".join(map(repr, spec.constraints)) or "none"
            raise InvalidInputError(f"no constraint {self.name!r}; the table has {names}")
        remaining = {name: text for name, text in spec.constraints.items() if name != known}
        return replace(spec, constraints=remaining)

    def note(self) -> str:
        return f"dropped constraint {self.name!r}"


def new_constraints(before: TableSpec, after: TableSpec) -> TableSpec:
    """Return the spec `after` with only those constraints that `before` does not have.

    Conditions are compared by the columns that they read, which may have been renamed.
    """
    known = [by_ids(text, use_of(name), before.schema) for name, text in before.constraints.items()]
    constraints = {
        name: text
        for name, text in after.constraints.items()
        if by_ids(text, use_of(name), after.schema) not in known
    }
    not_null = tuple(number for number in after.not_null_ids if number not in before.not_null_ids)
    # A column is generated from its addition on, if at all
    known_ids = {field.id for field in before.schema.fields}
    fields: list[Field] = []
    for field in after.schema.fields:
        if field.id in known_ids:
            field = replace(field, generated=None)
        fields.append(field)
    schema = replace(after.schema, fields=tuple(fields))
    return replace(after, schema=schema, not_null_ids=not_null, constraints=constraints)


def constraint_names(spec: TableSpec) -> Iterator[str]:
    """Yield the constraints of a spec, as a message names them."""
    for column in spec.not_null:
        yield f"NOT NULL of column {column.name!r}"
    for name in spec.constraints:
        yield f"constraint {name!r}"
    for column in spec.schema.fields:
        if column.generated is not None:
            yield f"the generated column {column.name!r}"


def _top_level(spec: TableSpec, text: str) -> Field:
    target = target_of(spec.schema, text)
    if not target.is_top:
        raise InvalidInputError(
            f"{text!r} is part of a column, and only whole columns are NOT NULL; add a constraint "
            f"such as '{text} IS NOT NULL'"
        )
    return target.field


def _is_implied(spec: TableSpec, column: Field) -> bool:
    """Return whether a column is never null in any table."""
    return column in [required for _, required in spec.required]


def _name_of(spec: TableSpec, name: str) -> str | None:
    """Return the exact name of a constraint, or None.

    Names are not case-sensitive.
    """
    for known in spec.constraints:
        if known.casefold() == name.casefold():
            return known
    return None
