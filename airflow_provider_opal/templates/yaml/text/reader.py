"""Text of a YAML file to plain values, each with its position.

Values have the types of YAML 1.2, which editors use too: `yes`, `no`, `on`, `off`, dates and
`12:30:00` are texts, whereas Python's loaders convert them. Tags and objects are refused. Keys are
texts and occur once. Size, depth and the expansion of aliases have limits.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from airflow_provider_opal.templates.yaml.text.nodes import Node, read_nodes
from airflow_provider_opal.templates.yaml.text.problem import (
    START,
    Keys,
    Position,
    Problem,
    YamlError,
    shown,
)
from airflow_provider_opal.templates.yaml.text.syntax import syntax_error

MAX_BYTES = 256 * 1024
MAX_KEY_CHARACTERS = 250
MAX_DIGITS = 18
MAX_NUMBER = 10.0**18

# Control characters, separators that are line breaks in some programs only, and characters that
# change the direction of text
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\ufeff\ufffe\uffff\ud800-\udfff]"
)
_NULL = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BOMS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"), (b"\x00\x00\xfe\xff", "UTF-32"))


@dataclass(slots=True)
class Document:
    """The values of a file, their positions, and the problems so far."""

    value: Any = None
    values: dict[Keys, Position] = field(default_factory=dict)
    keys: dict[Keys, Position] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def position(self, at: Keys) -> Position:
        """Return the position of a value, or of the nearest existing one around it."""
        while at and at not in self.values:
            at = at[:-1]
        return self.values.get(at, START)

    def key_position(self, at: Keys) -> Position:
        """Return the position of a key, or of an item in a list."""
        return self.keys.get(at) or self.position(at)

    def add_problem(self, position: Position, at: Keys, what: str) -> None:
        """Add a problem; the name of the file follows later."""
        self.problems.append(Problem("", position, at, what))


def read_document(data: bytes) -> Document:
    """Return the document of a file; raise YamlError if it cannot be read."""
    text = _decoded(data)
    try:
        root = read_nodes(text)
    except yaml.YAMLError as error:
        raise syntax_error(error, text) from error
    document = Document()
    if root is not None:
        document.value = _value(root, (), document)
    document.problems = sorted(set(document.problems))
    return document


def _decoded(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise YamlError(
            START,
            f"the file has more than {MAX_BYTES // 1024} KiB; "
            "split it into several *.opal.yaml files",
        )
    for bom, name in _BOMS:
        if data.startswith(bom):
            raise YamlError(START, f"the file is {name}; save it as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        raise YamlError(
            _position_after(before),
            f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8",
        ) from error
    text = text.removeprefix("\ufeff")  # the byte order mark of UTF-8, which Windows writes
    hidden = _FORBIDDEN.search(text)
    if hidden:
        raise YamlError(
            _position_after(text[: hidden.start()]),
            f"the character U+{ord(hidden[0]):04X} cannot be seen and may mislead; delete it",
        )
    return text


def _position_after(text: str) -> Position:
    lines = re.split("\r\n|\r|\n", text)
    return Position(len(lines), len(lines[-1]) + 1)


def _value(node: Node, at: Keys, document: Document) -> Any:
    document.values[at] = node.position
    for position, what in node.faults:
        document.add_problem(position, at, what)
    if node.members is not None:
        return _mapping(node.members, at, document)
    if node.items is not None:
        return [_value(item, (*at, number), document) for number, item in enumerate(node.items)]
    return _scalar(node, at, document)


def _mapping(members: list[tuple[Node, Node]], at: Keys, document: Document) -> dict[str, Any]:
    given: dict[str, Any] = {}
    merged: list[Node] = []
    for key, node in members:
        if key.plain and key.text == "<<":
            bases = [node] if node.items is None else node.items
            merged += bases
            continue
        name = _key(key, at, document)
        if name is None:
            continue
        inner = (*at, name)
        if name in given:
            first = document.keys[inner]
            what = f"the key is given twice, first in line {first.line}; keep one of them"
            document.add_problem(key.position, inner, what)
            continue
        document.keys[inner] = key.position
        given[name] = _value(node, inner, document)
    for node in merged:
        _merge(node, at, given, document)
    return given


def _merge(node: Node, at: Keys, given: dict[str, Any], document: Document) -> None:
    """Add the members of a base, which is written `<<: *base`.

    The mapping's own members win over those of a base, and an earlier base over a later one.
    """
    if node.members is None:
        what = "'<<' needs the alias of a mapping; write '<<: *base'"
        document.add_problem(node.position, at, what)
        return
    base = Document()
    for name, value in _mapping(node.members, at, base).items():
        if name in given:
            continue
        given[name] = value
        inside = (*at, name)
        document.keys |= _positions_below(inside, base.keys)
        document.values |= _positions_below(inside, base.values)
    document.problems += base.problems


def _positions_below(at: Keys, positions: dict[Keys, Position]) -> dict[Keys, Position]:
    """Return the positions of a value and of everything in it."""
    return {keys: position for keys, position in positions.items() if keys[: len(at)] == at}


def _key(key: Node, at: Keys, document: Document) -> str | None:
    what = None
    if key.text is None:
        what = "braces or brackets cannot be a key; put a template into quotes: '{{ ... }}'"
    elif not 1 <= len(key.text) <= MAX_KEY_CHARACTERS:
        what = (
            f"the key has {len(key.text)} characters; "
            f"write a name of 1 to {MAX_KEY_CHARACTERS} characters"
        )
    elif _FORBIDDEN.search(key.text) or not key.text.isprintable():
        what = f"the key {shown(key.text)!r} holds characters that cannot be seen; remove them"
    elif key.faults:
        _, what = key.faults[0]
    if what is not None:
        document.add_problem(key.position, at, what)
        return None
    return key.text


def _scalar(node: Node, at: Keys, document: Document) -> Any:
    text = node.text or ""
    hidden = _FORBIDDEN.search(text)
    if hidden:
        code = f"U+{ord(hidden[0]):04X}"
        what = f"the text holds the character {code}, which cannot be seen; remove it"
        document.add_problem(node.position, at, what)
    if not node.plain:
        return text
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if not _NUMBER.fullmatch(text):
        return text
    if len(text) > MAX_DIGITS or abs(float(text)) > MAX_NUMBER:
        what = f"the number {shown(text, 24)} is too long; write it in quotes if it is a text"
        document.add_problem(node.position, at, what)
        return 0  # the reading goes on: more mistakes may follow
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text)
