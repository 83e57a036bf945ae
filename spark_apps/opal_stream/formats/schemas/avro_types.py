"""The columns of an Avro record, as a table has them."""

from typing import Any

import pyarrow as pa

from opal_stream.formats.schemas.connect import VARIABLE

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
# Without nanoseconds: a table has microseconds, so that such a column is a long
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
_WRITTEN_AS = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "uuid": ("string", "fixed"),
    "decimal": ("bytes", "fixed"),
}


def record_columns(record: Any) -> dict[str, pa.DataType]:
    """Return the columns of an expanded record, by name; none of what is not a record."""
    return {field["name"]: avro_type(field["type"]) for field in record.get("fields", ())}


def avro_type(schema: Any) -> pa.DataType:
    """Return the type of a column; null for what a table cannot have."""
    schema = _without_null(schema)
    if isinstance(schema, str):
        return _PLAIN.get(schema, pa.null())
    if not isinstance(schema, dict):
        return pa.null()  # a union of several types
    logical = logical_type(schema)
    if logical == "decimal":
        return _decimal(schema)
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    kind = schema["type"]
    if schema.get("name") == VARIABLE:
        return pa.string()  # as exact, and of any scale
    if kind == "array":
        return _nested(pa.list_, avro_type(schema["items"]))
    if kind == "map":
        return _nested(lambda value: pa.map_(pa.string(), value), avro_type(schema["values"]))
    if kind == "record":
        members = [(field["name"], avro_type(field["type"])) for field in schema["fields"]]
        return pa.struct(members) if members else pa.null()
    if isinstance(kind, dict | list):
        return avro_type(kind)
    return _PLAIN.get(kind, pa.null())


def logical_type(node: Any) -> str | None:
    """Return what a value means beyond its plain type.

    None where that is unknown, or does not fit the type: then Avro wants it to be ignored.
    """
    if not isinstance(node, dict):
        return None
    logical = node.get("logicalType")
    if not isinstance(logical, str) or node["type"] not in _WRITTEN_AS.get(logical, ()):
        return None
    if logical == "uuid" and node.get("size", 16) != 16:
        return None
    if logical == "decimal" and not _has_digits(node):
        return None
    return logical


def _has_digits(node: dict[str, Any]) -> bool:
    """Return whether a decimal says how many digits it has."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    return isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision > 0


def _decimal(schema: dict[str, Any]) -> pa.DataType:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if precision <= 38:
        return pa.decimal128(precision, scale)
    return pa.null()


def _nested(make: Any, part: pa.DataType) -> pa.DataType:
    if pa.types.is_null(part):
        return part
    return make(part)


def _without_null(schema: Any) -> Any:
    """Return a type without null, which every column of a table may be."""
    if not isinstance(schema, list):
        return schema
    others = [branch for branch in schema if branch != "null"]
    if len(others) == 1:
        return others[0]
    return others
