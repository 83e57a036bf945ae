"""Random conditions and rows, of all types and of values that two engines may read differently."""

import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

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
)

DAYS = [
    date(1, 1, 1),
    date(1582, 10, 4),
    date(1582, 10, 15),
    date(1969, 12, 31),
    date(1970, 1, 1),
    date(2026, 3, 29),
    date(9999, 12, 31),
]
WALL_TIMES = [
    datetime(1, 1, 1),
    datetime(1582, 10, 10, 12),
    datetime(1883, 11, 18, 12, 3, 58),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(2026, 3, 29, 1, 30),
    datetime(2026, 3, 29, 2, 30),
    datetime(2026, 11, 1, 0, 0, 0, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
]
TEXTS = [
    "",
    " ",
    "a",
    "A",
    "aB c",
    " D ",
    "\tD",
    "\u00a0x",
    "ß",
    "ẞ",
    "SS",
    "ı",
    "İ",
    "i",
    "I",
    "e\u0301",
    "é",
    "😀",
    "😀x",
    "x😀",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U0010ffff",
    "a\nb",
    "a\r\nb",
    "%",
    "_",
    "a%b",
    "\\",
    "a\\",
    "\0",
    "日本",
    "ﬁ",
    "'",
    "Ǆ",
    "σς",
    "[a]",
    "$^.*",
    "aaab",
]
DECIMALS = [
    *[
        "0",
        "1",
        "-1",
        "0.5",
        "-0.5",
        "1.5",
        "1.50",
        "-2.25",
        "0.1",
        "0.3",
        "100",
        "99.99",
        "-99.99",
    ],
    *[
        "0.00000000000000000001",
        "12345678901234.5678",
        "9007199254740993",
        "0.30000000000000000004",
    ],
    *["123456789012345678", "-123456789012345678.00000000000000000001", "7", "3", "-3"],
]
NAN, INFINITY = float("nan"), float("inf")
DOUBLES = [
    *[0.0, -0.0, 1.0, -1.0, 0.5, 0.1, 0.3, 1.5, -2.25, 100.0, NAN, INFINITY, -INFINITY],
    *[5e-324, 1.7976931348623157e308, 9007199254740993.0, 1e23, 16777217.0, 1e-7, 3.0, 7.0],
]
FLOATS = [0.0, -0.0, 1.0, 0.5, 0.1, 1.5, NAN, INFINITY, -INFINITY, 16777216.0, 1e-45, 3.4e38]
BYTES = [b"", b"\0", b"a", b"ab", b"\x7f", b"\x80", b"\xff", b"\xff\xff"]
INTEGERS = [0, 1, -1, 2, 3, 5, 7, 10, 100]


def _integers(bits: int) -> list[int]:
    return [*INTEGERS, -(1 << (bits - 1)), (1 << (bits - 1)) - 1]


def _decimals(precision: int, scale: int) -> list[Decimal]:
    kind = pa.decimal128(precision, scale)
    fitting = []
    for text in DECIMALS:
        try:
            fitting.append(pa.scalar(Decimal(text)).cast(kind).as_py())
        except pa.ArrowInvalid:
            continue
    greatest = Decimal((0, (9,) * precision, -scale))
    return [*fitting, greatest, greatest.copy_negate()]


COLUMNS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "other flag": (pa.bool_(), [True, False]),
    "tiny": (pa.int8(), _integers(8)),
    "small": (pa.int16(), _integers(16)),
    "num": (pa.int32(), _integers(32)),
    "big": (pa.int64(), [*_integers(64), (1 << 53) + 1]),
    "BIG2": (pa.int64(), INTEGERS),
    "dec5": (pa.decimal128(5, 2), _decimals(5, 2)),
    "dec18": (pa.decimal128(18, 4), _decimals(18, 4)),
    "dec38": (pa.decimal128(38, 20), _decimals(38, 20)),
    "whole38": (pa.decimal128(38, 0), _decimals(38, 0)),
    "frac": (pa.decimal128(3, 3), _decimals(3, 3)),
    "single": (pa.float32(), FLOATS),
    "dbl": (pa.float64(), DOUBLES),
    "dbl2": (pa.float64(), DOUBLES),
    "txt": (pa.string(), TEXTS),
    "we.ird `x": (pa.string(), TEXTS),
    "raw": (pa.binary(), BYTES),
    "day": (pa.date32(), DAYS),
    "day2": (pa.date32(), DAYS),
    "ts": (pa.timestamp("us", "UTC"), [time.replace(tzinfo=UTC) for time in WALL_TIMES]),
    "ts2": (pa.timestamp("us", "UTC"), [time.replace(tzinfo=UTC) for time in WALL_TIMES]),
    "ntz": (pa.timestamp("us"), WALL_TIMES),
    "ntz2": (pa.timestamp("us"), WALL_TIMES),
}
MEMBERS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "num": (pa.int32(), _integers(32)),
    "txt": (pa.string(), TEXTS),
}
SCHEMA = pa.schema(
    [
        *[(name, kind) for name, (kind, _) in COLUMNS.items()],
        ("nested", pa.struct([(name, kind) for name, (kind, _) in MEMBERS.items()])),
    ]
)
_EXACT = ["tiny", "small", "num", "big", "BIG2", "dec5", "dec18", "dec38", "whole38", "frac"]
_TESTS = ["=", "!=", "<", "<=", ">", ">=", "<=>"]


