"""Members of nested columns under names that they had before they were renamed.

A stream that ignores unknown members would lose their values silently. So it reads them under these
names as well, and refuses the messages that have a value there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from opal_lake.definition.added_columns import former_name
from opal_lake.definition.schema import (
    Array,
    DataType,
    Field,
    Map,
    Struct,
    arrow_type,
)
from opal_stream.formats.schemas.members import members_of_values


class FormerMembers:
    """The members of columns that had other names, by these names.

    `types` are the types of the columns that have such members, with these members under all names
    that they had.
    """

    def __init__(self, columns: Iterable[Field]) -> None:
        self.types: dict[str, pa.DataType] = {}
        self._own: dict[str, pa.DataType] = {}
        self._reasons: dict[str, str] = {}
        for field in columns:
            names = dict(_former_paths(field.type, field.name))
            if names:
                self.types[field.name] = arrow_type(_with_former(field.type))
                self._own[field.name] = arrow_type(field.type)
                self._reasons |= names

    def refused(self, rows: pa.Table) -> dict[int, str]:
        """Return by row what is wrong with values under former names."""
        nested = {name: rows[name].combine_chunks() for name in self._own}
        wrong: dict[int, str] = {}
        for row, members in members_of_values(nested, self._own).items():
            wrong[row] = f"the message has a member {self._reasons[members[0].path]}"
        return wrong

    def left_out(self, rows: pa.Table) -> pa.Table:
        """Return rows with the members of the table alone."""
        for name, kind in self._own.items():
            rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(kind))
        return rows


def _with_former(kind: DataType) -> DataType:
    """Return a type whose structs have each member under its former names as well."""
    match kind:
        case Struct(fields=fields):
            members = [_within(field) for field in fields]
            former = [replace(member, name=name) for member in members for name in member.former]
            return Struct(fields=(*members, *former))
        case Array(element=element):
            return Array(element=_within(element))
        case Map(key=key, value=value):
            return Map(key=key, value=_within(value))
    return kind


def _within(field: Field) -> Field:
    return replace(field, type=_with_former(field.type))


def _former_paths(kind: DataType, path: str) -> Iterator[tuple[str, str]]:
    """Yield the paths of members under former names, and what is wrong there."""
    match kind:
        case Struct(fields=fields):
            for field in fields:
                for name in field.former:
                    yield f"{path}.{name}", former_name(f"{path}.{name}", field.name)
                yield from _former_paths(field.type, f"{path}.{field.name}")
        case Array(element=element):
            yield from _former_paths(element.type, f"{path}[]")
        case Map(value=value):
            yield from _former_paths(value.type, f"{path}[]")
