"""Members that records have inside nested columns and the table lacks, whichever branch of a union they are in."""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from opal_stream.formats.schemas.avro_schema import AvroSchema, Node, base_type, branches, is_record
from opal_stream.formats.schemas.new_columns import Member


def members_of_record(
    schema: AvroSchema, record: Node, own: Mapping[str, pa.DataType]
) -> list[Member]:
    """Return what a record has of the columns that the table has."""
    fields = schema.fields(record)
    members = [
        member
        for name, kind in own.items()
        if name in fields and pa.types.is_nested(kind)
        for member in _unknown(schema, fields[name], kind, name)
    ]
    return list(dict.fromkeys(members))


def _unknown(schema: AvroSchema, node: Node, kind: pa.DataType, path: str) -> Iterator[Member]:
    for branch in map(schema.resolved, branches(node)):
        base = base_type(branch)
        if is_record(branch) and pa.types.is_struct(kind):
            yield from _unknown_fields(schema, branch, kind, path)
        elif base == "array" and pa.types.is_list(kind):
            yield from _unknown(schema, branch["items"], kind.value_type, f"{path}[]")
        elif base == "map" and pa.types.is_map(kind):
            yield from _unknown(schema, branch["values"], kind.item_type, f"{path}[]")


def _unknown_fields(
    schema: AvroSchema, record: Node, kind: pa.DataType, path: str
) -> Iterator[Member]:
    known = {field.name: field.type for field in kind}
    by_case = {name.casefold(): name for name in known}
    for name, node in schema.fields(record).items():
        twin = by_case.get(name.casefold())
        if name in known:
            yield from _unknown(schema, node, known[name], f"{path}.{name}")
        else:
            like = None if twin is None else f"{path}.{twin}"
            yield Member(path=f"{path}.{name}", like=like)
