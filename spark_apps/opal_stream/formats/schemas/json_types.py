"""Columns of JSON, as a JSON Schema of a registry says them."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

_PLAIN = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


def json_schema_columns(text: str, *, debezium: bool = False) -> dict[str, pa.DataType]:
    """By name; of a change event those of its row. Null stands for a type that no table has, also of a member."""
    root = json.loads(text)
    if not isinstance(root, dict):
        return {}
    row = _resolved(root, root)
    if debezium:
        row = _resolved(_members(row).get("after", {}), root)
    return {name: _type(member, root) for name, member in _members(row).items()}


def _type(schema: Any, root: Mapping[str, Any], above: tuple[int, ...] = ()) -> pa.DataType:
    """`above` are the schemas that this one is a part of: none ends if it is a part of itself."""
    schema = _resolved(schema, root)
    if not isinstance(schema, dict) or id(schema) in above:
        return pa.null()
    within = (*above, id(schema))
    kind = schema.get("type")
    if isinstance(kind, list):
        others = [name for name in kind if name != "null"]
        kind = others[0] if len(others) == 1 else None
    if kind == "array":
        element = _type(schema.get("items"), root, within)
        return element if pa.types.is_null(element) else pa.list_(element)
    if kind == "object":
        members = [(name, _type(member, root, within)) for name, member in _members(schema).items()]
        return pa.struct(members) if members else pa.null()
    if kind == "string":
        return _FORMATS.get(str(schema.get("format")), pa.string()) if not above else pa.string()
    return _PLAIN.get(str(kind), pa.null())


def _resolved(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Without references within the schema, and without the choice to be null."""
    if not isinstance(schema, dict) or depth > 20:
        return schema
    if str(schema.get("$ref", "")).startswith("#/"):
        target: Any = root
        for step in schema["$ref"].split("/")[1:]:
            target = target.get(step) if isinstance(target, dict) else None
        return _resolved(target, root, depth + 1)
    for choice in ("oneOf", "anyOf"):
        others = [branch for branch in schema.get(choice, ()) if branch != {"type": "null"}]
        if len(others) == 1:
            return _resolved(others[0], root, depth + 1)
    return schema


def _members(schema: Any) -> dict[str, Any]:
    members = schema.get("properties") if isinstance(schema, dict) else None
    return members if isinstance(members, dict) else {}
