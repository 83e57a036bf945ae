"""YAML text to nodes with positions.

Depth and the expansion of aliases have limits here, which the libraries lack.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from airflow_provider_opal.templates.yaml.text.problem import Position, YamlError, shown

MAX_DEPTH = 20
MAX_NODES = 20_000  # with all aliases expanded

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # only its scanner is used


@dataclass(slots=True)
class Node:
    """A text, a list or a mapping.

    Aliases share nodes; `size` and `height` count them with their aliases expanded.
    """

    position: Position
    text: str | None = None
    items: "list[Node] | None" = None
    members: "list[tuple[Node, Node]] | None" = None
    plain: bool = False
    size: int = 1
    height: int = 1
    faults: list[tuple[Position, str]] = field(default_factory=list)


def read_nodes(text: str) -> Node | None:
    """Return the root node of the only document, or None if the document is empty."""
    return _Builder(text).document()


class _Builder:
    """A builder of nodes from the scanner's events."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_Loader))
        self._anchors: dict[str, Node | None] = {}

    def document(self) -> Node | None:
        next(self._events)  # start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        root = self._node(next(self._events), 1)
        next(self._events)  # end of the document
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise YamlError(
                _position(following),
                "a second document begins here; remove the line '---', or use another file",
            )
        return root

    def _node(self, event: Any, depth: int) -> Node:
        position = _position(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, position)
        if depth > MAX_DEPTH:
            raise YamlError(position, f"more than {MAX_DEPTH} levels are nested; write it flatter")
        if event.anchor is not None:
            # Not yet complete: an alias to it from within would never end
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = Node(position, text=event.value, plain=not event.style)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(position, depth)
        else:
            node = self._mapping(position, depth)
        if event.tag is not None:
            tag = shown(event.tag)
            what = f"the tag {tag!r} is not allowed; write plain values, texts in quotes"
            node.faults.append((position, what))
        if node.size > MAX_NODES or node.height > MAX_DEPTH:
            raise YamlError(
                position,
                f"aliases make this larger than {MAX_NODES:,} values or {MAX_DEPTH} levels; "
                "use fewer aliases",
            )
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, name: str, position: Position) -> Node:
        node = self._anchors.get(name)
        if node is None:
            fact = f"has no anchor '&{shown(name)}' above it"
            if name in self._anchors:
                fact = "is inside of the value that it refers to"
            raise YamlError(
                position,
                f"the alias '*{shown(name)}' {fact}; put the anchor first, or the text into quotes",
            )
        return node

    def _sequence(self, position: Position, depth: int) -> Node:
        items: list[Node] = []
        node = Node(position, items=items)
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._counted(node, self._node(event, depth + 1)))
        return node

    def _mapping(self, position: Position, depth: int) -> Node:
        members: list[tuple[Node, Node]] = []
        node = Node(position, members=members)
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._counted(node, self._node(event, depth + 1))
            value = self._counted(node, self._node(next(self._events), depth + 1))
            members.append((key, value))
        return node

    def _counted(self, parent: Node, child: Node) -> Node:
        """Add a child to the counts of its parent, and return it."""
        parent.size += child.size
        parent.height = max(parent.height, child.height + 1)
        if parent.size > MAX_NODES:
            raise YamlError(
                child.position,
                f"the file has more than {MAX_NODES:,} values, aliases expanded; "
                "write less into one file",
            )
        return child


def _position(event: Any) -> Position:
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)
