"""What the schemas of a registry have and the table lacks."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from opal_stream.formats.schemas.new_columns import Known, Member, NewColumns, is_new, widest

S = TypeVar("S")
Types = Mapping[str, pa.DataType]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOfSchema:
    """Columns, and members of nested ones."""

    columns: pa.Schema
    members: tuple[Member, ...]


def new_of_schema(
    types: Types, known: Known, members: Iterable[Member], versions: Callable[[], Iterable[Types]]
) -> NewOfSchema:
    """Return what a table lacks that knows these columns.

    `versions` are the types of all versions of the schema, the newest one first. A new column has the widest of its types, or the newest
    one's: so it does not depend on which of its messages comes first.
    """
    new = {name: kind for name, kind in types.items() if is_new(name, known)}
    if new:
        others = list(versions())
        new = {name: widest([*_types_of(name, others), kind]) for name, kind in new.items()}
    return NewOfSchema(columns=pa.schema(list(new.items())), members=tuple(members))


def _types_of(name: str, versions: Iterable[Types]) -> list[pa.DataType]:
    return [types[name] for types in versions if name in types]


def new_of_schemas(
    new_of: Callable[[S], NewOfSchema], schemas: Mapping[int, S]
) -> NewColumns | None:
    """Of values, in the order of their positions: all that their schemas have and the table lacks, whether a value has it or not.

    Of two types of a column that of the first value counts.
    """
    columns: dict[str, pa.DataType] = {}
    found: dict[int, tuple[str, ...]] = {}
    members: dict[int, tuple[Member, ...]] = {}
    types: dict[int, pa.Schema] = {}
    for position, schema in schemas.items():
        new = new_of(schema)
        if new.columns.names:
            found[position] = tuple(new.columns.names)
            types[position] = new.columns
            for column in new.columns:
                columns.setdefault(column.name, column.type)
        if new.members:
            members[position] = new.members
    if not found and not members:
        return None
    return NewColumns(
        columns=pa.schema(list(columns.items())),
        found=found,
        members=members,
        types=types,
        is_of_schemas=True,
    )
