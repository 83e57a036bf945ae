"""A tree as JSON, for metadata that anybody may have written.

A node is a mapping of one name to its parts. What is read back is checked as a parsed text is:
size, depth, names and values; nothing in it is run.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, get_args

from opal_lake.checked import flag, listed, mapped, shallow, text
from opal_lake.definition.conditions.like import pattern_of
from opal_lake.definition.conditions.printer import literal_text
from opal_lake.definition.conditions.times import day_of, instant_of, wall_clock_of
from opal_lake.definition.conditions.tree import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_DIGITS,
    And,
    Arithmetic,
    Between,
    Call,
    Column,
    Compare,
    Comparison,
    In,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Operation,
    Or,
    Value,
    depth_of,
    nodes_of,
)

MAX_NODES = 5_000  # more than a text of MAX_CHARACTERS can hold
_DECIMAL = re.compile(r"-?(?=\.?[0-9])[0-9]*\.?[0-9]*\Z", re.ASCII)
_FUNCTION = re.compile(r"[a-z_][a-z0-9_]*\Z")


def to_json(node: Node) -> dict[str, Any]:
    """Return the tree as values that go into JSON."""
    match node:
        case Column():
            return {"column": list(node.path)}
        case Literal():
            return {"literal": _literal_to_json(node.value)}
        case Compare():
            return {"compare": [node.op, to_json(node.left), to_json(node.right)]}
        case Arithmetic():
            return {"arithmetic": [node.op, to_json(node.left), to_json(node.right)]}
        case Call():
            return {"call": [node.name, *map(to_json, node.arguments)]}
        case And() | Or():
            name = "and" if isinstance(node, And) else "or"
            return {name: [to_json(part) for part in node.parts]}
        case Not():
            return {"not": [to_json(node.value)]}
        case Negative():
            return {"negative": [to_json(node.value)]}
    return _test_to_json(node)


def _test_to_json(node: Node) -> dict[str, Any]:
    match node:
        case In():
            members = [to_json(member) for member in node.members]
            return {"in": [to_json(node.value), members, node.negated]}
        case Between():
            parts = [to_json(part) for part in (node.value, node.low, node.high)]
            return {"between": [*parts, node.negated]}
        case Like():
            return {"like": [to_json(node.value), node.pattern, node.escape, node.negated]}
        case IsNull():
            return {"is_null": [to_json(node.value), node.negated]}
        case IsTruth():
            return {"is_truth": [to_json(node.value), node.truth, node.negated]}
    raise AssertionError(node)


def from_json(data: Any) -> Node:
    """Return the tree; ValueError for JSON that no text can have been parsed to."""
    node = _node(shallow(data, 2 * MAX_DEPTH + 4))
    if depth_of(node) > MAX_DEPTH:
        raise ValueError(f"a condition of more than {MAX_DEPTH} levels")
    if sum(1 for _ in nodes_of(node)) > MAX_NODES:
        raise ValueError(f"a condition of more than {MAX_NODES:,} nodes")
    return node


def _node(data: Any) -> Node:
    named = mapped(data)
    if len(named) != 1:
        raise ValueError(f"a node has one name, this one has {len(named)}")
    [(name, parts)] = named.items()
    read = _READERS.get(name)
    if read is None:
        raise ValueError(f"{name!r} is not a node of a condition")
    return read(listed(parts))


def _column(parts: list[Any]) -> Node:
    path = tuple(_short(name) for name in parts)
    if not path or "" in path:
        raise ValueError("a column without a name")
    return Column(path=path)


def _short(value: Any) -> str:
    if len(text(value)) > MAX_CHARACTERS:
        raise ValueError(f"a text of more than {MAX_CHARACTERS:,} characters")
    return str(value)


def _literal(parts: list[Any]) -> Literal:
    kind, value = parts
    if kind == "null" and value is None:
        return Literal(value=None)
    if kind == "boolean":
        return Literal(value=flag(value))
    read = _LITERALS.get(text(kind))
    if read is None:
        raise ValueError(f"{kind!r} is not a type of literals")
    return Literal(value=read(_short(value)))


def _literal_to_json(value: Value) -> list[Any]:
    match value:
        case None:
            return ["null", None]
        case bool():
            return ["boolean", value]
        case float():
            return ["double", value.hex()]
        case int():
            return ["integer", str(value)]
        case Decimal():
            return ["decimal", literal_text(value)]
        case str():
            return ["string", value]
        case bytes():
            return ["binary", value.hex()]
        case datetime():
            kind = "timestamp" if value.tzinfo else "timestamp_ntz"
            # One instant has one form, whatever the zone of the text was
            moment = value.astimezone(UTC) if value.tzinfo else value
            return [kind, moment.replace(tzinfo=None).isoformat(sep=" ")]
        case date():
            return ["date", value.isoformat()]
    raise AssertionError(value)


def _exact(digits: str) -> str:
    behind = len(digits.partition(".")[2])
    if (
        not _DECIMAL.match(digits)
        or len(digits.strip("-").replace(".", "").lstrip("0")) > MAX_DIGITS
    ):
        raise ValueError(f"{digits[:50]!r} is not a number of at most {MAX_DIGITS} digits")
    if behind > MAX_DIGITS:
        raise ValueError(f"{digits[:50]!r} has more than {MAX_DIGITS} decimal places")
    return digits


def _finite(digits: str) -> float:
    try:
        value = float.fromhex(digits)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{digits!r} is not a finite number")
    return value


_LITERALS: Mapping[str, Callable[[str], Value]] = {
    "binary": bytes.fromhex,
    "date": day_of,
    "decimal": lambda digits: Decimal(_exact(digits)),
    "double": _finite,
    "integer": lambda digits: int(_exact(digits)),
    "string": str,
    "timestamp": instant_of,
    "timestamp_ntz": wall_clock_of,
}


def _one_of(value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
    return value


def _compare(parts: list[Any]) -> Node:
    op, left, right = parts
    return Compare(op=_one_of(op, get_args(Comparison)), left=_node(left), right=_node(right))


def _arithmetic(parts: list[Any]) -> Node:
    op, left, right = parts
    return Arithmetic(op=_one_of(op, get_args(Operation)), left=_node(left), right=_node(right))


def _call(parts: list[Any]) -> Node:
    name, *arguments = parts
    if not _FUNCTION.match(text(name)):
        raise ValueError(f"{name!r} is not the name of a function")
    return Call(name=name, arguments=tuple(map(_node, arguments)))


def _joined(make: type[And] | type[Or]) -> Callable[[list[Any]], Node]:
    def read(parts: list[Any]) -> Node:
        if len(parts) < 2:
            raise ValueError("AND and OR join at least two parts")
        return make(parts=tuple(map(_node, parts)))

    return read


def _in(parts: list[Any]) -> Node:
    value, members, negated = parts
    literals = [_node(member) for member in listed(members)]
    chosen = tuple(member for member in literals if isinstance(member, Literal))
    if not chosen or len(chosen) < len(literals):
        raise ValueError("IN has a list of literals")
    return In(value=_node(value), members=chosen, negated=flag(negated))


def _between(parts: list[Any]) -> Node:
    value, low, high, negated = parts
    return Between(value=_node(value), low=_node(low), high=_node(high), negated=flag(negated))


def _like(parts: list[Any]) -> Node:
    value, pattern, escape, negated = parts
    if len(text(escape)) != 1 or escape in "%_":
        raise ValueError(f"{escape!r} is not the escape of a pattern")
    pattern_of(text(pattern), escape)
    return Like(value=_node(value), pattern=pattern, escape=escape, negated=flag(negated))


def _is_null(parts: list[Any]) -> Node:
    value, negated = parts
    return IsNull(value=_node(value), negated=flag(negated))


def _is_truth(parts: list[Any]) -> Node:
    value, truth, negated = parts
    return IsTruth(value=_node(value), truth=flag(truth), negated=flag(negated))


def _not(parts: list[Any]) -> Node:
    [value] = parts
    return Not(value=_node(value))


def _negative(parts: list[Any]) -> Node:
    [value] = parts
    return Negative(value=_node(value))


_READERS: Mapping[str, Callable[[list[Any]], Node]] = {
    "and": _joined(And),
    "arithmetic": _arithmetic,
    "between": _between,
    "call": _call,
    "column": _column,
    "compare": _compare,
    "in": _in,
    "is_null": _is_null,
    "is_truth": _is_truth,
    "like": _like,
    "literal": _literal,
    "negative": _negative,
    "not": _not,
    "or": _joined(Or),
}
