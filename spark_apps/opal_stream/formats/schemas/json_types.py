"""Columns of JSON, as a JSON Schema of a registry says them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

_PLAIN = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_DEEPEST = 50
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


def json_schema_columns(text: str, *, debezium: bool = False) -> dict[str, pa.DataType]:
    """By name; of a change event those of its row. Null stands for a type that no table has, also of a member."""
    try:
        root = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the registry's schema is not JSON: {error}") from error
    if not isinstance(root, dict):
        return {}
    row = _resolved(root, root)
    if debezium:
        row = _resolved(_members(row).get("after", {}), root)
    types = _Types(root=root)
    return {name: types.of(member) for name, member in _members(row).items()}


@dataclass(slots=True, kw_only=True)
class _Types:
    """Of one schema and its parts, each of which is looked at once, however often it is named."""

    root: Mapping[str, Any]
    known: dict[int, pa.DataType] = field(default_factory=dict)

    def of(self, schema: Any, above: tuple[int, ...] = ()) -> pa.DataType:
        """`above` are the schemas that this one is a part of: none ends if it is a part of itself."""
        schema = _resolved(schema, self.root)
        if not isinstance(schema, dict) or id(schema) in above or len(above) > _DEEPEST:
            return pa.null()
        kind = _kind(schema)
        if kind == "string":
            return pa.string() if above else _FORMATS.get(str(schema.get("format")), pa.string())
        if kind not in ("array", "object"):
            return _PLAIN.get(str(kind), pa.null())
        if id(schema) not in self.known:
            self.known[id(schema)] = self._nested(schema, kind, (*above, id(schema)))
        return self.known[id(schema)]

    def _nested(self, schema: dict[str, Any], kind: str, within: tuple[int, ...]) -> pa.DataType:
        if kind == "array":
            element = self.of(schema.get("items"), within)
            return element if pa.types.is_null(element) else pa.list_(element)
        members = [(name, self.of(member, within)) for name, member in _members(schema).items()]
        return pa.struct(members) if members else pa.null()


def _kind(schema: Mapping[str, Any]) -> Any:
    """Its type, without the choice to be null."""
    kind = schema.get("type")
    if isinstance(kind, list):
        others = [name for name in kind if name != "null"]
        return others[0] if len(others) == 1 else None
    return kind


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
