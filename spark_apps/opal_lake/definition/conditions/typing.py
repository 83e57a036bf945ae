"""The binding of a tree to columns: each node gets a column or a type.

A condition that names unknown columns or mixes types is an error here, before a row is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches

from opal_lake.definition.conditions.faults import FaultError, Use
from opal_lake.definition.conditions.kinds import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    MAX_PRECISION,
    NESTED,
    STRING,
    Kind,
    as_decimal,
    common_exact,
    holds,
    kind_of,
    literal_kind,
    result_of,
)
from opal_lake.definition.conditions.like import literal_pattern, pattern_of
from opal_lake.definition.conditions.nodes import (
    Among,
    Apply,
    Compute,
    Constant,
    Every,
    Matches,
    Missing,
    Opposite,
    Read,
    Some,
    Test,
    Truth,
    Typed,
    Widen,
    all_of,
)
from opal_lake.definition.conditions.parser import FUNCTIONS, unknown_function
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
from opal_lake.definition.schema import Field, Struct

MAX_NAMES_SHOWN = 30  # of columns, in a message
MAX_DIVISIONS = 32
MAX_DIVISIONS_IN_DIVISORS = 4  # Spark evaluates a divisor twice, so that nested ones double
_TIMES = ("date", "timestamp", "timestamp_ntz")
_ORDERED = ("string", "binary", *_TIMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns that a condition may name, and where it is used."""

    fields: Sequence[Field]
    use: Use

    def read(self, column: Column) -> Read:
        """Return the column; as in Spark, names are not case-sensitive."""
        field = self.named(self.fields, column.path[0], column)
        path = [field.name]
        for name in column.path[1:]:
            if not isinstance(field.type, Struct):
                shown = ".".join(path)
                raise FaultError(column.at, f"{shown!r} is not a struct, so it has no {name!r}")
            field = self.named(field.type.fields, name, column)
            path.append(field.name)
        field_id = field.id if len(path) == 1 else None
        return Read(path=tuple(path), kind=kind_of(field.type), field_id=field_id)

    def named(self, fields: Sequence[Field], name: str, column: Column) -> Field:
        """Return the field of a name, by its exact case if there is one."""
        exact = {field.name: field for field in fields}
        folded = {field.name.casefold(): field for field in fields}
        field = exact.get(name) or folded.get(name.casefold())
        if field is None:
            raise FaultError(column.at, f"no column {name!r}; {_known(name, list(exact))}")
        return field


def bind(node: Node, columns: Columns) -> Typed:
    """Return the typed form of a whole condition, which is true, false or null."""
    binder = _Binder(columns)
    typed = binder.truth(node)
    _check_divisions(typed)
    return typed


def bind_value(node: Node, columns: Columns) -> Typed:
    """Return the typed form of an expression, whose value is of any type."""
    typed = _Binder(columns).value(node)
    _check_divisions(typed)
    return typed


