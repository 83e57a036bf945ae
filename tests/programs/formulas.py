"""Random conditions and expressions: a text for the table, and a function for the model.

The function gets the values of each side of a statement by the numbers of columns.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

from tests.opal_lake.write.changed_tables import Node

Sides = Mapping[str, Mapping[int, Any]]
LIMITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
FLOATS = ("float", "double")
_SIMPLE = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")

_NAN = float("nan")
_DAYS = [date(1969, 12, 31), date(2026, 3, 28), date(2026, 3, 29), date(2026, 3, 30)]
_TIMES = [
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(2026, 3, 29, 1, 59, 59, 999_999),
    datetime(2026, 3, 29, 2, 30),
    datetime(2026, 10, 25, 2, 30),
]
POOLS: dict[str, list[Any]] = {
    "tinyint": [-128, -1, 0, 1, 2, 3, 127],
    "smallint": [-32768, -1, 0, 1, 2, 3, 32767],
    "int": [-(1 << 31), -1, 0, 1, 2, 3, (1 << 31) - 1],
    "bigint": [-1, 0, 1, 2, 3, (1 << 53) + 1, (1 << 63) - 1],
    "float": [-1.5, -0.0, 0.0, 0.5, 2.25, _NAN],
    "double": [-1.5, -0.0, 0.0, 0.5, 2.25, 1 + 2**-40, _NAN, math.inf],
    "decimal(5,2)": [Decimal(text) for text in ("-999.99", "-0.01", "0.00", "1.50", "999.99")],
    "decimal(9,2)": [Decimal(text) for text in ("-1.00", "0.00", "1.50", "9999999.99")],
    "decimal(30,2)": [Decimal(text) for text in ("0.00", "1.50", "123456789012345678901234.25")],
    "string": ["", "a", "A", "ä", "a b", "it's", "none", "100%"],
    "boolean": [False, True],
    "binary": [b"", b"\0", b"a", b"\xff"],
    "date": _DAYS,
    "timestamp": [moment.replace(tzinfo=UTC) for moment in _TIMES],
    "timestamp_ntz": _TIMES,
}


class RefusedError(Exception):
    """The statement has to fail, and to change nothing."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A text, and the value that it has for a row."""

    text: str
    value: Callable[[Sides], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column or a member of a struct, as texts name it."""

    text: str
    type: str
    value: Callable[[Sides], Any]


def columns_of(
    random: Random, sides: Mapping[str, Sequence[Node]], *, may_be_short: bool
) -> list[Column]:
    """Return the atomic columns of all sides; `may_be_short` allows names without the side."""
    columns: list[Column] = []
    for side, nodes in sides.items():
        for node in nodes:
            prefix = "" if may_be_short and random.random() < 0.7 else f"{side}."
            columns += _columns_of_node(random, prefix, side, node)
    return columns


def _columns_of_node(random: Random, prefix: str, side: str, node: Node) -> list[Column]:
    name = prefix + spelled(random, node.name)
    if not node.parts:
        return [Column(name, node.type, _whole(side, node))]
    if node.type != "struct":
        return []
    members: list[Column] = []
    for part in node.parts:
        if part.parts:
            continue
        member = _member(side, node, part)
        members.append(Column(f"{name}.{spelled(random, part.name)}", part.type, member))
    return members


def _whole(side: str, node: Node) -> Callable[[Sides], Any]:
    return lambda values: node.shown(values[side].get(node.number, node.initial))


def _member(side: str, node: Node, part: Node) -> Callable[[Sides], Any]:
    def value(values: Sides) -> Any:
        outer = values[side].get(node.number)
        return None if outer is None else part.shown(outer.get(part.number))

    return value


def spelled(random: Random, name: str) -> str:
    """Return a name as a text may spell it: in backquotes, or in another case."""
    if not _SIMPLE.match(name) or random.random() < 0.2:
        return "`" + name.replace("`", "``") + "`"
    return name.upper() if random.random() < 0.1 else name


def literal(value: Any) -> str:
    """Return a value as a literal of a text."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return f"{value:.17e}"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
        return f"{kind} '{value.replace(tzinfo=None)}'"
    return f"DATE '{value}'"


def has_literal(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


# Conditions


def condition(random: Random, columns: Sequence[Column], depth: int = 2) -> Formula:
    """Return a random condition over columns."""
    roll = random.random()
    if depth and roll < 0.3:
        left, right = (condition(random, columns, depth - 1) for _ in range(2))
        word = random.choice(["AND", "OR"])
        combined = _and if word == "AND" else _or
        return Formula(
            f"({left.text}) {word} ({right.text})",
            lambda values: combined(left.value(values), right.value(values)),
        )
    if depth and roll < 0.4:
        inner = condition(random, columns, depth - 1)
        return Formula(f"NOT ({inner.text})", lambda values: _not(inner.value(values)))
    column = random.choice(columns)
    makers = [_is_null, _compared, _compared, _compared, _listed]
    if column.type == "boolean":
        makers = [_is_null, _truth]
    elif column.type == "string":
        makers.append(_like)
    elif column.type in LIMITS or column.type.startswith("decimal"):
        makers += [_between, _computed]
    return random.choice(makers)(random, column, columns)


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: bool | None, right: bool | None) -> bool | None:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _is_null(random: Random, column: Column, _: Sequence[Column]) -> Formula:
    if random.random() < 0.5:
        return Formula(f"{column.text} IS NULL", lambda values: column.value(values) is None)
    return Formula(f"{column.text} IS NOT NULL", lambda values: column.value(values) is not None)


def _truth(random: Random, column: Column, _: Sequence[Column]) -> Formula:
    if random.random() < 0.5:
        return Formula(column.text, column.value)
    return Formula(f"{column.text} IS NOT TRUE", lambda values: column.value(values) is not True)


def _compared(random: Random, column: Column, columns: Sequence[Column]) -> Formula:
    sign = random.choice(["=", "=", "=", "<>", "<", "<=", ">", ">=", "<=>"])
    same = [other for other in columns if other.type == column.type]
    if random.random() < 0.3:
        other = random.choice(same)
        return _comparison(column, sign, Formula(other.text, other.value))
    return _comparison(column, sign, _constant(random, column.type))


def _constant(random: Random, kind: str) -> Formula:
    value = random.choice([value for value in POOLS[kind] if has_literal(value)])
    if kind in LIMITS and random.random() < 0.15:
        value = random.choice([Decimal("1.0"), Decimal("1.5"), 1.0, 1 << 70, -(1 << 40)])
    return Formula(literal(value), lambda _: value)


def _comparison(left: Column, sign: str, right: Formula) -> Formula:
    def value(values: Sides) -> bool | None:
        return compare(left.value(values), sign, right.value(values))

    return Formula(f"{left.text} {sign} {right.text}", value)


def compare(left: Any, sign: str, right: Any) -> bool | None:
    """Compare two values as SQL does."""
    if sign == "<=>":
        if left is None or right is None:
            return left is None and right is None
        sign = "="
    if left is None or right is None:
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = (_float_order(float(side)) for side in (left, right))
    results = {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return bool(results[sign])


def _float_order(value: float) -> tuple[bool, float]:
    """Return a value that orders NaN after all others."""
    return math.isnan(value), 0.0 if math.isnan(value) else value


def _listed(random: Random, column: Column, _: Sequence[Column]) -> Formula:
    members = [_constant(random, column.type) for _ in range(random.randint(1, 3))]

    def value(values: Sides) -> bool | None:
        own = column.value(values)
        if own is None:
            return None
        return any(compare(own, "=", member.value(values)) for member in members)

    texts = ", ".join(member.text for member in members)
    if random.random() < 0.3:
        return Formula(f"{column.text} NOT IN ({texts})", lambda values: _not(value(values)))
    return Formula(f"{column.text} IN ({texts})", value)


def _like(random: Random, column: Column, _: Sequence[Column]) -> Formula:
    start = random.choice(["a", "it", "A", ""])

    def value(values: Sides) -> bool | None:
        own = column.value(values)
        return None if own is None else own.startswith(start)

    return Formula(f"{column.text} LIKE '{start}%'", value)


def _between(random: Random, column: Column, _: Sequence[Column]) -> Formula:
    low, high = _constant(random, column.type), _constant(random, column.type)

    def value(values: Sides) -> bool | None:
        own = column.value(values)
        return _and(compare(own, ">=", low.value(values)), compare(own, "<=", high.value(values)))

    return Formula(f"{column.text} BETWEEN {low.text} AND {high.text}", value)


def _computed(random: Random, column: Column, _: Sequence[Column]) -> Formula:
    if column.type in LIMITS and random.random() < 0.5:

        def is_even(values: Sides) -> bool | None:
            own = column.value(values)
            return None if own is None else own % 2 == 0

        return Formula(f"{column.text} % 2 = 0", is_even)

    def value(values: Sides) -> bool | None:
        own = column.value(values)
        return None if own is None else own + 1 > 2

    return Formula(f"{column.text} + 1 > 2", value)


# Expressions


def expression(random: Random, target: Node, columns: Sequence[Column]) -> Formula:
    """Return a random expression whose values are converted to a column's type."""
    made = _unconverted(random, target, columns)
    return Formula(made.text, lambda values: converted(made.value(values), target.type))


def _unconverted(random: Random, target: Node, columns: Sequence[Column]) -> Formula:
    kind = target.type
    if target.parts or random.random() < 0.1:
        return Formula("NULL", lambda _: None)
    same = [column for column in columns if column.type == kind]
    if same and random.random() < 0.3:
        column = random.choice(same)
        return Formula(column.text, column.value)
    if kind in LIMITS or kind.startswith("decimal"):
        return _number(random, kind, same, columns)
    if kind in FLOATS and same:
        column = random.choice(same)
        return Formula(f"{column.text} * 2", lambda values: _doubled(column.value(values)))
    if kind == "string" and same:
        return _text(random, random.choice(same))
    if kind == "boolean":
        inner = condition(random, columns, 1)
        return Formula(inner.text, inner.value)
    return _constant_of(random, kind)


def _constant_of(random: Random, kind: str) -> Formula:
    value = random.choice([value for value in POOLS[kind] if has_literal(value)])
    return Formula(literal(value), lambda _: value)


def _number(
    random: Random, kind: str, same: Sequence[Column], columns: Sequence[Column]
) -> Formula:
    integers = [column for column in columns if column.type in LIMITS]
    column = random.choice([*same, *integers]) if [*same, *integers] else None
    if column is None or random.random() < 0.2:
        return _constant_of(random, kind)
    shift = random.choice([1, 1, 2, -1])
    if kind.startswith("decimal") and random.random() < 0.5:
        shift = Decimal(random.choice(["0.25", "-1.5"]))
    sign = "-" if shift < 0 else "+"
    roll = random.random()
    if roll < 0.5:
        return Formula(
            f"{column.text} {sign} {abs(shift)}", lambda values: _sum(column.value(values), shift)
        )
    if roll < 0.7:
        return Formula(
            f"coalesce({column.text}, 0) {sign} {abs(shift)}",
            lambda values: _sum(column.value(values) or 0, shift),
        )
    if roll < 0.85:
        return Formula(f"- {column.text}", lambda values: _negative(column.value(values)))
    other = random.choice([*same, *integers])
    return Formula(
        f"{column.text} - {other.text}",
        lambda values: _sum(column.value(values), _negative(other.value(values))),
    )


def _sum(left: Any, right: Any) -> Any:
    return None if left is None or right is None else left + right


def _negative(value: Any) -> Any:
    return None if value is None else -value


def _doubled(value: float | None) -> float | None:
    return None if value is None else value * 2


def _text(random: Random, column: Column) -> Formula:
    def with_z(values: Sides) -> str | None:
        own = column.value(values)
        return None if own is None else own + "z"

    def upper(values: Sides) -> str | None:
        own = column.value(values)
        return None if own is None else re.sub("[a-z]", lambda letter: letter[0].upper(), own)

    def or_none(values: Sides) -> str:
        own = column.value(values)
        return "none" if own is None else own

    return random.choice(
        [
            Formula(f"concat({column.text}, 'z')", with_z),
            Formula(f"upper({column.text})", upper),
            Formula(f"coalesce({column.text}, 'none')", or_none),
        ]
    )


def converted(value: Any, kind: str) -> Any:
    """Return a value in a type; raise RefusedError if the type cannot hold it."""
    if value is None:
        return None
    if kind in LIMITS:
        limit = 1 << LIMITS[kind]
        if value != int(value) or not -limit <= value < limit:
            raise RefusedError(f"{value} is not {kind}")
        return int(value)
    if kind == "float":
        return struct.unpack("f", struct.pack("f", value))[0]
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[8:-1].split(","))
        number = Decimal(value)
        scaled = number.scaleb(scale)
        if scaled != int(scaled) or abs(scaled) >= 10**precision:
            raise RefusedError(f"{value} is not {kind}")
        return number.quantize(Decimal(1).scaleb(-scale))
    return value
