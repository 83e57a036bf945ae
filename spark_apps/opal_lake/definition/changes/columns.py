"""Changes of columns: add, rename, drop, move and widen, at any depth."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from opal_lake.definition.changes.change import Change
from opal_lake.definition.changes.defaults import default_of, plain_literal, refused_part
from opal_lake.definition.changes.paths import (
    Target,
    path_of,
    path_text,
    target_of,
    with_field,
    with_siblings,
)
from opal_lake.definition.changes.uses import roles_of, uses_of, with_new_name
from opal_lake.definition.default_values import widened_default
from opal_lake.definition.schema import (
    Atomic,
    Field,
    Map,
    Schema,
    Struct,
    altered,
    atomic_name,
    atomic_type_name,
    check_names,
    is_widening,
    new_fields,
    type_name,
)
from opal_lake.definition.sql_types import arrow_of_type
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class AddColumn(Change):
    """A new column, or a new member of a struct; null in existing rows.

    Without `first` and `after` it comes last. `after` is the name of another column, or of another
    member of the same struct. A type may also be given as Arrow's. With a `default`, a literal as
    in SQL, a new column has this value in existing rows, and in new rows that lack it.
    """

    verb: ClassVar[str] = "add"
    done: ClassVar[str] = "added"
    example: ClassVar[str] = '{"add": "a.b", "type": "decimal(10,2)", "after": "c"}'
    literals: ClassVar[tuple[str, ...]] = ("default",)

    column: str
    type: str
    after: str | None = field(default=None, kw_only=True)
    first: bool = field(default=False, kw_only=True)
    default: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.type, pa.DataType):
            object.__setattr__(self, "type", type_name(self.type))
        object.__setattr__(self, "default", plain_literal(self.default))
        Change.__post_init__(self)
        _refuse_two_places(self.verb, self.after, first=self.first)

    def applied(self, spec: TableSpec) -> TableSpec:
        *outer, name = path_of(self.column)
        parents: tuple[Field, ...] = ()
        siblings: tuple[Field, ...] = spec.schema.fields
        if outer:
            target = target_of(spec.schema, path_text(outer))
            siblings = _members_of(target)
            _refuse_key(target, inside=True)
            parents = target.fields
        for sibling in siblings:
            if sibling.name.casefold() == name.casefold():
                path = path_text([*(parent.name for parent in parents), sibling.name])
                raise InvalidInputError(
                    f"column {path!r} exists already, as {type_name(sibling.type)}; "
                    "choose another name"
                )
        column = pa.field(name, arrow_of_type(self.column, self.type))
        [new], last_id = new_fields(spec.schema, [column], siblings)
        if self.default is not None:
            new = self._with_default(new, is_top=not parents)
        arranged = _arranged(siblings, new, after=self.after, first=self.first)
        check_names(sibling.name for sibling in arranged)
        if parents:
            arranged = _without_former_members(arranged, name)
        schema = with_siblings(altered(spec.schema), parents, lambda _: arranged)
        schema = replace(schema, last_id=last_id)
        if not parents:
            schema = _without_former(schema, name)
        return replace(spec, schema=schema)

    def _with_default(self, new: Field, *, is_top: bool) -> Field:
        if not is_top:
            raise refused_part(self.column)
        default = default_of(self.default, new)
        return replace(new, initial=default, write=default)

    def note(self) -> str:
        if self.default is not None:
            return f"added column {self.column!r} with the default {self.default}"
        return f"added column {self.column!r}"


@dataclass(frozen=True, slots=True)
class RenameColumn(Change):
    """Another name for a column, or for a member of a struct; `to` is the name alone."""

    verb: ClassVar[str] = "rename"
    done: ClassVar[str] = "renamed"
    example: ClassVar[str] = '{"rename": "a.b", "to": "c"}'

    column: str
    to: str

    def applied(self, spec: TableSpec) -> TableSpec:
        target = target_of(spec.schema, self.column)
        _refuse_part(target, "renamed")
        if target.field.id == spec.schema.commit_id:
            raise InvalidInputError(
                f"column {target.text!r} cannot be renamed: the table fills it under this name"
            )
        name = self._new_name()
        if name == target.field.name:
            return spec
        spec = with_new_name(spec, target, name)
        if target.is_top:
            schema = with_field(spec.schema, target, replace(target.field, name=name))
        else:
            schema = _with_member_name(spec.schema, target, name)
        siblings = schema.fields if target.is_top else _members_at(schema, target)
        check_names(sibling.name for sibling in siblings)
        if target.is_top:
            schema = _with_former(_without_former(schema, name), target.field, but=name)
        return replace(spec, schema=schema)

    def _new_name(self) -> str:
        names = path_of(self.to)
        if len(names) > 1:
            raise InvalidInputError(
                f"{self.to!r} is a path, and a column stays where it is; write only the new name, "
                f"for example {names[-1]!r}, and a name with a dot in backquotes"
            )
        return names[0]

    def note(self) -> str:
        return f"renamed column {self.column!r} to {self.to!r}"


@dataclass(frozen=True, slots=True)
class DropColumn(Change):
    """A column, or a member of a struct, that newer versions lack.

    Its values stay in the files and in older versions. A new column of the same name has none.
    """

    verb: ClassVar[str] = "drop"
    done: ClassVar[str] = "dropped"
    example: ClassVar[str] = '{"drop": "a.b"}'

    column: str

    def applied(self, spec: TableSpec) -> TableSpec:
        target = target_of(spec.schema, self.column)
        _refuse_part(target, "dropped")
        _refuse_key(target)
        needed_by = list(uses_of(spec, target))
        if needed_by:
            raise InvalidInputError(
                f"column {target.text!r} cannot be dropped: {' and '.join(needed_by)} of the table "
                "needs it. Keep the column, or change what needs it before"
            )

        def remaining(siblings: tuple[Field, ...]) -> tuple[Field, ...]:
            return tuple(sibling for sibling in siblings if sibling is not target.field)

        if not target.is_top and len(_members_of(Target(fields=target.parents))) == 1:
            parent = path_text([parent.name for parent in target.parents])
            raise InvalidInputError(
                f"column {target.text!r} is the only member of {parent!r}, and no struct is empty; "
                f"drop {parent!r}, or add another member before"
            )
        schema = with_siblings(altered(spec.schema), target.parents, remaining)
        if target.is_top:
            schema = _with_former(schema, target.field)
        not_null = tuple(number for number in spec.not_null_ids if number != target.field.id)
        return replace(spec, schema=schema, not_null_ids=not_null)

    def note(self) -> str:
        return f"dropped column {self.column!r}"


@dataclass(frozen=True, slots=True)
class MoveColumn(Change):
    """Another place for a column among the others, or for a member within its struct."""

    verb: ClassVar[str] = "move"
    done: ClassVar[str] = "moved"
    example: ClassVar[str] = '{"move": "a", "after": "b"} or {"move": "a", "first": true}'

    column: str
    after: str | None = field(default=None, kw_only=True)
    first: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        Change.__post_init__(self)
        _refuse_two_places(self.verb, self.after, first=self.first)
        if self.after is None and not self.first:
            raise InvalidInputError(
                f"move of {self.column!r} lacks the place; write {self.example}"
            )

    def applied(self, spec: TableSpec) -> TableSpec:
        target = target_of(spec.schema, self.column)
        _refuse_part(target, "moved")

        def moved(siblings: tuple[Field, ...]) -> tuple[Field, ...]:
            others = [sibling for sibling in siblings if sibling is not target.field]
            return _arranged(others, target.field, after=self.after, first=self.first)

        schema = with_siblings(spec.schema, target.parents, moved)
        if schema.fields == spec.schema.fields:
            return spec
        return replace(spec, schema=altered(schema))

    def note(self) -> str:
        if self.first:
            return f"moved column {self.column!r} to the front"
        return f"moved column {self.column!r} behind {self.after!r}"


@dataclass(frozen=True, slots=True)
class WidenColumn(Change):
    """A wider type for a column or for a part of one; every value stays as it is."""

    verb: ClassVar[str] = "widen"
    done: ClassVar[str] = "widened"
    example: ClassVar[str] = '{"widen": "a.element", "type": "bigint"}'

    column: str
    type: str

    def __post_init__(self) -> None:
        if isinstance(self.type, pa.DataType):
            object.__setattr__(self, "type", type_name(self.type))
        Change.__post_init__(self)

    def applied(self, spec: TableSpec) -> TableSpec:
        target = target_of(spec.schema, self.column)
        arrow = arrow_of_type(self.column, self.type)
        kind = target.field.type
        if pa.types.is_nested(arrow) or not isinstance(kind, Atomic):
            raise InvalidInputError(
                f"column {target.text!r} is {type_name(kind)}, and {self.type!r} cannot take its "
                "place: name the part that gets a wider type, for example 'a.b' or 'a.element'"
            )
        name = atomic_name(self.column, arrow)
        if name == kind.name:
            return spec
        if not is_widening(kind.name, name):
            raise _not_wider(target, kind.name, name)
        _refuse_date(spec, target, kind.name)
        earlier = (*target.field.earlier, kind.name)
        widened = replace(
            target.field,
            type=Atomic(name=name),
            earlier=earlier,
            initial=widened_default(target.field.initial, kind.name),
            write=widened_default(target.field.write, kind.name),
        )
        return replace(spec, schema=with_field(altered(spec.schema), target, widened))

    def note(self) -> str:
        return f"widened column {self.column!r} to {self.type}"


def _refuse_two_places(verb: str, after: str | None, *, first: bool) -> None:
    if after is not None and first:
        raise InvalidInputError(f"{verb} has both after={after!r} and first; leave out one of them")


def _arranged(
    others: Sequence[Field], column: Field, *, after: str | None, first: bool
) -> tuple[Field, ...]:
    """Return fields with one more: in front, behind another one, or last."""
    if first:
        return (column, *others)
    if after is None:
        return (*others, column)
    names = path_of(after)
    for position, other in enumerate(others, start=1):
        if len(names) == 1 and other.name.casefold() == names[0].casefold():
            return (*others[:position], column, *others[position:])
    known = ", ".join(repr(other.name) for other in others)
    raise InvalidInputError(
        f"after={after!r} is not next to {column.name!r}; write the name alone of one of {known}"
    )


def _members_of(target: Target) -> tuple[Field, ...]:
    """Return the members of a struct; raise InvalidInputError for another type."""
    kind = target.field.type
    if isinstance(kind, Struct):
        return kind.fields
    hint = "members are added to structs"
    if not isinstance(kind, Atomic):
        part = "value" if isinstance(kind, Map) else "element"
        hint = f"name its part, for example '{target.text}.{part}'"
    raise InvalidInputError(f"column {target.text!r} is {type_name(kind)}, not a STRUCT; {hint}")


def _members_at(schema: Schema, target: Target) -> tuple[Field, ...]:
    """Return the members of a target's struct in another state of the schema."""
    parents = path_text([parent.name for parent in target.parents])
    return _members_of(target_of(schema, parents))


