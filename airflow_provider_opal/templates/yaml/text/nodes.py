"""YAML text to nodes with positions, with limits on depth and on the expansion of aliases, which the libraries lack."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from airflow_provider_opal.templates.yaml.text.problem import Position, YamlError, shown

MAX_DEPTH = 20
MAX_NODES = 20_000  # with all aliases written out

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # only its scanner is used


@dataclass(slots=True)
class Node:
    """A text, a list or a mapping. Aliases share nodes; `size` and `height` count what they stand for."""

    position: Position
    text: str | None = None
    items: "list[Node] | None" = None
    members: "list[tuple[Node, Node]] | None" = None
    plain: bool = False
    size: int = 1
    height: int = 1
    faults: list[tuple[Position, str]] = field(default_factory=list)


def read_nodes(text: str) -> Node | None:
    """The nodes of the one document; None when there is nothing in it."""
    return _Builder(text).document()


class _Builder:
    """Nodes of the scanner's events."""

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
                "a second document begins here; take out the line '---', or use a file of its own",
            )
        return root

    def _node(self, event: Any, depth: int) -> Node:
        position = _position(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, position)
        if depth > MAX_DEPTH:
            raise YamlError(position, f"more than {MAX_DEPTH} levels are nested; write it flatter")
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # open: an alias to it from within would never end
        if isinstance(event, yaml.ScalarEvent):
            node = Node(position, text=event.value, plain=not event.style)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(position, depth)
        else:
            node = self._mapping(position, depth)
        if event.tag is not None:
            node.faults.append(
                (
                    position,
                    f"the tag {shown(event.tag)!r} is not allowed; write plain values, texts in quotes",
                )
            )
        if node.size > MAX_NODES or node.height > MAX_DEPTH:
            raise YamlError(
                position,
                f"aliases make this larger than {MAX_NODES:,} values or {MAX_DEPTH} levels; use fewer aliases",
            )
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, name: str, position: Position) -> Node:
        node = self._anchors.get(name)
        if node is None:
            fact = (
                "is inside of the value that it refers to"
                if name in self._anchors
                else f"has no anchor '&{shown(name)}' above it"
            )
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
            members.append((key, self._counted(node, self._node(next(self._events), depth + 1))))
        return node

    def _counted(self, parent: Node, child: Node) -> Node:
        parent.size += child.size
        parent.height = max(parent.height, child.height + 1)
        if parent.size > MAX_NODES:
            raise YamlError(
                child.position,
                f"there are more than {MAX_NODES:,} values, aliases written out; write less into one file",
            )
        return child


def _position(event: Any) -> Position:
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)