class _Binder:
    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def truth(self, node: Node) -> Typed:
        """Return the typed form of a part that has to be true, false or null."""
        typed = self.value(node)
        if typed.kind != BOOLEAN:
            raise FaultError(
                node.at,
                f"expected something true or false, found {_shown(typed)}; compare it with a value",
            )
        return typed

    def value(self, node: Node) -> Typed:
        match node:
            case Column():
                return self._columns.read(node)
            case Literal():
                return _constant(node)
            case Arithmetic():
                return self._arithmetic(node)
            case Negative():
                return self._negative(node)
            case Call():
                return self._call(node)
        return self._test(node)

    def _test(self, node: Node) -> Typed:
        match node:
            case Compare():
                return self._compare(node)
            case Between():
                return self._between(node)
            case In():
                return self._among(node)
            case Like():
                return self._like(node)
            case IsNull():
                return _negated(Missing(value=self.value(node.value)), negated=node.negated)
            case IsTruth():
                truth = Truth(value=self.truth(node.value), truth=node.truth)
                return _negated(truth, negated=node.negated)
        return self._logic(node)

    def _logic(self, node: Node) -> Typed:
        match node:
            case Not():
                return Opposite(value=self.truth(node.value))
            case And():
                return Every(parts=tuple(self.truth(part) for part in node.parts))
            case Or():
                return Some(parts=tuple(self.truth(part) for part in node.parts))
        raise AssertionError(node)

    def _compare(self, node: Compare) -> Typed:
        if node.op == "<=>":
            for side, other in ((node.left, node.right), (node.right, node.left)):
                if _is_null(side):
                    return Missing(value=self.value(other))
        left, right = self._pair(node.left, node.right, node.at)
        if node.op not in ("=", "!=", "<=>"):
            _check_order(left, node)
        return Test(op=node.op, left=left, right=right)

    def _pair(self, left: Node, right: Node, at: int) -> tuple[Typed, Typed]:
        """Return both sides in one kind."""
        for side in (left, right):
            if _is_null(side):
                raise _null_compared(side)
        return _alike(self.value(left), self.value(right), at)

    def _between(self, node: Between) -> Typed:
        for side in (node.value, node.low, node.high):
            if _is_null(side):
                raise _null_compared(side)
        whole = self.value(node.value)
        value, low = _alike(whole, self.value(node.low), node.at)
        other, high = _alike(whole, self.value(node.high), node.at)
        _check_order(value, node)
        inside = Every(
            parts=(
                Test(op=">=", left=value, right=low),
                Test(op="<=", left=other, right=high),
            )
        )
        return _negated(inside, negated=node.negated)

    def _among(self, node: In) -> Typed:
        """Return the membership; members that differ in kind widen the value for all."""
        value = self.value(node.value)
        for member in node.members:
            if member.value is None:
                raise FaultError(
                    member.at, "NULL in a list of IN is never equal; write OR x IS NULL instead"
                )
            value, _ = _alike(value, _constant(member), node.at)
        # Once more: only now the widest kind is known
        members: list[Constant] = []
        for member in node.members:
            _, constant = _alike(value, _constant(member), node.at)
            members.append(_constant_of(constant))
        return _negated(Among(value=value, members=tuple(members)), negated=node.negated)

    def _like(self, node: Like) -> Typed:
        value = self._text(node.value, "LIKE")
        try:
            pattern = pattern_of(node.pattern, node.escape)
        except ValueError as error:
            raise FaultError(node.at, f"the pattern of LIKE {error}") from None
        return _negated(Matches(value=value, pattern=pattern), negated=node.negated)

    def _text(self, node: Node, where: str) -> Typed:
        value = self.value(node)
        if value.kind != STRING:
            raise FaultError(node.at, f"{where} takes a text, found {_shown(value)}")
        return value

    def _arithmetic(self, node: Arithmetic) -> Typed:
        left, right = self._number(node.left, node.op), self._number(node.right, node.op)
        if node.op in ("/", "%") and isinstance(right, Constant) and not right.value:
            raise FaultError(node.right.at, "a division by zero; write another divisor")
        if node.op == "/" or not (left.kind.is_exact and right.kind.is_exact):
            return Compute(op=node.op, left=_double(left), right=_double(right), kind=DOUBLE)
        left, right = _decimal(left), _decimal(right)
        kind = result_of(node.op, left.kind, right.kind)
        if kind is None:
            raise FaultError(
                node.at,
                f"{left.kind.shown} {node.op} {right.kind.shown} may have more than "
                f"{MAX_PRECISION} digits; {self._columns.use.instead}",
            )
        return Compute(op=node.op, left=left, right=right, kind=kind)

    def _number(self, node: Node, where: str) -> Typed:
        if _is_null(node):
            raise FaultError(
                node.at, f"NULL next to {where!r} makes the result null; write a number"
            )
        value = self.value(node)
        if not value.kind.is_number:
            raise FaultError(node.at, f"{where!r} takes numbers, found {_shown(value)}")
        return value

    def _negative(self, node: Negative) -> Typed:
        number = _computable(self._number(node.value, "-"))
        return Apply(name="negative", arguments=(number,), kind=number.kind)

    def _call(self, node: Call) -> Typed:
        make = _FUNCTIONS.get(node.name)
        if make is None:
            raise unknown_function(node.name, node.at, self._columns.use)
        for argument in node.arguments:
            if _is_null(argument):
                raise FaultError(argument.at, f"{node.name}() takes no NULL; leave it out")
        typed = make(self, node)
        if typed is None:
            raise FaultError(node.at, f"write {FUNCTIONS[node.name]}")
        return typed

    def of_texts(self, node: Call) -> Typed | None:
        """Return a call of `lower`, `upper`, `trim` or `length`."""
        if len(node.arguments) != 1:
            return None
        value = self._text(node.arguments[0], f"{node.name}()")
        kind = INTEGER if node.name == "length" else STRING
        return Apply(name=node.name, arguments=(value,), kind=kind)

    def concat(self, node: Call) -> Typed | None:
        if not node.arguments:
            return None
        texts = tuple(self._text(argument, "concat()") for argument in node.arguments)
        return Apply(name="concat", arguments=texts, kind=STRING)

    def substring(self, node: Call) -> Typed | None:
        if len(node.arguments) not in (2, 3):
            return None
        text, *numbers = node.arguments
        limits: list[int] = []
        for number in numbers:
            if not isinstance(number, Literal) or type(number.value) is not int:
                return None
            if not 0 <= number.value < 1 << 31:
                return None
            limits.append(number.value)
        # SQL counts characters from 1
        if limits[0] == 0:
            return None
        constants = [Constant(value=limit, kind=INTEGER) for limit in limits]
        arguments = (self._text(text, "substring()"), *constants)
        return Apply(name="substring", arguments=arguments, kind=STRING)

    def holds_text(self, node: Call) -> Typed | None:
        """Return `startswith`, `endswith` and `contains` as patterns."""
        if len(node.arguments) != 2:
            return None
        text = node.arguments[1]
        if not isinstance(text, Literal) or not isinstance(text.value, str):
            return None
        value = self._text(node.arguments[0], f"{node.name}()")
        starts, ends = node.name == "startswith", node.name == "endswith"
        pattern = literal_pattern(text.value, starts=starts, ends=ends)
        return Matches(value=value, pattern=pattern)

    def abs(self, node: Call) -> Typed | None:
        if len(node.arguments) != 1:
            return None
        number = _computable(self._number(node.arguments[0], "abs()"))
        return Apply(name="abs", arguments=(number,), kind=number.kind)

    def isnan(self, node: Call) -> Typed | None:
        if len(node.arguments) != 1:
            return None
        value = self._number(node.arguments[0], "isnan()")
        return Apply(name="isnan", arguments=(_double(value),), kind=BOOLEAN)

    def date(self, node: Call) -> Typed | None:
        if len(node.arguments) != 1:
            return None
        value = self.value(node.arguments[0])
        if value.kind == DATE:
            return value
        if value.kind.name not in _TIMES:
            raise FaultError(
                node.arguments[0].at,
                f"date() takes a timestamp, found {_shown(value)}; "
                "write a day as DATE '2026-11-28'",
            )
        return Apply(name="date", arguments=(value,), kind=DATE)

    def coalesce(self, node: Call) -> Typed | None:
        if not node.arguments:
            return None
        values = [self.value(argument) for argument in node.arguments]
        if len(values) == 1:
            return values[0]
        widest = values[0]
        for value in values[1:]:
            widest, _ = _alike(widest, value, node.at)
        # Only now the widest kind is known: convert all values to it
        converted: list[Typed] = []
        for value in values:
            _, alike = _alike(widest, value, node.at)
            converted.append(alike)
        return Apply(name="coalesce", arguments=tuple(converted), kind=widest.kind)