def _refuse_part(target: Target, done: str) -> None:
    if not target.is_member:
        raise InvalidInputError(
            f"{target.text!r} is a part that every list or map has, and cannot be {done}; "
            "name a column or a member of a struct"
        )


def _refuse_key(target: Target, *, inside: bool = False) -> None:
    """Raise InvalidInputError for a change of which parts the keys of a map have.

    Keys that differ could become equal. `inside` means that a part of the target changes.
    """
    parent = target.fields[-2] if len(target.fields) > 1 else None
    is_key = parent is not None and isinstance(parent.type, Map) and target.field is parent.type.key
    if target.is_in_key or (inside and is_key):
        raise InvalidInputError(
            f"{target.text!r} belongs to the keys of a map, which keep their members: keys that "
            "differ could become equal. Add a column of another type instead"
        )


def _not_wider(target: Target, name: str, wanted: str) -> InvalidInputError:
    return InvalidInputError(
        f"column {target.text!r} is {atomic_type_name(name)} and cannot become "
        f"{atomic_type_name(wanted)}: TINYINT, SMALLINT and INT become a longer integer, FLOAT "
        "becomes DOUBLE, DATE becomes TIMESTAMP_NTZ, and DECIMAL gets more digits at the same "
        "scale. Add a column of the type instead"
    )


