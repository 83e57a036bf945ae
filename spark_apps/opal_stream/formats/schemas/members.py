"""Members that messages have inside nested columns and the table lacks. It can get new columns, but a nested one gets no more members."""

from collections.abc import Iterator, Mapping

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
    found: dict[int, tuple[Member, ...]] = {}
    for name, values in columns.items():
        for member, steps, kind in _unknown(values.type, own[name], name):
            if plain_type(kind) is not None:
                found |= {row: (*found.get(row, ()), member) for row in _rows_with(values, steps)}
    return found


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


def _rows_with(values: pa.Array, steps: Steps) -> list[int]:
    rows = None
    for step in steps:
        if step == _ELEMENTS:
            parents = pc.list_parent_indices(values)
            rows = parents if rows is None else rows.take(parents)
            values = pc.list_flatten(values)
        else:
            values = pc.struct_field(values, step)
    there = pc.indices_nonzero(has_value(values))
    found: list[int] = (there if rows is None else rows.take(there).unique()).to_pylist()
    return found
