"""A tree as text, which `parse` reads as the same tree."""

import re
from datetime import date, datetime
from decimal import Decimal

from opal_lake.definition.conditions.parser import FOREIGN, KEYWORDS
from opal_lake.definition.conditions.tree import (
    And,
    Arithmetic,
    Between,
    Call,
    Column,
    Compare,
    In,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
    Value,
)

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
# How tight a node binds; within a tighter one it needs parentheses.
_OR, _AND, _NOT, _TEST, _SUM, _PRODUCT, _SIGN, _WHOLE = range(8)


def text_of(node: Node) -> str:
    """Return the text of a tree."""
    return _text(node, _OR)


def _text(node: Node, within: int) -> str:
    level, text = _written(node)
    if level < within:
        return f"({text})"
    return text


def _written(node: Node) -> tuple[int, str]:
    match node:
        case Or(parts=parts):
            return _OR, " OR ".join(_text(part, _AND) for part in parts)
        case And(parts=parts):
            return _AND, " AND ".join(_text(part, _NOT) for part in parts)
        case Not():
            return _NOT, f"NOT {_text(node.value, _NOT)}"
        case Arithmetic():
            level = _SUM if node.op in ("+", "-") else _PRODUCT
            left, right = _text(node.left, level), _text(node.right, level + 1)
            return level, f"{left} {node.op} {right}"
        case Negative():
            return _SIGN, f"-{_text(node.value, _WHOLE)}"
        case Column() | Literal() | Call():
            return _atom(node)
    return _TEST, _test(node)


def _atom(node: Column | Literal | Call) -> tuple[int, str]:
    match node:
        case Column():
            return _WHOLE, ".".join(map(_name, node.path))
        case Call():
            arguments = ", ".join(_text(argument, _OR) for argument in node.arguments)
            return _WHOLE, f"{node.name}({arguments})"
        case Literal():
            text = literal_text(node.value)
            # `- -1` would be read as a sign before a literal
            level = _SIGN if text.startswith("-") else _WHOLE
            return level, text


def _test(node: Node) -> str:
    if isinstance(node, Compare):
        return f"{_text(node.left, _SUM)} {node.op} {_text(node.right, _SUM)}"
    if not isinstance(node, In | Between | Like | IsNull | IsTruth):
        raise TypeError(f"{node!r} is not a node of a condition")
    value, negation = _text(node.value, _SUM), _not(node.negated)
    match node:
        case In():
            members = ", ".join(literal_text(member.value) for member in node.members)
            return f"{value} {negation}IN ({members})"
        case Between():
            low, high = _text(node.low, _SUM), _text(node.high, _SUM)
            return f"{value} {negation}BETWEEN {low} AND {high}"
        case Like():
            pattern = literal_text(node.pattern)
            escape = "" if node.escape == "\\" else f" ESCAPE {literal_text(node.escape)}"
            return f"{value} {negation}LIKE {pattern}{escape}"
        case IsNull():
            return f"{value} IS {negation}NULL"
        case IsTruth():
            return f"{value} IS {negation}{literal_text(node.truth)}"


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


def _name(name: str) -> str:
    if _PLAIN.match(name) and name.upper() not in KEYWORDS | FOREIGN:
        return name
    return "`" + name.replace("`", "``") + "`"


def literal_text(value: Value) -> str:
    """Return a value as a condition writes it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case float():
            # With an exponent, by which the parser knows a double
            text = repr(value)
            return text if "e" in text else f"{text}e0"
        case int():
            return str(value)
        case Decimal():
            return format(value, "f")
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return f"X'{value.hex().upper()}'"
        case datetime():
            word = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
            return f"{word} '{value.replace(tzinfo=None).isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
    raise AssertionError(value)
