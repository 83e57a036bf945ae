"""Types of JSON without a schema: whole numbers are longs, others doubles, and text stays text.

A member that was only null so far has no type, and is not a column yet.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from opal_stream.formats.schemas.new_columns import NewColumns


def inferred_columns(members: Mapping[str, pa.Array]) -> NewColumns | None:
    """Return the columns of members that the table lacks, by their values."""
    fields: list[pa.Field] = []
    names: dict[int, list[str]] = {}
    for name, values in members.items():
        kind = plain_type(values.type)
        if kind is None:
            continue
        positions = pc.indices_nonzero(has_value(values)).to_pylist()
        if not positions:
            continue
        fields.append(pa.field(name, kind))
        for position in positions:
            names.setdefault(position, []).append(name)
    if not fields:
        return None
    by_position = {position: tuple(own) for position, own in names.items()}
    return NewColumns(columns=pa.schema(fields), names=by_position)


def has_value(values: pa.Array) -> pa.Array:
    """Return which values would be lost if they were left out.

    Objects and lists that are empty, or hold only such ones, hold nothing.
    """
    if pa.types.is_struct(values.type):
        holds = pa.array([False] * len(values))
        for number in range(values.type.num_fields):
            holds = pc.or_(holds, has_value(pc.struct_field(values, number)))
        return holds
    if pa.types.is_list(values.type):
        elements_hold = has_value(pc.list_flatten(values))
        holding = pc.list_parent_indices(values).filter(elements_hold)
        return pc.is_in(pa.array(range(len(values)), holding.type), value_set=holding)
    return pc.is_valid(values)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return a type as a table has it; None if it has no value.

    Times are read as text: the next message may have a text that is not a time.
    """
    if pa.types.is_null(kind):
        return None
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        element = plain_type(kind.value_type)
        if element is None:
            return None
        return pa.list_(element)
    if pa.types.is_struct(kind):
        members: list[pa.Field] = []
        for field in kind:
            member = plain_type(field.type)
            if member is not None:
                members.append(pa.field(field.name, member))
        if members:
            return pa.struct(members)
        return None
    return kind
