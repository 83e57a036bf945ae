"""New columns and members that the schemas of a registry would add to a table."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from opal_stream.formats.schemas.new_columns import Known, Member, NewColumns, is_new, widest

S = TypeVar("S")
Types = Mapping[str, pa.DataType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """The columns and members that a schema has and the table lacks."""

    columns: pa.Schema
    members: tuple[Member, ...]


def find_additions(
    types: Types, known: Known, members: Iterable[Member], versions: Callable[[], Iterable[Types]]
) -> Additions:
    """Return what a schema has and a table with the `known` columns lacks.

    `versions` returns the types of all versions of the schema, the newest one first. A new column
    has the widest of its types, or the newest one if none holds the others: so its type does not
    depend on which message comes first.
    """
    new = {name: kind for name, kind in types.items() if is_new(name, known)}
    if new:  # otherwise the registry need not be asked for the versions
        others = list(versions())
        new = {name: widest([*_types_of(name, others), kind]) for name, kind in new.items()}
    return Additions(columns=pa.schema(list(new.items())), members=tuple(members))


def _types_of(name: str, versions: Iterable[Types]) -> list[pa.DataType]:
    return [types[name] for types in versions if name in types]


def merge_additions(
    additions_of: Callable[[S], Additions], schemas: Mapping[int, S]
) -> NewColumns | None:
    """Merge what the schemas of a batch have and the table lacks; None if nothing.

    `schemas` maps the position of each message to its schema, in the order of positions: of two
    types of a column, the first one counts. The message itself may leave a column out.
    """
    columns: dict[str, pa.DataType] = {}
    names: dict[int, tuple[str, ...]] = {}
    members: dict[int, tuple[Member, ...]] = {}
    types: dict[int, pa.Schema] = {}
    for position, schema in schemas.items():
        new = additions_of(schema)
        if new.columns.names:
            names[position] = tuple(new.columns.names)
            types[position] = new.columns
            for column in new.columns:
                columns.setdefault(column.name, column.type)
        if new.members:
            members[position] = new.members
    if not names and not members:
        return None
    return NewColumns(
        columns=pa.schema(list(columns.items())),
        names=names,
        members=members,
        types=types,
        is_of_schemas=True,
    )
