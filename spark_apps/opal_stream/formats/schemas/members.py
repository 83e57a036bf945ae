"""Members that messages have inside nested columns and the table lacks. It can get new columns, but a nested one gets no more members."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.formats.schemas.inferred import has_value, plain_type
from opal_stream.formats.schemas.new_columns import Member, Members

_ELEMENTS = -1
Steps = tuple[int, ...]  # to a member: numbers of fields, and `_ELEMENTS` of a list


def members_of_types(
    given: Mapping[str, pa.DataType], own: Mapping[str, pa.DataType]
) -> tuple[Member, ...]:
    """What a schema says of the columns that the table has."""
    return tuple(
        member
        for name, kind in own.items()
        if name in given
        for member, _, _ in _unknown(given[name], kind, name)
    )


def members_of_values(columns: Mapping[str, pa.Array], own: Mapping[str, pa.DataType]) -> Members:
    """Those that have a value."""
    found: dict[int, list[Member]] = {}
    for name, values in columns.items():
        parts: dict[Steps, _Part] = {(): _Part(values=values)}
        for member, steps, kind in _unknown(values.type, own[name], name):
            if plain_type(kind) is None:
                continue
            for row in _part(parts, steps).rows():
                found.setdefault(row, []).append(member)
    return {row: tuple(members) for row, members in found.items()}


def nested_types(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Of the columns that have members."""
    return {name: kind for name, kind in types.items() if pa.types.is_nested(kind)}


def _unknown(
    given: pa.DataType, own: pa.DataType, path: str, steps: Steps = ()
) -> Iterator[tuple[Member, Steps, pa.DataType]]:
    if given == own:
        return
    if pa.types.is_struct(given) and pa.types.is_struct(own):
        known = {field.name: field.type for field in own}
        by_case = {name.casefold(): name for name in known}
        for number, field in enumerate(given):
            place, onward = f"{path}.{field.name}", (*steps, number)
            if field.name in known:
                yield from _unknown(field.type, known[field.name], place, onward)
            else:
                twin = by_case.get(field.name.casefold())
                yield (
                    Member(path=place, like=None if twin is None else f"{path}.{twin}"),
                    onward,
                    field.type,
                )
    elif pa.types.is_list(given) and pa.types.is_list(own):
        yield from _unknown(given.value_type, own.value_type, f"{path}[]", (*steps, _ELEMENTS))
    elif pa.types.is_map(given) and pa.types.is_map(own):
        yield from _unknown(given.item_type, own.item_type, f"{path}[]", (*steps, _ELEMENTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Values within a column, and of which row each is; None where row and place are one."""

    values: pa.Array
    row_of: pa.Array | None = None

    def rows(self) -> list[int]:
        """Return the rows in which something is lost if these values are."""
        places = pc.indices_nonzero(has_value(self.values))
        if self.row_of is None:
            rows: list[int] = places.to_pylist()
        else:
            rows = self.row_of.take(places).unique().to_pylist()
        return rows

    def members(self) -> "list[_Part]":
        """Return those of a struct all at once: to take one of thousands costs as much as all."""
        return [_Part(values=values, row_of=self.row_of) for values in self.values.flatten()]

    def elements(self) -> "_Part":
        """Return those of a list or a map's values."""
        parents = pc.list_parent_indices(self.values)
        rows = parents if self.row_of is None else self.row_of.take(parents)
        return _Part(values=pc.list_flatten(self.values), row_of=rows)


def _part(parts: dict[Steps, _Part], steps: Steps) -> _Part:
    """Return the values at the end of the steps; `parts` remembers what was taken on the way."""
    if steps not in parts:
        above, step = _part(parts, steps[:-1]), steps[-1]
        if step == _ELEMENTS:
            parts[steps] = above.elements()
        else:
            for number, part in enumerate(above.members()):
                parts[(*steps[:-1], number)] = part
    return parts[steps]
