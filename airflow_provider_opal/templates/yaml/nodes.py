"""YAML text to nodes that know their place, with limits on depth and on what aliases stand for; the libraries' own have none."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from airflow_provider_opal.templates.yaml.problem import Place, YamlError, shown

MAX_DEPTH = 20
MAX_NODES = 20_000  # with all aliases written out

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # only its scanner is used


@dataclass(slots=True)
class Node:
    """A text, a list or a mapping. Aliases share nodes; `size` and `height` count what they stand for."""

    place: Place
    text: str | None = None
    items: "list[Node] | None" = None
    members: "list[tuple[Node, Node]] | None" = None
    plain: bool = False
    size: int = 1
    height: int = 1
    faults: list[tuple[Place, str]] = field(default_factory=list)


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
            raise YamlError(_place(following), "a second document begins here; take out the line '---', or use a file of its own")
        return root

    def _node(self, event: Any, depth: int) -> Node:
        place = _place(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, place)
        if depth > MAX_DEPTH:
            raise YamlError(place, f"more than {MAX_DEPTH} levels lie in each other; write it flatter")
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # open: an alias to it from within would never end
        if isinstance(event, yaml.ScalarEvent):
            node = Node(place, text=event.value, plain=not event.style)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(place, depth)
        else:
            node = self._mapping(place, depth)
        if event.tag is not None:
            node.faults.append((place, f"the tag {shown(event.tag)!r} is not allowed; write plain values, texts in quotes"))
        if node.size > MAX_NODES or node.height > MAX_DEPTH:
            raise YamlError(place, f"aliases make this larger than {MAX_NODES:,} values or {MAX_DEPTH} levels; write out less with them")
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, name: str, place: Place) -> Node:
        found = self._anchors.get(name)
        if found is None:
            fact = "stands within what it names" if name in self._anchors else f"has no anchor '&{shown(name)}' above it"
            raise YamlError(place, f"the alias '*{shown(name)}' {fact}; put the anchor first, or the text into quotes")
        return found

    def _sequence(self, place: Place, depth: int) -> Node:
        items: list[Node] = []
        node = Node(place, items=items)
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._counted(node, self._node(event, depth + 1)))
        return node

    def _mapping(self, place: Place, depth: int) -> Node:
        members: list[tuple[Node, Node]] = []
        node = Node(place, members=members)
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._counted(node, self._node(event, depth + 1))
            members.append((key, self._counted(node, self._node(next(self._events), depth + 1))))
        return node

    def _counted(self, parent: Node, child: Node) -> Node:
        parent.size += child.size
        parent.height = max(parent.height, child.height + 1)
        if parent.size > MAX_NODES:
            raise YamlError(child.place, f"there are more than {MAX_NODES:,} values, aliases written out; write less into one file")
        return child


def _place(event: Any) -> Place:
    return Place(event.start_mark.line + 1, event.start_mark.column + 1)
