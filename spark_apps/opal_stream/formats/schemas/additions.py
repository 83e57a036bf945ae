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
    """Return the columns and members of a schema that a table lacks.

    `known` are the table's columns, and `members` the members that its nested columns lack.
    `versions` returns the types of all versions of the schema, the newest one first. A new column
    has the widest of its types, or the newest one if none holds the others: so its type does not
    depend on which message comes first.
    """
    new_names = [name for name in types if is_new(name, known)]
    columns: list[tuple[str, pa.DataType]] = []
    if new_names:  # otherwise the registry need not be asked for the versions
        all_versions = list(versions())
        for name in new_names:
            kinds = [version[name] for version in all_versions if name in version]
            columns.append((name, widest([*kinds, types[name]])))
    return Additions(columns=pa.schema(columns), members=tuple(members))


def merge_additions(
    additions_of: Callable[[S], Additions], schemas: Mapping[int, S]
) -> NewColumns | None:
    """Merge the additions of a batch's schemas; None if there are none.

    `schemas` maps the position of each message to its schema, in the order of positions: of two
    types of a column, the first one counts. A message counts with all columns of its schema, even
    if it leaves one out.
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