_Made = Callable[[_Binder, Call], Typed | None]
_FUNCTIONS: Mapping[str, _Made] = {
    "abs": _Binder.abs,
    "coalesce": _Binder.coalesce,
    "concat": _Binder.concat,
    "contains": _Binder.holds_text,
    "date": _Binder.date,
    "endswith": _Binder.holds_text,
    "isnan": _Binder.isnan,
    "length": _Binder.of_texts,
    "lower": _Binder.of_texts,
    "startswith": _Binder.holds_text,
    "substring": _Binder.substring,
    "trim": _Binder.of_texts,
    "upper": _Binder.of_texts,
}


def _known(name: str, names: list[str]) -> str:
    """Return the columns that may be meant, for the end of a message."""
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = [repr(known) for known in names[:MAX_NAMES_SHOWN]]
    if len(names) > MAX_NAMES_SHOWN:
        shown.append("...")
    return f"there are {', '.join(shown)}"


def _is_null(node: Node) -> bool:
    return isinstance(node, Literal) and node.value is None


def _null_compared(node: Node) -> FaultError:
    return FaultError(
        node.at, "a comparison with NULL is never true; write x IS NULL, or x <=> NULL"
    )


def _negated(node: Typed, *, negated: bool) -> Typed:
    return Opposite(value=node) if negated else node


def _shown(value: Typed) -> str:
    match value:
        case Read():
            return f"column {'.'.join(value.path)!r} of type {value.kind.shown}"
        case Constant():
            return f"the {value.kind.shown} {value.value!r}"
    return f"a value of type {value.kind.shown}"


def _constant(literal: Literal) -> Constant:
    value = literal.value
    if value is None:
        raise FaultError(literal.at, "NULL has no type here; write x IS NULL")
    return Constant(value=value, kind=_kind_of_value(value))


def _kind_of_value(value: Value) -> Kind:
    match value:
        case bool():
            return BOOLEAN
        case int() | Decimal():
            return literal_kind(value)
        case float():
            return DOUBLE
        case str():
            return STRING
        case bytes():
            return Kind(name="binary")
        case datetime():
            return Kind(name="timestamp" if value.tzinfo else "timestamp_ntz")
        case date():
            return DATE
    raise AssertionError(value)


def _constant_of(node: Typed) -> Constant:
    assert isinstance(node, Constant)
    return node


