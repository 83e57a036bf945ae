"""A schema of Avro as a registry gives it, to read the values that it wrote.

Values are read as they are written: without logical types, and with a mark where a union chooses
among several types. What a value means is then decided by its own schema, not by what Python makes
of it.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
from fastavro import _read_py
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException

from opal_stream.formats.depth import check_depth
from opal_stream.formats.references import Reference

Node = Any  # a part of a schema: the name of a plain type, an object, or the list of a union
_PLAIN = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_RECORDS = ("record", "error")
_MARK, _BRANCH = "opal-branch", "branch"
# Types within one another: the 60 levels that a column may have (opal_lake/definition/schema.py),
# in the records of a row and of a change event. Readers recurse, and carry 150 levels
MAX_TYPES = 64
# Levels of the schema's text: a nullable record has four a type, a type in an object of its own one
# more
_MAX_TEXT_DEPTH = 5 * MAX_TYPES
# Types of a schema where each name stands for all of its definition: each takes time and memory
_MAX_PARTS = 100_000
# Members of a type or a field that do not matter to who reads by the schema of the writer
_NOT_WRITTEN = {"doc", "aliases", "default", "order", "connect.doc", "connect.default"}
_NOT_AVRO = (SchemaParseException, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _marked(
    value: Any, written: dict[Any, Any] | None, _: dict[Any, Any] | None
) -> tuple[str, Any]:
    return (written or {})[_BRANCH], value


# fastavro itself marks the named types of a union, and others only by a logical type
for _plain in (*_PLAIN, "array", "map"):
    LOGICAL_READERS[f"{_plain}-{_MARK}"] = _marked


class AvroSchema:
    """A schema with the types of its references, to read values by.

    Raises ValueError if the text is not a schema of Avro, or nests types too deep to be walked.
    """

    def __init__(self, text: str, references: Mapping[Reference, str] | None = None) -> None:
        self.text = text
        self.references = dict(references or {})
        self._tags: dict[str, str] = {}
        self._named: dict[str, Node] = {}
        self._fields: dict[int, dict[str, Node]] = {}
        self._is_recursive = False
        self._has_named_choices = False
        self.root: Node = _expanded(text, self.references)
        try:
            self._written = fastavro.parse_schema(self._readable(self.root))
        except _NOT_AVRO as error:
            raise _not_avro(error) from error
        self.is_record = is_record(self.root)
        self._options: dict[str, Any] = {}
        # Only where a union has several named types: marking them costs a tenth of reading
        if self._has_named_choices:
            self._options = {"return_named_type": True, "return_named_type_override": True}
        self._read = fastavro.schemaless_reader
        # The compiled reader has no limit of depth: a message of 5,000 levels ends the process
        if self._is_recursive:
            self._read = _read_py.schemaless_reader

    def __reduce__(self) -> tuple[type["AvroSchema"], tuple[str, dict[Reference, str]]]:
        return AvroSchema, (self.text, self.references)

    def as_field(self, name: str) -> "AvroSchema":
        """Return the schema of a record with one field of this type, written the same."""
        only = {"name": name, "type": json.loads(self.text)}
        record = {"type": "record", "name": f"opal_{name}", "fields": [only]}
        return AvroSchema(json.dumps(record), self.references)

    def read(self, value: bytes, start: int) -> Any:
        """Return what a message holds from a byte on; `chosen` says of which type it is."""
        body = io.BytesIO(value)
        body.seek(start)
        return self._read(body, self._written, None, **self._options)

    def resolved(self, node: Node) -> Node:
        """Return the definition that a name within itself stands for."""
        if not isinstance(node, str):
            return node
        return self._named.get(self._tags.get(node, ""), node)

    def chosen(self, node: Node, value: Any) -> tuple[Node, Any]:
        """Return the type that a value is written as, and the value without its mark."""
        if not isinstance(node, list):
            return self.resolved(node), value
        if value is None:
            return "null", None
        others = branches(node)
        if len(others) == 1:
            return self.chosen(others[0], value)
        if not isinstance(value, tuple):  # the only named type of the union has no mark
            named = next(branch for branch in map(self.resolved, others) if is_named(branch))
            return named, value
        mark, inner = value
        if mark.isdigit():
            branch = node[int(mark)]
        else:
            branch = self._named[mark]
        return self.chosen(branch, inner)

    def fields(self, record: Node) -> dict[str, Node]:
        """Return the types of a record's fields, by name; none of what is not a record."""
        if not is_record(record):
            return {}
        if id(record) not in self._fields:
            self._fields[id(record)] = {field["name"]: field["type"] for field in record["fields"]}
        return self._fields[id(record)]

    def _readable(self, node: Node) -> Node:
        """Return a type for fastavro: without logical types, with marks and new names.

        New names keep types of one name in several namespaces apart.
        """
        if isinstance(node, list):
            if len(branches(node)) <= 1:
                return [self._readable(branch) for branch in node]
            readable = [self._branch(number, branch) for number, branch in enumerate(node)]
            named = [branch for branch in map(self.resolved, node) if is_named(branch)]
            self._has_named_choices |= len(named) > 1
            return readable
        if isinstance(node, str):
            self._is_recursive |= node not in _PLAIN
            if node in _PLAIN:
                return node
            return self._tags[node]
        kind = node["type"]
        if kind == "array":
            return {"type": "array", "items": self._readable(node["items"])}
        if kind == "map":
            return {"type": "map", "values": self._readable(node["values"])}
        if is_named(node):
            return self._definition(node)
        return self._readable(kind)

    def _branch(self, number: int, node: Node) -> Node:
        readable = self._readable(node)
        if readable == "null" or is_named(self.resolved(node)):
            return readable
        parts = readable if isinstance(readable, dict) else {"type": readable}
        return {**parts, "logicalType": _MARK, _BRANCH: str(number)}

    def _definition(self, node: Node) -> Node:
        """Return a named type, the first time as a whole, afterwards by its name."""
        name = node["name"]
        if name in self._tags:
            return self._tags[name]
        tag = f"opal.type{len(self._tags)}"
        self._tags[name], self._named[tag] = tag, node
        readable = {"type": node["type"], "name": tag}
        if is_record(node):
            fields = [
                {"name": field["name"], "type": self._readable(field["type"])}
                for field in node["fields"]
            ]
            return {**readable, "fields": fields}
        member = "symbols" if node["type"] == "enum" else "size"
        return {**readable, member: node[member]}