def drawn_rows(chance: random.Random, rows: int) -> pa.Table:
    """Return rows of all columns, with a null now and then."""

    def values(pool: Sequence[Any]) -> list[Any]:
        return [None if chance.random() < 0.15 else chance.choice(pool) for _ in range(rows)]

    columns = {name: pa.array(values(pool), kind) for name, (kind, pool) in COLUMNS.items()}
    members = {name: values(pool) for name, (_, pool) in MEMBERS.items()}
    structs: list[dict[str, Any] | None] = []
    for row in range(rows):
        is_null = chance.random() < 0.15
        structs.append(None if is_null else {name: members[name][row] for name in members})
    columns["nested"] = pa.array(structs, SCHEMA.field("nested").type)
    return pa.table(columns, schema=SCHEMA)


class Drawing:
    """Draws conditions. Some of them have too many digits, and are refused by their types."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def condition(self, depth: int = 4) -> Node:
        if depth <= 0 or self._one_in(4):
            return self._test(0)
        return self._choose(
            lambda: And(parts=self._conditions(depth)),
            lambda: Or(parts=self._conditions(depth)),
            lambda: Not(value=self.condition(depth - 1)),
            lambda: self._test(depth),
            lambda: self._test(depth),
            lambda: IsTruth(
                value=self.condition(depth - 1),
                truth=self._one_in(2),
                negated=self._one_in(2),
            ),
        )

    def _conditions(self, depth: int) -> tuple[Node, ...]:
        return tuple(self.condition(depth - 1) for _ in range(self._chance.randint(2, 3)))

    def _choose(self, *makes: Callable[[], Any]) -> Any:
        return self._chance.choice(makes)()

    def _one_in(self, number: int) -> bool:
        return self._chance.randrange(number) == 0

    def _test(self, depth: int) -> Node:
        return self._choose(
            lambda: self._compare(depth),
            lambda: self._compare(depth),
            lambda: self._compare(depth),
            lambda: self._among(depth),
            lambda: self._between(depth),
            lambda: self._like(depth),
            lambda: self._is_null(depth),
            lambda: Column(path=(self._chance.choice(["flag", "FLAG", "other flag"]),)),
            lambda: Compare(
                op=self._chance.choice(["=", "!=", "<=>"]),
                left=self.condition(depth - 2),
                right=self.condition(depth - 2),
            ),
            lambda: Call(name="isnan", arguments=(self.number(depth - 1),)),
            lambda: Call(
                name=self._chance.choice(["startswith", "endswith", "contains"]),
                arguments=(self.text(depth - 1), self._literal(TEXTS)),
            ),
        )

    def _pair_maker(self) -> Callable[[int], Node]:
        return self._chance.choice(
            [
                *[self.number, self.number, self.number, self.text, self.text],
                *[self.binary, self.day, self.instant, self.wall_time],
            ]
        )

    def _compare(self, depth: int) -> Node:
        make = self._pair_maker()
        op = self._chance.choice(_TESTS)
        return Compare(op=op, left=make(depth - 1), right=make(depth - 1))

    def _between(self, depth: int) -> Node:
        make = self._pair_maker()
        return Between(
            value=make(depth - 1),
            low=make(depth - 1),
            high=make(depth - 1),
            negated=self._one_in(2),
        )

    def _among(self, depth: int) -> Node:
        makes: list[tuple[Callable[[int], Node], Callable[[], Literal]]] = [
            (self.number, self._number_literal),
            (self.number, self._number_literal),
            (self.text, lambda: self._literal(TEXTS)),
            (self.binary, lambda: self._literal(BYTES)),
            (self.day, lambda: self._literal(DAYS)),
            (self.instant, self._instant_literal),
            (self.wall_time, lambda: self._literal(WALL_TIMES)),
        ]
        make, literal = self._chance.choice(makes)
        count = self._chance.choice([1, 2, 3, 15])
        members = tuple(literal() for _ in range(count))
        return In(value=self._no_literal(make, depth), members=members, negated=self._one_in(2))

    def _no_literal(self, make: Callable[[int], Node], depth: int) -> Node:
        while isinstance(node := make(depth - 1), Literal):
            pass
        return node

    def _like(self, depth: int) -> Node:
        escape = self._chance.choice(["\\", "\\", "!", "😀"])
        escapes = [escape + "%", escape + "_", escape * 2]
        pieces = ["%", "_", *escapes, "a", "😀", "ı", "b", "\n", "D"]
        pieces = [piece for piece in pieces if piece != escape]
        pattern = "".join(self._chance.choices(pieces, k=self._chance.randrange(5)))
        return Like(
            value=self.text(depth - 1), pattern=pattern, escape=escape, negated=self._one_in(2)
        )

    def _is_null(self, depth: int) -> Node:
        make = self._choose(self._pair_maker, lambda: lambda _: Column(path=("nested",)))
        value = make(depth - 1)
        if isinstance(value, Literal):
            value = Column(path=("txt",))
        if self._one_in(3):
            return Compare(op="<=>", left=value, right=Literal(value=None))
        return IsNull(value=value, negated=self._one_in(2))

    def _literal(self, pool: Sequence[Any]) -> Literal:
        return Literal(value=self._chance.choice(pool))

    def _instant_literal(self) -> Literal:
        return self._literal([time.replace(tzinfo=UTC) for time in WALL_TIMES])

    def _number_literal(self) -> Literal:
        finite = [value for value in DOUBLES if value == value and abs(value) != INFINITY]
        return self._choose(
            lambda: self._literal([*INTEGERS, 127, 128, -300, (1 << 63) - 1, 1 << 63]),
            lambda: self._literal([Decimal(text) for text in DECIMALS]),
            lambda: self._literal(finite),
        )

    def number(self, depth: int) -> Node:
        if depth <= 0 or self._one_in(3):
            return self._choose(
                lambda: Column(path=(self._chance.choice(_EXACT),)),
                lambda: Column(path=(self._chance.choice(_EXACT),)),
                lambda: Column(path=(self._chance.choice(["dbl", "dbl2", "single"]),)),
                lambda: Column(path=("nested", "NUM")),
                self._number_literal,
            )
        return self._choose(
            lambda: self._arithmetic(depth),
            lambda: self._arithmetic(depth),
            lambda: Negative(value=self._no_literal(self.number, depth)),
            lambda: Call(name="abs", arguments=(self.number(depth - 1),)),
            lambda: Call(name="length", arguments=(self.text(depth - 1),)),
            lambda: self._coalesce(self.number, depth),
        )

    def _arithmetic(self, depth: int) -> Node:
        op = self._chance.choice(["+", "-", "*", "/", "%"])
        return Arithmetic(op=op, left=self.number(depth - 1), right=self.number(depth - 1))

    def _coalesce(self, make: Callable[[int], Node], depth: int) -> Node:
        count = self._chance.randint(1, 3)
        return Call(name="coalesce", arguments=tuple(make(depth - 1) for _ in range(count)))

    def text(self, depth: int) -> Node:
        if depth <= 0 or self._one_in(3):
            return self._choose(
                lambda: Column(path=(self._chance.choice(["txt", "TXT", "we.ird `x"]),)),
                lambda: Column(path=("NESTED", "txt")),
                lambda: self._literal(TEXTS),
            )
        return self._choose(
            lambda: Call(
                name=self._chance.choice(["lower", "upper", "trim"]),
                arguments=(self.text(depth - 1),),
            ),
            lambda: Call(name="concat", arguments=(self.text(depth - 1), self.text(depth - 1))),
            lambda: self._substring(depth),
            lambda: self._coalesce(self.text, depth),
        )

    def _substring(self, depth: int) -> Node:
        limits = [Literal(value=self._chance.randint(1, 3))]
        if self._one_in(2):
            limits.append(Literal(value=self._chance.choice([0, 1, 2, 2147483647])))
        return Call(name="substring", arguments=(self.text(depth - 1), *limits))

    def binary(self, depth: int) -> Node:
        return self._choose(lambda: Column(path=("raw",)), lambda: self._literal(BYTES))

    def day(self, depth: int) -> Node:
        return self._choose(
            lambda: Column(path=(self._chance.choice(["day", "day2"]),)),
            lambda: self._literal(DAYS),
            lambda: Call(name="date", arguments=(self.instant(depth - 1),)),
            lambda: Call(name="date", arguments=(self.wall_time(depth - 1),)),
        )

    def instant(self, depth: int) -> Node:
        if depth > 0 and self._one_in(4):
            return self._coalesce(self.instant, depth)
        return self._choose(
            lambda: Column(path=(self._chance.choice(["ts", "ts2"]),)), self._instant_literal
        )

    def wall_time(self, depth: int) -> Node:
        return self._choose(
            lambda: Column(path=(self._chance.choice(["ntz", "ntz2"]),)),
            lambda: self._literal(WALL_TIMES),
        )
