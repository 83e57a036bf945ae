"""A tree as text: what `parse` reads as the same tree."""

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
    return f"({text})" if level < within else text


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
            return _SIGN if text.startswith("-") else _WHOLE, text


def _test(node: Node) -> str:
    match node:
        case Compare():
            return f"{_text(node.left, _SUM)} {node.op} {_text(node.right, _SUM)}"
        case In():
            members = ", ".join(literal_text(member.value) for member in node.members)
            return f"{_text(node.value, _SUM)} {_not(node.negated)}IN ({members})"
        case Between():
            low, high = _text(node.low, _SUM), _text(node.high, _SUM)
            return f"{_text(node.value, _SUM)} {_not(node.negated)}BETWEEN {low} AND {high}"
        case Like():
            escape = "" if node.escape == "\\" else f" ESCAPE {literal_text(node.escape)}"
            pattern = literal_text(node.pattern)
            return f"{_text(node.value, _SUM)} {_not(node.negated)}LIKE {pattern}{escape}"
        case IsNull():
            return f"{_text(node.value, _SUM)} IS {_not(node.negated)}NULL"
        case IsTruth():
            truth = literal_text(node.truth)
            return f"{_text(node.value, _SUM)} IS {_not(node.negated)}{truth}"
    raise AssertionError(node)


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


def _name(name: str) -> str:
    is_plain = _PLAIN.match(name) and name.upper() not in KEYWORDS | FOREIGN
    return name if is_plain else "`" + name.replace("`", "``") + "`"


def literal_text(value: Value) -> str:
    """Return a value as a condition writes it."""
    match value:
        case None | bool():
            return "NULL" if value is None else str(value).upper()
        case float():
            text = repr(value)
            return text if "e" in text else f"{text}e0"
        case int() | Decimal():
            return format(value, "f") if isinstance(value, Decimal) else str(value)
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
