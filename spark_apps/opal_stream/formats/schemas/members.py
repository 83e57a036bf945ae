"""Members that messages have inside nested columns and the table lacks.

A table can get new columns, but a nested column gets no more members.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.formats.schemas.inferred import has_value, plain_type
from opal_stream.formats.schemas.new_columns import Member, Members

_ELEMENTS = -1
Steps = tuple[int, ...]  # to a member: numbers of fields, and `_ELEMENTS` of a list


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unknown:
    """A member that the table lacks, the steps to it, and its type."""

    member: Member
    steps: Steps
    kind: pa.DataType


def members_of_types(
    given: Mapping[str, pa.DataType], own: Mapping[str, pa.DataType]
) -> tuple[Member, ...]:
    """Return the members that types of a schema have and the table's columns lack."""
    members: list[Member] = []
    for name, kind in own.items():
        if name in given:
            members += [unknown.member for unknown in _unknown(given[name], kind, name)]
    return tuple(members)


def members_of_values(columns: Mapping[str, pa.Array], own: Mapping[str, pa.DataType]) -> Members:
    """Return the members that the table lacks and that have a value, by row."""
    by_row: dict[int, list[Member]] = {}
    for name, values in columns.items():
        parts: dict[Steps, _Part] = {(): _Part(values=values)}
        for unknown in _unknown(values.type, own[name], name):
            if plain_type(unknown.kind) is None:
                continue
            for row in _part(parts, unknown.steps).rows():
                by_row.setdefault(row, []).append(unknown.member)
    return {row: tuple(members) for row, members in by_row.items()}


def nested_types(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the types of the columns that have members."""
    return {name: kind for name, kind in types.items() if pa.types.is_nested(kind)}


def _unknown(
    given: pa.DataType, own: pa.DataType, path: str, steps: Steps = ()
) -> Iterator[_Unknown]:
    """Yield the members that a given type has and the column's own type lacks."""
    if given == own:
        return
    if pa.types.is_struct(given) and pa.types.is_struct(own):
        yield from _unknown_fields(given, own, path, steps)
    elif pa.types.is_list(given) and pa.types.is_list(own):
        yield from _unknown(given.value_type, own.value_type, f"{path}[]", (*steps, _ELEMENTS))
    elif pa.types.is_map(given) and pa.types.is_map(own):
        yield from _unknown(given.item_type, own.item_type, f"{path}[]", (*steps, _ELEMENTS))


def _unknown_fields(
    given: pa.DataType, own: pa.DataType, path: str, steps: Steps
) -> Iterator[_Unknown]:
    known = {field.name: field.type for field in own}
    by_case = {name.casefold(): name for name in known}
    for number, field in enumerate(given):
        inner_path = f"{path}.{field.name}"
        inner_steps = (*steps, number)
        if field.name in known:
            yield from _unknown(field.type, known[field.name], inner_path, inner_steps)
            continue
        twin = by_case.get(field.name.casefold())
        like = None if twin is None else f"{path}.{twin}"
        member = Member(path=inner_path, like=like)
        yield _Unknown(member=member, steps=inner_steps, kind=field.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Values within a column, and the row of each; without `row_of` one value a row."""

    values: pa.Array
    row_of: pa.Array | None = None

    def rows(self) -> list[int]:
        """Return the rows in which one of these values would be lost."""
        indices = pc.indices_nonzero(has_value(self.values))
        if self.row_of is not None:
            indices = self.row_of.take(indices).unique()
        rows: list[int] = indices.to_pylist()
        return rows

    def members(self) -> "list[_Part]":
        """Return the members of a struct, all at once.

        To take one of thousands costs as much as all.
        """
        return [_Part(values=values, row_of=self.row_of) for values in self.values.flatten()]

    def elements(self) -> "_Part":
        """Return the elements of a list, or a map's values."""
        lists = self.values
        if pa.types.is_map(lists.type):
            # Arrow ends the process if these functions get a map
            lists = pa.ListArray.from_arrays(lists.offsets, lists.items)
        parents = pc.list_parent_indices(lists)
        row_of = parents
        if self.row_of is not None:
            row_of = self.row_of.take(parents)
        return _Part(values=pc.list_flatten(lists), row_of=row_of)


def _part(parts: dict[Steps, _Part], steps: Steps) -> _Part:
    """Return the values at the end of the steps; remember those on the way in `parts`."""
    if steps not in parts:
        above = _part(parts, steps[:-1])
        if steps[-1] == _ELEMENTS:
            parts[steps] = above.elements()
        else:
            for number, part in enumerate(above.members()):
                parts[(*steps[:-1], number)] = part
    return parts[steps]
