"""Paths to columns and to parts of nested columns, such as `a.b`, `a.element.b` or `a.value`.

Names are not case-sensitive, as in Spark. A name with a dot stands in backquotes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from opal_lake.definition.schema import Array, DataType, Field, Map, Schema, Struct, type_name
from opal_lake.errors import InvalidInputError

_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_PLAIN = re.compile(r"[^`.\s](?:[^`.]*[^`.\s])?\Z")
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A column or a part of one: the fields that lead to it, itself last."""

    fields: tuple[Field, ...]

    @property
    def field(self) -> Field:
        return self.fields[-1]

    @property
    def parents(self) -> tuple[Field, ...]:
        return self.fields[:-1]

    @property
    def is_top(self) -> bool:
        """True for a column of the table itself."""
        return len(self.fields) == 1

    @property
    def is_member(self) -> bool:
        """True for a column, or a member of a struct: not an element, a key or a value."""
        return self.is_top or isinstance(self.fields[-2].type, Struct)

    @property
    def is_in_key(self) -> bool:
        """True for a part of the keys of a map."""
        for parent, part in zip(self.fields, self.fields[1:], strict=False):
            if isinstance(parent.type, Map) and part is parent.type.key:
                return True
        return False

    @property
    def text(self) -> str:
        """The path, which `path_of` reads."""
        return path_text([field.name for field in self.fields])


def path_of(text: str) -> Path:
    """Return the names of a path; raise InvalidInputError for another text."""
    names: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise InvalidInputError(
                f"{text!r} is not a path to a column; write a name such as 'a', or 'a.b' for a "
                "member, and a name with a dot in backquotes"
            )
        names.append(match[1].replace("``", "`") if match[1] else match[2].strip())
        position = match.end()
        if position == len(text):
            return tuple(names)
        if text[position] != ".":
            raise InvalidInputError(f"{text!r} is not a path to a column; put a dot behind a name")
        position += 1


def path_text(names: Sequence[str]) -> str:
    """Return a path as text, with backquotes where a name needs them."""
    parts: list[str] = []
    for name in names:
        is_plain = _PLAIN.match(name) is not None
        parts.append(name if is_plain else "`" + name.replace("`", "``") + "`")
    return ".".join(parts)


def target_of(schema: Schema, text: str) -> Target:
    """Return the column or part at a path; raise InvalidInputError if there is none."""
    first, *rest = path_of(text)
    field = schema.find(first)
    if field is None:
        if schema.find(text) is not None:
            raise InvalidInputError(f"no column {first!r}; write the name with a dot as `{text}`")
        field = schema.field(first)  # raises, and lists the columns
    fields = [field]
    for name in rest:
        fields.append(_part(fields, name))
    return Target(fields=tuple(fields))


def _part(fields: Sequence[Field], name: str) -> Field:
    """Return the part with a name of the last field."""
    parts = parts_of(fields[-1].type)
    for part in parts:
        if part.name == name:
            return part
    for part in parts:
        if part.name.casefold() == name.casefold():
            return part
    path = path_text([field.name for field in fields])
    kind = fields[-1].type
    if not parts:
        raise InvalidInputError(f"column {path!r} is {type_name(kind)} and has no part {name!r}")
    names = ", ".join(repr(part.name) for part in parts)
    raise InvalidInputError(f"column {path!r} has no part {name!r}; it has {names}")


def parts_of(kind: DataType) -> tuple[Field, ...]:
    """Return the parts of a nested type; none for an atomic type."""
    match kind:
        case Struct(fields=fields):
            return fields
        case Array(element=element):
            return (element,)
        case Map(key=key, value=value):
            return (key, value)
    return ()


def with_parts(kind: DataType, parts: Sequence[Field]) -> DataType:
    """Return a nested type with other parts."""
    match kind:
        case Struct():
            return Struct(fields=tuple(parts))
        case Array():
            [element] = parts
            return Array(element=element)
        case Map():
            key, value = parts
            return Map(key=key, value=value)
    raise AssertionError(kind)


def with_field(schema: Schema, target: Target, field: Field) -> Schema:
    """Return the schema with another field at a target."""

    def exchanged(siblings: tuple[Field, ...]) -> tuple[Field, ...]:
        return tuple(field if part is target.field else part for part in siblings)

    return with_siblings(schema, target.parents, exchanged)


def with_siblings(
    schema: Schema,
    parents: Sequence[Field],
    change: Callable[[tuple[Field, ...]], tuple[Field, ...]],
) -> Schema:
    """Return the schema with changed parts of the innermost of `parents`.

    Without parents, the columns of the table change.
    """
    if not parents:
        return replace(schema, fields=change(schema.fields))
    *outer, innermost = parents
    kind = with_parts(innermost.type, change(parts_of(innermost.type)))
    target = Target(fields=(*outer, innermost))
    return with_field(schema, target, replace(innermost, type=kind))
