"""The tree of a condition: what the text says, before any column is known.

`at` is the character of the text where a node begins. Two trees are equal wherever they stood.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Literal as OneOf

# A datetime with a zone is a TIMESTAMP, one without is a TIMESTAMP_NTZ.
Value = bool | int | Decimal | float | str | bytes | date | datetime | None
Comparison = OneOf["=", "!=", "<", "<=", ">", ">=", "<=>"]
Operation = OneOf["+", "-", "*", "/", "%"]

MAX_DEPTH = 100
MAX_CHARACTERS = 10_000  # of a condition that is stored
MAX_DIGITS = 38  # of a decimal


def _at() -> int:
    """Declare where a node begins, which does not count when trees are compared."""
    at: int = field(default=0, compare=False, repr=False)
    return at


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, or a member of a struct: the names on the way to it."""

    path: tuple[str, ...]
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A value."""

    value: Value
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """A comparison of two values."""

    op: Comparison
    left: "Node"
    right: "Node"
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class In:
    """Membership in a list of literals."""

    value: "Node"
    members: tuple[Literal, ...]
    negated: bool = False
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """A range, both ends included."""

    value: "Node"
    low: "Node"
    high: "Node"
    negated: bool = False
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class Like:
    """A pattern of `%`, `_` and characters."""

    value: "Node"
    pattern: str
    escape: str = "\\"
    negated: bool = False
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull:
    """A test for null, which is never null itself."""

    value: "Node"
    negated: bool = False
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class IsTruth:
    """A test for true or false, which is never null itself."""

    value: "Node"
    truth: bool
    negated: bool = False
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class Not:
    """A negation."""

    value: "Node"
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class And:
    """A conjunction of at least two parts, evaluated from the left."""

    parts: "tuple[Node, ...]"
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class Or:
    """A disjunction of at least two parts, evaluated from the left."""

    parts: "tuple[Node, ...]"
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """An operation on two numbers."""

    op: Operation
    left: "Node"
    right: "Node"
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class Negative:
    """A number with the other sign."""

    value: "Node"
    at: int = _at()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function by its name in lower case."""

    name: str
    arguments: "tuple[Node, ...]"
    at: int = _at()


Node = (
    Column
    | Literal
    | Compare
    | In
    | Between
    | Like
    | IsNull
    | IsTruth
    | Not
    | And
    | Or
    | Arithmetic
    | Negative
    | Call
)


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node is made of."""
    match node:
        case Column() | Literal():
            return ()
        case Compare() | Arithmetic():
            return node.left, node.right
        case Between():
            return node.value, node.low, node.high
        case And() | Or():
            return node.parts
        case Call():
            return node.arguments
    return (node.value,)


def depth_of(node: Node) -> int:
    """Return the number of levels. Not recursive: a chain of sums may be of any depth."""
    deepest = 0
    pending = [(node, 1)]
    while pending:
        current, depth = pending.pop()
        deepest = max(deepest, depth)
        pending += [(child, depth + 1) for child in children(current)]
    return deepest


def nodes_of(node: Node) -> Iterator[Node]:
    """Yield the node and all that it is made of."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending += children(current)
