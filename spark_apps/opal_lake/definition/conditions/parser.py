"""The parser: a text to a tree, by recursive descent of bounded depth."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import cast

from opal_lake.definition.conditions.faults import ANY_USE, FaultError, Use, invalid
from opal_lake.definition.conditions.lexer import Token, tokens_of
from opal_lake.definition.conditions.times import day_of, instant_of, wall_clock_of
from opal_lake.definition.conditions.tree import (
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
)

# Nested parentheses. Each level takes eight frames of Python's stack
MAX_PARENTHESES = 50

KEYWORDS = frozenset(
    ["AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"]
)
# Words of SQL that a user may expect here; they are not columns, unless they are quoted
FOREIGN = frozenset(
    ["CASE", "CAST", "COLLATE", "DIV", "EXISTS", "ILIKE", "INTERVAL", "REGEXP", "RLIKE", "SELECT"]
)
# How a call of each function is written. `typing.py`, `evaluate.py` (Arrow) and
# `opal_spark/engine/conditions.py` (Spark) have a table of the same functions.
FUNCTIONS: Mapping[str, str] = {
    "abs": "abs(number)",
    "coalesce": "coalesce(a, b, ...), whose arguments have one type",
    "concat": "concat(text, text, ...)",
    "contains": "contains(text, 'part'), the part as a literal",
    "date": "date(timestamp), the day in UTC",
    "endswith": "endswith(text, 'end'), the end as a literal",
    "isnan": "isnan(number)",
    "length": "length(text), in code points",
    "lower": "lower(text), of A to Z",
    "startswith": "startswith(text, 'begin'), the begin as a literal",
    "substring": "substring(text, 1, 3), with whole literals, the first at least 1",
    "trim": "trim(text), of spaces",
    "upper": "upper(text), of a to z",
}
_COMPARISONS: dict[str, Comparison] = {
    "=": "=",
    "==": "=",
    "<>": "!=",
    "!=": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "<=>": "<=>",
}
_LITERALS: dict[str, Callable[[str], Value]] = {
    "DATE": day_of,
    "TIMESTAMP": instant_of,
    "TIMESTAMP_NTZ": wall_clock_of,
}
_HAS = (
    "comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, IS TRUE, + - * / %, and the functions "
    "of docs/reference/conditions.md"
)


def parse(text: str, use: Use = ANY_USE) -> Node:
    """Return the tree of a text.

    Raises InvalidInputError with the position of a fault, the fault and the remedy.
    """
    try:
        return parse_text(text, use)
    except FaultError as fault:
        raise invalid(use, text, fault) from None


def parse_text(text: str, use: Use) -> Node:
    """Return the tree of a text; raise FaultError if it has a fault."""
    parser = _Parser(tokens_of(text, use.max_characters), use)
    tree = parser.whole()
    if depth_of(tree) > MAX_DEPTH:
        raise FaultError(0, f"the condition has more than {MAX_DEPTH} levels; write it flatter")
    return tree


class _Parser:
    """One pass over the tokens of a text."""

    def __init__(self, tokens: list[Token], use: Use) -> None:
        self._tokens, self._use = tokens, use
        self._position = 0
        self._open = 0

    def whole(self) -> Node:
        node = self._either()
        if self._next.kind != "end":
            raise self._unexpected("an operator or the end")
        return node

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _take(self) -> Token:
        token = self._next
        self._position += 1
        return token

    def _take_operator(self, *operators: str) -> Token | None:
        if self._next.kind == "operator" and self._next.value in operators:
            return self._take()
        return None

    def _take_keyword(self, *keywords: str) -> Token | None:
        if self._next.keyword in keywords:
            return self._take()
        return None

    def _expect(self, operator: str, why: str) -> Token:
        token = self._take_operator(operator)
        if token is None:
            raise self._unexpected(f"{operator!r} {why}")
        return token

    def _unexpected(self, expected: str) -> FaultError:
        token = self._next
        if token.keyword in FOREIGN:
            return FaultError(
                token.at,
                f"conditions do not have {token.keyword}; they have {_HAS}; {self._use.instead}",
            )
        return FaultError(token.at, f"expected {expected}, found {token.shown}")

    def _either(self) -> Node:
        parts = [self._both()]
        while self._take_keyword("OR"):
            parts.append(self._both())
        if len(parts) == 1:
            return parts[0]
        return Or(parts=tuple(parts), at=parts[0].at)

    def _both(self) -> Node:
        parts = [self._negation()]
        while self._take_keyword("AND"):
            parts.append(self._negation())
        if len(parts) == 1:
            return parts[0]
        return And(parts=tuple(parts), at=parts[0].at)

    def _negation(self) -> Node:
        """Parse `NOT NOT x` by a loop: the stack does not grow with the number of NOTs."""
        negations: list[Token] = []
        while token := self._take_keyword("NOT"):
            negations.append(token)
        node = self._test()
        for token in reversed(negations):
            node = Not(value=node, at=token.at)
        return node

    def _test(self) -> Node:
        """Parse a value and its tests.

        A value may have several tests with IS, such as `a IS NULL IS NOT NULL`, but only one other.
        """
        node = self._sum()
        is_tested = False
        while self._begins_test():
            token = self._next
            if self._take_keyword("IS"):
                node = self._state(node)
                continue
            if is_tested:
                raise FaultError(
                    token.at, f"found a second test, {token.value!r}; join tests by AND, or use ( )"
                )
            is_tested = True
            if token.kind == "operator":
                node = self._comparison(node)
            else:
                node = self._membership(node)
        return node

    def _begins_test(self) -> bool:
        token = self._next
        if token.kind == "operator":
            return token.value in _COMPARISONS
        return token.keyword in ("IS", "IN", "BETWEEN", "LIKE", "NOT")

    def _comparison(self, left: Node) -> Node:
        op = _COMPARISONS[self._take().value]
        return Compare(op=op, left=left, right=self._sum(), at=left.at)

    def _state(self, value: Node) -> Node:
        negated = self._take_keyword("NOT") is not None
        if self._take_keyword("NULL"):
            return IsNull(value=value, negated=negated, at=value.at)
        truth = self._take_keyword("TRUE", "FALSE")
        if truth is None:
            raise self._unexpected("NULL, TRUE or FALSE behind IS")
        is_true = truth.keyword == "TRUE"
        return IsTruth(value=value, truth=is_true, negated=negated, at=value.at)

    def _membership(self, value: Node) -> Node:
        negated = self._take_keyword("NOT") is not None
        if self._take_keyword("IN"):
            return self._list(value, negated=negated)
        if self._take_keyword("BETWEEN"):
            low = self._sum()
            if not self._take_keyword("AND"):
                raise self._unexpected("AND between the ends of BETWEEN")
            high = self._sum()
            return Between(value=value, low=low, high=high, negated=negated, at=value.at)
        if self._take_keyword("LIKE"):
            return self._like(value, negated=negated)
        raise self._unexpected("IN, BETWEEN or LIKE behind NOT")

    def _list(self, value: Node, *, negated: bool) -> Node:
        self._expect("(", "behind IN, for example IN ('D', 'X')")
        members = [self._member()]
        while self._take_operator(","):
            members.append(self._member())
        self._expect(")", "or ',' in the list of IN")
        return In(value=value, members=tuple(members), negated=negated, at=value.at)

    def _member(self) -> Literal:
        at = self._next.at
        member = self._signed()
        if not isinstance(member, Literal):
            raise FaultError(
                at, "a list of IN holds literals only; write x = a OR x = b for other values"
            )
        return member

    def _like(self, value: Node, *, negated: bool) -> Node:
        pattern = self._text("a text as pattern behind LIKE, for example LIKE 'a%'")
        escape = "\\"
        if self._take_keyword("ESCAPE"):
            at = self._next.at
            escape = self._text("a character behind ESCAPE, for example ESCAPE '!'")
            if len(escape) != 1 or escape in "%_":
                raise FaultError(
                    at, f"ESCAPE is one character other than % and _, got {escape!r}; write '!'"
                )
        return Like(value=value, pattern=pattern, escape=escape, negated=negated, at=value.at)

    def _text(self, expected: str) -> str:
        if self._next.kind != "text":
            raise self._unexpected(expected)
        return self._take().value

    def _sum(self) -> Node:
        node = self._product()
        while token := self._take_operator("+", "-"):
            op = cast("Operation", token.value)
            node = Arithmetic(op=op, left=node, right=self._product(), at=token.at)
        return node

    def _product(self) -> Node:
        node = self._signed()
        while token := self._take_operator("*", "/", "%"):
            op = cast("Operation", token.value)
            node = Arithmetic(op=op, left=node, right=self._signed(), at=token.at)
        return node

    def _signed(self) -> Node:
        signs: list[Token] = []
        while token := self._take_operator("+", "-"):
            signs.append(token)
        node = self._operand()
        for token in reversed(signs):
            if token.value == "-":
                node = _negative(node, token.at)
        return node

    def _operand(self) -> Node:
        token = self._next
        if token.kind == "operator" and token.value == "(":
            return self._parenthesis()
        if token.kind == "number":
            return _number(self._take())
        if token.kind == "text":
            return Literal(value=self._take().value, at=token.at)
        if token.kind in ("word", "name"):
            return self._named()
        raise self._unexpected("a column, a literal or a function")

    def _parenthesis(self) -> Node:
        at = self._take().at
        self._open += 1
        if self._open > MAX_PARENTHESES:
            raise FaultError(at, f"more than {MAX_PARENTHESES} parentheses nest; write it flatter")
        node = self._either()
        if self._take_operator(")") is None:
            raise self._unexpected(f"')' for the '(' at column {at + 1}")
        self._open -= 1
        return node

    def _named(self) -> Node:
        token = self._next
        following = self._tokens[self._position + 1]
        if token.keyword in ("TRUE", "FALSE", "NULL"):
            self._take()
            return Literal(value=_CONSTANTS[token.keyword], at=token.at)
        if token.kind == "word" and following.kind == "text":
            return self._typed_literal()
        is_foreign = token.keyword in FOREIGN and following.kind not in ("operator", "end")
        if token.keyword in KEYWORDS or is_foreign:
            raise self._unexpected("a column, a literal or a function")
        if token.kind == "word" and following.kind == "operator" and following.value == "(":
            return self._call()
        return self._column()

    def _typed_literal(self) -> Node:
        word, text = self._take(), self._take()
        if word.keyword == "X":
            try:
                return Literal(value=bytes.fromhex(text.value), at=word.at)
            except ValueError:
                raise FaultError(
                    text.at, f"X{text.value!r} is not hexadecimal; write bytes as X'1F00'"
                ) from None
        reader = _LITERALS.get(word.keyword)
        if reader is None:
            raise FaultError(
                word.at,
                f"found {word.value!r} before a text; texts with a type are DATE '...', "
                "TIMESTAMP '...', TIMESTAMP_NTZ '...' and X'...'",
            )
        try:
            return Literal(value=reader(text.value), at=word.at)
        except ValueError as error:
            raise FaultError(text.at, f"{text.value!r} {error}") from None

    def _call(self) -> Node:
        # The caller has seen the parenthesis behind the name
        name = self._take()
        if name.value.lower() not in FUNCTIONS:
            raise unknown_function(name.value.lower(), name.at, self._use)
        self._take()
        self._open += 1
        if self._open > MAX_PARENTHESES:
            raise FaultError(
                name.at, f"more than {MAX_PARENTHESES} parentheses nest; write it flatter"
            )
        arguments: list[Node] = []
        if self._take_operator(")") is None:
            arguments.append(self._either())
            while self._take_operator(","):
                arguments.append(self._either())
            self._expect(")", f"or ',' in the arguments of {name.value}()")
        self._open -= 1
        return Call(name=name.value.lower(), arguments=tuple(arguments), at=name.at)

    def _column(self) -> Node:
        first = self._take()
        path = [first.value]
        while self._take_operator("."):
            if self._next.kind not in ("word", "name"):
                raise self._unexpected("the name of a member behind '.'")
            path.append(self._take().value)
        if "" in path:
            raise FaultError(first.at, "a name is empty; write the name of a column")
        return Column(path=tuple(path), at=first.at)


def unknown_function(name: str, at: int, use: Use) -> FaultError:
    """Return the fault of a call of an unknown function."""
    known = ", ".join(sorted(FUNCTIONS))
    return FaultError(
        at, f"conditions do not have the function {name}(); they have {known}; {use.instead}"
    )


_CONSTANTS: dict[str, bool | None] = {"TRUE": True, "FALSE": False, "NULL": None}


def _negative(node: Node, at: int) -> Node:
    """Return the negative of a node; the sign of a number belongs to the literal."""
    is_number = isinstance(node, Literal) and not isinstance(node.value, bool)
    if is_number and isinstance(node, Literal) and isinstance(node.value, int | Decimal | float):
        value = node.value
        negated = value.copy_negate() if isinstance(value, Decimal) else -value
        return Literal(value=negated, at=at)
    return Negative(value=node, at=at)


def _number(token: Token) -> Literal:
    text = token.value
    if "e" in text.lower():
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise FaultError(token.at, f"{text} is beyond a double; write a smaller number")
        return Literal(value=value, at=token.at)
    digits = text.replace(".", "").lstrip("0")
    if len(digits) > MAX_DIGITS or len(text.partition(".")[2]) > MAX_DIGITS:
        raise FaultError(token.at, f"{text[:50]} has more than {MAX_DIGITS} digits; write fewer")
    if "." not in text:
        return Literal(value=int(text), at=token.at)
    return Literal(value=Decimal(text), at=token.at)
