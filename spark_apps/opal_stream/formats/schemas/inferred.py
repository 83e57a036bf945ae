"""Types of JSON without a schema: whole numbers are longs, others doubles, text stays text, whatever it looks like.

A member that was only null so far has no type, and is no column yet.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.formats.schemas.new_columns import NewColumns


def inferred_columns(members: Mapping[str, pa.Array]) -> NewColumns | None:
    """Of the values of members that the table lacks."""
    fields: list[pa.Field] = []
    found: dict[int, list[str]] = {}
    for name, values in members.items():
        kind = plain_type(values.type)
        positions = [] if kind is None else pc.indices_nonzero(has_value(values)).to_pylist()
        if not positions:
            continue
        fields.append(pa.field(name, kind))
        for position in positions:
            found.setdefault(position, []).append(name)
    if not fields:
        return None
    names = {position: tuple(names) for position, names in found.items()}
    return NewColumns(columns=pa.schema(fields), found=names)


def has_value(values: pa.Array) -> pa.Array:
    """Where something is lost if the values are: objects and lists that are empty, or hold only such, hold nothing."""
    if pa.types.is_struct(values.type):
        holds = pa.array([False] * len(values))
        for number in range(values.type.num_fields):
            holds = pc.or_(holds, has_value(pc.struct_field(values, number)))
        return holds
    if pa.types.is_list(values.type):
        holding = pc.list_parent_indices(values).filter(has_value(pc.list_flatten(values)))
        return pc.is_in(pa.array(range(len(values)), holding.type), value_set=holding)
    return pc.is_valid(values)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """As a table has it. Times are read into text: what looks like one may be none in the next message."""
    if pa.types.is_null(kind):
        return None
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        element = plain_type(kind.value_type)
        return None if element is None else pa.list_(element)
    if pa.types.is_struct(kind):
        members = [
            (field.name, member) for field in kind if (member := plain_type(field.type)) is not None
        ]
        return pa.struct(members) if members else None
    return kind
