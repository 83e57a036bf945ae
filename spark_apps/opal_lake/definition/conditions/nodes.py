"""A condition bound to columns: every node has a type.

Both sides of a test have the same one.

What evaluates a condition, over Arrow or in Spark, sees these nodes only: it converts nothing
itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from opal_lake.definition.conditions.kinds import BOOLEAN, Kind
from opal_lake.definition.conditions.like import Pattern
from opal_lake.definition.conditions.tree import Comparison, Operation, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A column, by the exact names that lead to it; `field_id` only of a whole column."""

    path: tuple[str, ...]
    kind: Kind
    field_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A value in the form of its kind: int or Decimal if exact, float for a double."""

    value: Value
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Widen:
    """A number as another kind: an exact one that holds it, or the nearest double."""

    value: "Typed"
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """A comparison of two values of one kind."""

    op: Comparison
    left: "Typed"
    right: "Typed"
    kind: Kind = BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Among:
    """Membership in constants of the value's kind."""

    value: "Typed"
    members: tuple[Constant, ...]
    kind: Kind = BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """A test of a text against a pattern."""

    value: "Typed"
    pattern: Pattern
    kind: Kind = BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A test for null."""

    value: "Typed"
    kind: Kind = BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A test for one truth value; null is neither."""

    value: "Typed"
    truth: bool
    kind: Kind = BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Opposite:
    """A negation; that of null is null."""

    value: "Typed"
    kind: Kind = BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """A conjunction. Behind a false part, from the left, none is evaluated."""

    parts: "tuple[Typed, ...]"
    kind: Kind = BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Some:
    """A disjunction. Behind a true part, from the left, none is evaluated."""

    parts: "tuple[Typed, ...]"
    kind: Kind = BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Arithmetic of two decimals or two doubles. A divisor of zero is an error."""

    op: Operation
    left: "Typed"
    right: "Typed"
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """A function of typed arguments."""

    name: str
    arguments: "tuple[Typed, ...]"
    kind: Kind


Typed = (
    Read
    | Constant
    | Widen
    | Test
    | Among
    | Matches
    | Missing
    | Truth
    | Opposite
    | Every
    | Some
    | Compute
    | Apply
)


def parts_of(node: Typed) -> tuple[Typed, ...]:
    """Return the nodes that a node is made of."""
    match node:
        case Read() | Constant():
            return ()
        case Test() | Compute():
            return node.left, node.right
        case Every() | Some():
            return node.parts
        case Apply():
            return node.arguments
    return (node.value,)


def all_of(node: Typed) -> Iterator[Typed]:
    """Yield the node and all that it is made of."""
    pending: list[Typed] = [node]
    while pending:
        current = pending.pop()
        yield current
        pending += parts_of(current)


def may_fail(node: Typed) -> bool:
    """Return whether a row may have a value for which the condition has no answer."""
    return any(isinstance(part, Compute) and part.op in ("/", "%") for part in all_of(node))
