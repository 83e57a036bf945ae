"""Columns of an Avro record, as a table has them."""

from typing import Any

import pyarrow as pa
from fastavro.schema import expand_schema

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


def avro_columns(schema: Any, *, debezium: bool = False) -> dict[str, pa.DataType]:
    """By name; of a change event those of its row. Null stands for a type that no table has, also of a member."""
    record: Any = expand_schema(schema)
    if debezium:
        after = next(
            (field["type"] for field in record.get("fields", ()) if field["name"] == "after"), None
        )
        record = _without_null(after)
    if not isinstance(record, dict) or record.get("type") != "record":
        return {}
    return {field["name"]: avro_type(field["type"]) for field in record["fields"]}


def avro_type(schema: Any) -> pa.DataType:
    schema = _without_null(schema)
    if isinstance(schema, str):
        return _PLAIN.get(schema, pa.null())
    if not isinstance(schema, dict):
        return pa.null()  # a union of several types
    logical = schema.get("logicalType")
    if logical == "decimal":
        return _decimal(schema)
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    kind = schema["type"]
    if kind == "array":
        return _nested(pa.list_, avro_type(schema["items"]))
    if kind == "map":
        return _nested(lambda value: pa.map_(pa.string(), value), avro_type(schema["values"]))
    if kind == "record":
        members = [(field["name"], avro_type(field["type"])) for field in schema["fields"]]
        return pa.struct(members) if members else pa.null()
    return avro_type(kind) if isinstance(kind, dict | list) else _PLAIN.get(kind, pa.null())


def _decimal(schema: dict[str, Any]) -> pa.DataType:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    return (
        pa.decimal128(precision, scale)
        if 0 < precision <= 38 and 0 <= scale <= precision
        else pa.null()
    )


def _nested(make: Any, part: pa.DataType) -> pa.DataType:
    return part if pa.types.is_null(part) else make(part)


def _without_null(schema: Any) -> Any:
    """Every column of a table may be null."""
    if not isinstance(schema, list):
        return schema
    others = [branch for branch in schema if branch != "null"]
    return others[0] if len(others) == 1 else others
