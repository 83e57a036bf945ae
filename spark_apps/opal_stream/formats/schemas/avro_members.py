"""Members that records have inside nested columns and the table lacks, in any branch of a union."""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from opal_stream.formats.schemas.avro_schema import AvroSchema, Node, base_type, branches, is_record
from opal_stream.formats.schemas.new_columns import Member


def members_of_record(
    schema: AvroSchema, record: Node, own: Mapping[str, pa.DataType]
) -> list[Member]:
    """Return the members that a record has and the table's columns lack."""
    fields = schema.fields(record)
    members: list[Member] = []
    for name, kind in own.items():
        if name in fields and pa.types.is_nested(kind):
            members += _unknown(schema, fields[name], kind, name)
    return list(dict.fromkeys(members))


def _unknown(schema: AvroSchema, node: Node, kind: pa.DataType, path: str) -> Iterator[Member]:
    """Yield the members of a type of Avro that the column at `path` lacks.

    `kind` is the type of the column.
    """
    for part in branches(node):
        branch = schema.resolved(part)
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
        if name in known:
            yield from _unknown(schema, node, known[name], f"{path}.{name}")
            continue
        twin = by_case.get(name.casefold())
        like = None if twin is None else f"{path}.{twin}"
        yield Member(path=f"{path}.{name}", like=like)
