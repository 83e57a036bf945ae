"""What the schemas of a registry have and the table lacks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from opal_stream.formats.schemas.members import members_of_types
from opal_stream.formats.schemas.new_columns import Known, Member, NewColumns, is_new, merged


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOfSchema:
    """Columns, and members of nested ones."""

    columns: pa.Schema
    members: tuple[Member, ...]


def new_of_schema(
    types: Mapping[str, pa.DataType], own: Mapping[str, pa.DataType], known: Known
) -> NewOfSchema:
    """`own` are the columns that the table has of the value; it has others of the message."""
    columns = pa.schema([(name, kind) for name, kind in types.items() if is_new(name, known)])
    return NewOfSchema(columns=columns, members=members_of_types(types, own))


def new_of_schemas(
    new_of: Callable[[bytes], NewOfSchema], heads: Mapping[int, bytes]
) -> NewColumns | None:
    """Of values that name their schema: all that it has and the table lacks, whether a value has it or not."""
    new = {head: new_of(head) for head in set(heads.values())}
    places = {
        head: [position for position, other in heads.items() if other == head] for head in new
    }
    return merged(
        NewColumns(
            columns=found.columns,
            found=dict.fromkeys(places[head] if found.columns else (), tuple(found.columns.names)),
            members=dict.fromkeys(places[head] if found.members else (), found.members),
        )
        for head, found in sorted(new.items(), key=lambda item: item[0])
        if found.columns or found.members
    )