def _expanded(text: str, references: Mapping[Reference, str]) -> Node:
    """Return a schema with definitions in place of names, except of recursive ones."""
    defined: dict[str, tuple[Node, str]] = {}  # by name: the type, and which schema has it
    root: Node = None
    itself = "the schema itself"
    parts = [(str(reference), part) for reference, part in references.items()]
    for origin, part in [*parts, (itself, text)]:
        check_depth(part.encode(), "the registry's schema", _MAX_TEXT_DEPTH)
        named = {name: node for name, (node, _) in defined.items()}
        try:
            root = fastavro.parse_schema(json.loads(part), named, expand=True, _write_hint=False)
        except _NOT_AVRO as error:
            which = "" if origin == itself else f" ({origin}, which it refers to)"
            raise _not_avro(error, which) from error
        _check_types(root)
        for name, node in named.items():
            first, first_origin = defined.setdefault(name, (node, origin))
            # fastavro takes the later one, so that a message would be read by the wrong type
            if not _is_written_alike(first, node, set()):
                raise ValueError(
                    f"the registry's schema has two types {name!r} that are not the same: of "
                    f"{first_origin} and of {origin}; let all refer to one version of it"
                )
    return root


def _is_written_alike(first: Node, second: Node, compared: set[tuple[int, int]]) -> bool:
    """Return whether values of two types are written the same and mean the same.

    A definition that many names stand for is one object: each pair of objects is compared once.
    """
    if first is second or (id(first), id(second)) in compared:
        return True
    if isinstance(first, list) and isinstance(second, list):
        pairs = list(zip(first, second, strict=False))
        is_alike = len(first) == len(second)
    elif isinstance(first, dict) and isinstance(second, dict):
        names = first.keys() - _NOT_WRITTEN
        pairs = [(first[name], second.get(name)) for name in names]
        is_alike = names == second.keys() - _NOT_WRITTEN
    else:
        return bool(first == second)
    # If the pair differs, this comparison returns False: a later one may take it as alike
    compared.add((id(first), id(second)))
    return is_alike and all(_is_written_alike(*pair, compared) for pair in pairs)


def _not_avro(error: Exception, which: str = "") -> ValueError:
    reason = (str(error) or type(error).__name__).splitlines()[0][:200]
    return ValueError(f"the registry's schema{which} is not one of Avro: {reason}")


def _check_types(root: Node) -> None:
    """Raise ValueError for an expanded schema with too many types, or too deep ones.

    A definition that many names stand for is one object: it is measured once, and counted each
    time. Not recursive, as names may lead through thousands of definitions.
    """
    measured: dict[int, tuple[int, int]] = {}  # levels and types, by the id() of a node
    pending = [root]
    while pending:
        node = pending[-1]
        parts = _parts(node)
        unknown = [part for part in parts if id(part) not in measured]
        if unknown:
            pending += unknown  # measured first, then the node is met again
            continue
        pending.pop()
        levels = max((measured[id(part)][0] for part in parts), default=0) + _is_level(node)
        count = 1 + sum(measured[id(part)][1] for part in parts)
        measured[id(node)] = levels, count
    levels, count = measured[id(root)]
    if levels > MAX_TYPES:
        raise ValueError(
            f"the registry's schema nests {levels:,} types, more than the limit of {MAX_TYPES}: "
            "records, arrays, maps and unions of several types count. Register a flatter schema"
        )
    if count > _MAX_PARTS:
        raise ValueError(
            f"the registry's schema has {count:,} types where each name stands for its definition, "
            f"more than the limit of {_MAX_PARTS:,}. Register a schema with fewer types"
        )


def _parts(node: Node) -> list[Node]:
    """Return the types within a type; a name within its own definition has none."""
    if isinstance(node, list):
        return node
    if not isinstance(node, dict):
        return []
    if is_record(node):
        return [field["type"] for field in node["fields"]]
    inner = {"array": "items", "map": "values"}.get(_name_of(node["type"]), "type")
    return [node[inner]]


def _name_of(kind: Node) -> str:
    return kind if isinstance(kind, str) else ""


def _is_level(node: Node) -> bool:
    """Return whether a type is a level of nesting; a union with null alone is not."""
    if isinstance(node, list):
        return len(branches(node)) > 1
    if not isinstance(node, dict):
        return False
    kind = node["type"]
    return is_record(node) or not isinstance(kind, str) or kind in ("array", "map")


def branches(node: Node) -> list[Node]:
    """Return the types that a value may have, but for null."""
    nodes = node if isinstance(node, list) else [node]
    return [branch for branch in nodes if branch not in ("null", {"type": "null"})]


def is_record(node: Node) -> bool:
    return isinstance(node, dict) and node.get("type") in _RECORDS


def is_named(node: Node) -> bool:
    return is_record(node) or (isinstance(node, dict) and node.get("type") in ("enum", "fixed"))


def base_type(node: Node) -> str:
    """Return the type as which a value is written, without what it means."""
    while isinstance(node, dict):
        node = node["type"]
    return node if isinstance(node, str) else "union"