def _alike(left: Typed, right: Typed, at: int) -> tuple[Typed, Typed]:
    """Return both in one kind; FaultError if they are not comparable."""
    if NESTED in (left.kind, right.kind):
        nested = left if left.kind == NESTED else right
        raise FaultError(
            at,
            f"{_shown(nested)} can only be tested by IS NULL; name a member of a struct, "
            "or filter the rows that are read by arrays and maps",
        )
    if left.kind.is_number and right.kind.is_number:
        return _numbers_alike(left, right, at)
    if left.kind != right.kind:
        raise FaultError(
            at, f"{_shown(left)} and {_shown(right)} are not comparable; {_advice(left, right)}"
        )
    return left, right


def _numbers_alike(left: Typed, right: Typed, at: int) -> tuple[Typed, Typed]:
    if not (left.kind.is_exact and right.kind.is_exact):
        return _double(left), _double(right)
    kind = _common_kind(left, right)
    if kind is None:
        raise FaultError(
            at,
            f"{_shown(left)} and {_shown(right)} have more than {MAX_PRECISION} digits together; "
            "compare numbers with fewer",
        )
    return _exact(left, kind), _exact(right, kind)


def _common_kind(left: Typed, right: Typed) -> Kind | None:
    for value, other in ((left, right), (right, left)):
        if isinstance(other, Constant) and not isinstance(value, Constant):
            return _kind_for(value, other)
    return common_exact(left.kind, right.kind)


def _kind_for(value: Typed, constant: Constant) -> Kind | None:
    """Return the value's own kind if it holds the constant, otherwise a wider one."""
    number = constant.value
    assert isinstance(number, int | Decimal)
    # Only a column that is not converted is pruned
    if holds(value.kind, number):
        return value.kind
    return common_exact(value.kind, constant.kind)


def _exact(value: Typed, kind: Kind) -> Typed:
    if isinstance(value, Constant):
        assert isinstance(value.value, int | Decimal)
        number = int(value.value) if kind.is_integer else Decimal(value.value)
        return Constant(value=number, kind=kind)
    if value.kind == kind:
        return value
    return Widen(value=value, kind=kind)


def _decimal(value: Typed) -> Typed:
    return _exact(value, as_decimal(value.kind))


def _computable(value: Typed) -> Typed:
    """Return a number in a kind that has the negative of each value.

    No integer kind has it.
    """
    if value.kind.is_binary_fraction:
        return _double(value)
    return _decimal(value)


def _double(value: Typed) -> Typed:
    if isinstance(value, Constant):
        assert isinstance(value.value, int | Decimal | float)
        return Constant(value=float(value.value), kind=DOUBLE)
    if value.kind == DOUBLE:
        return value
    return Widen(value=value, kind=DOUBLE)


def _check_order(value: Typed, node: Node) -> None:
    if not value.kind.is_number and value.kind.name not in _ORDERED:
        raise FaultError(node.at, f"{_shown(value)} has no order; test it with = or !=")


def _is_nan_text(value: Typed) -> bool:
    return isinstance(value, Constant) and str(value.value).casefold() == "nan"


def _advice(left: Typed, right: Typed) -> str:
    names = {left.kind.name, right.kind.name}
    if names == {"date", "string"}:
        return "write the day as DATE '2026-11-28'"
    if names == {"timestamp", "string"}:
        return "write the time as TIMESTAMP '2026-11-28 09:30:00', which is in UTC"
    if names == {"timestamp_ntz", "string"}:
        return "write the time as TIMESTAMP_NTZ '2026-11-28 09:30:00'"
    if names == {"binary", "string"}:
        return "write the bytes as X'1F00'"
    if names == {"timestamp", "timestamp_ntz"}:
        return (
            "only one has a zone; write the literal as TIMESTAMP or TIMESTAMP_NTZ like the column"
        )
    if "date" in names and names & {"timestamp", "timestamp_ntz"}:
        return "compare date(the timestamp) with the day, or write the day as a time"
    if names & {"float", "double"} and (_is_nan_text(left) or _is_nan_text(right)):
        return "test for NaN with isnan(the number)"
    if "string" in names and (left.kind.is_number or right.kind.is_number):
        return "write a text in quotes, and a number without"
    return "compare values of one type"


def _check_divisions(condition: Typed) -> None:
    """Refuse many divisions, and divisions nested in divisors.

    Each one in a divisor doubles the work of those in it.
    """
    divisions = [node for node in all_of(condition) if _is_division(node)]
    if len(divisions) > MAX_DIVISIONS:
        raise FaultError(0, f"there are more than {MAX_DIVISIONS} divisions; write fewer")
    for division in divisions:
        assert isinstance(division, Compute)
        inner = [node for node in all_of(division.right) if node in divisions]
        if len(inner) > MAX_DIVISIONS_IN_DIVISORS:
            raise FaultError(
                0,
                f"a divisor holds more than {MAX_DIVISIONS_IN_DIVISORS} divisions; "
                "write it flatter",
            )


def _is_division(node: Typed) -> bool:
    return isinstance(node, Compute) and node.op in ("/", "%")
