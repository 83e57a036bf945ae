"""Columns of JSON, by the JSON Schema of a registry."""

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
_MAX_LEVELS = 50
_MAX_REFERENCES = 20  # one after the other: a reference may lead back to itself
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


def json_schema_columns(text: str, *, debezium: bool = False) -> dict[str, pa.DataType]:
    """Return the columns of a schema by name; of a change event those of its row.

    Null stands for a type that no table has, also of a member.
    """
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
    """The types of one schema and its parts, each of which is read once."""

    root: Mapping[str, Any]
    known: dict[int, pa.DataType] = field(default_factory=dict)

    def of(self, schema: Any, above: tuple[int, ...] = ()) -> pa.DataType:
        """Return the type of a schema; null if it is a part of itself.

        `above` are the ids of the schemas that it is a part of.
        """
        schema = _resolved(schema, self.root)
        if not isinstance(schema, dict) or id(schema) in above or len(above) > _MAX_LEVELS:
            return pa.null()
        kind = _kind(schema)
        if kind == "string":
            if above:  # members have no formats: their times stay text
                return pa.string()
            return _FORMATS.get(str(schema.get("format")), pa.string())
        if kind not in ("array", "object"):
            return _PLAIN.get(str(kind), pa.null())
        if id(schema) not in self.known:
            self.known[id(schema)] = self._nested(schema, kind, (*above, id(schema)))
        return self.known[id(schema)]

    def _nested(self, schema: dict[str, Any], kind: str, within: tuple[int, ...]) -> pa.DataType:
        if kind == "array":
            element = self.of(schema.get("items"), within)
            if pa.types.is_null(element):
                return element
            return pa.list_(element)
        members = [(name, self.of(member, within)) for name, member in _members(schema).items()]
        if members:
            return pa.struct(members)
        return pa.null()


def _kind(schema: Mapping[str, Any]) -> Any:
    """Return the type of a schema, without the choice to be null."""
    kind = schema.get("type")
    if not isinstance(kind, list):
        return kind
    others = [name for name in kind if name != "null"]
    if len(others) == 1:
        return others[0]
    return None


def _resolved(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a schema without references, and without the choice to be null."""
    if not isinstance(schema, dict) or depth > _MAX_REFERENCES:
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