def _refuse_date(spec: TableSpec, target: Target, name: str) -> None:
    """Raise InvalidInputError for a date whose days something relies on."""
    if name != "date":
        return
    roles = list(roles_of(spec, target))
    if roles:
        raise InvalidInputError(
            f"column {target.text!r} belongs to {' and '.join(roles)}, where a DATE counts days "
            "and a TIMESTAMP_NTZ microseconds, so it stays a DATE; add a column instead"
        )
    if spec.file_format == "orc":
        raise InvalidInputError(
            f"column {target.text!r} stays a DATE: ORC files hold dates and timestamps as plain "
            "integers, days and microseconds, which a scan of both cannot separate; "
            "add a column of TIMESTAMP_NTZ instead"
        )


def _with_former(schema: Schema, column: Field, but: str = "") -> Schema:
    """Return the schema that remembers the name of a column.

    If `but` is the same name, nothing changes.
    """
    if column.name.casefold() == but.casefold():
        return schema
    others = _without_former(schema, column.name).former_names
    return replace(schema, former_names=tuple(sorted([*others, (column.name, column.id)])))


def _with_member_name(schema: Schema, target: Target, name: str) -> Schema:
    """Return the schema with another name of a member, which remembers its former one."""
    former = (*target.field.former, target.field.name)
    renamed = replace(target.field, name=name, former=former)

    def with_name(members: tuple[Field, ...]) -> tuple[Field, ...]:
        exchanged = [renamed if member is target.field else member for member in members]
        return _without_former_members(exchanged, name)

    return with_siblings(altered(schema), target.parents, with_name)


def _without_former_members(members: Sequence[Field], name: str) -> tuple[Field, ...]:
    """Return members of a struct in which a name belongs to another one than before."""
    remaining: list[Field] = []
    for member in members:
        former = [other for other in member.former if other.casefold() != name.casefold()]
        remaining.append(replace(member, former=tuple(former)))
    return tuple(remaining)


def _without_former(schema: Schema, name: str) -> Schema:
    """Return the schema in which a name belongs to a new column."""
    remaining = [pair for pair in schema.former_names if pair[0].casefold() != name.casefold()]
    return replace(schema, former_names=tuple(remaining))
