"""A place in the tokens of a statement, and the pieces of grammar that all statements share."""

from collections.abc import Collection
from typing import Final, NamedTuple

from opal_lake.errors import InvalidInputError
from opal_lake.sql.lexer import (
    END,
    NUMBER,
    QUOTED,
    STRING,
    SYMBOL,
    WORD,
    Token,
    error_at,
    identifier_value,
    shown,
    string_value,
    words,
)
from opal_lake.sql.statements import (
    Changes,
    Names,
    Reference,
    Slice,
    TableName,
    TimestampAsOf,
    VersionAsOf,
)

_NOTHING: Final = frozenset[str]()
_PAIRS = {"(": ")", "[": "]"}
# Words that join two operands
_INFIX = words("AND OR IN IS LIKE ILIKE RLIKE REGEXP BETWEEN DIV ESCAPE BY AS HAVING WHERE")
_WITHIN_CASE = frozenset({"WHEN", "THEN", "ELSE"})
# What follows CASE where it is the name of a column
_AFTER_A_COLUMN = _INFIX | {"FROM", "THEN", "ASC", "DESC", "END", "WHERE", "GROUP", "ORDER"}
_PREFIX_SYMBOLS = frozenset({"(", "[", "-", "+", "~", "!", "?", ":", "*"})
# Words that are never an alias
_STRICT = words(
    "ANTI CROSS EXCEPT FULL INNER INTERSECT JOIN LATERAL LEFT NATURAL ON RIGHT SEMI"
    " MINUS UNION USING"
)
# A word that begins a clause if one of these follows, and is an alias otherwise
_CLAUSE_BY_NEXT: dict[str, frozenset[str]] = {
    "GROUP": frozenset({"BY"}),
    "ORDER": frozenset({"BY"}),
    "CLUSTER": frozenset({"BY"}),
    "DISTRIBUTE": frozenset({"BY"}),
    "SORT": frozenset({"BY"}),
    "PIVOT": frozenset({"("}),
    "UNPIVOT": frozenset({"(", "INCLUDE", "EXCLUDE"}),
    "TABLESAMPLE": frozenset({"("}),
    "WITH": frozenset({"("}),
    "INSERT": frozenset({"INTO", "OVERWRITE"}),
}
# A word that begins a clause if an expression follows
_CLAUSE_BEFORE_EXPRESSION = words("WHERE HAVING WINDOW LIMIT OFFSET SELECT MAP REDUCE SET WHEN")
_CLAUSE_WITH_ONE_EXPRESSION = _CLAUSE_BEFORE_EXPRESSION - {"SELECT", "MAP", "REDUCE"}
_NOT_AN_EXPRESSION = frozenset({"", ")", ",", ";", "|>", "=", "=="}) | _STRICT
_UNITS = frozenset(
    unit + plural
    for unit in [
        "NANOSECOND",
        "MICROSECOND",
        "MILLISECOND",
        "SECOND",
        "MINUTE",
        "HOUR",
        "DAY",
        "WEEK",
        "MONTH",
        "YEAR",
    ]
    for plural in ("", "S")
)
_TYPES_IN_ANGLES = frozenset({"ARRAY", "MAP", "STRUCT"})
_BY = {
    "VERSION": "version",
    "SYSTEM_VERSION": "version",
    "TIMESTAMP": "timestamp",
    "SYSTEM_TIME": "timestamp",
}

_QUERY_WORDS = words("SELECT WITH FROM VALUES TABLE MAP REDUCE")
# A word of _QUERY_WORDS is a name if one of these follows
_AFTER_A_NAME = frozenset({")", "]", ",", ".", ";", "=", "==", "<", ">", "<>", "|>", "AS", "::"})


class Progress(NamedTuple):
    """The part of an expression that is read.

    `at` is the next token. `complete` says that the expression could end before it; `cases` counts
    the CASE without END.
    """

    at: int
    complete: bool = False
    cases: int = 0


class Cursor:
    """A place in the tokens of a statement. Methods that read something move it on."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.closers = _closers(text, tokens)
        self.index = 0

    # Looking

    @property
    def token(self) -> Token:
        """Return the token at this place."""
        return self.tokens[self.index]

    @property
    def word(self) -> str:
        """Return the keyword or symbol at this place, or an empty text."""
        return self.tokens[self.index].value

    def after(self, count: int = 1) -> Token:
        """Return a later token; the last one is END."""
        return self.tokens[min(self.index + count, len(self.tokens) - 1)]

    def at(self, *words: str) -> bool:
        """Return whether these keywords and symbols are next."""
        return all(self.after(count).value == word for count, word in enumerate(words))

    def is_name(self, token: Token | None = None) -> bool:
        """Return whether a token can be an identifier."""
        kind = (token or self.token).kind
        return kind in (WORD, QUOTED)

    # Reading

    def accept(self, *words: str) -> bool:
        """Read these keywords and symbols, if they are next."""
        if not self.at(*words):
            return False
        self.index += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Read these keywords and symbols, one by one."""
        for word in words:
            if self.word != word:
                raise self.error(word)
            self.index += 1

    def error(self, expected: str, token: Token | None = None) -> InvalidInputError:
        """Return an error that names what was expected here, and what is here."""
        token = token or self.token
        message = f"expected {expected}, found {shown(self.text, token)}"
        return error_at(self.text, token.start, message)

    def refusal(self, message: str, offset: int | None = None) -> InvalidInputError:
        """Return an error with a message of its own, at an offset or at this place."""
        return error_at(self.text, self.token.start if offset is None else offset, message)

    def slice(self, first: int, stop: int) -> Slice:
        """Return the text of the tokens from `first` up to but not including `stop`."""
        start = self.tokens[first].start
        end = self.tokens[stop - 1].end if stop > first else start
        return Slice(text=self.text[start:end], offset=start)

    def slice_from(self, first: int) -> Slice:
        """Return the text of the tokens from `first` up to this place."""
        return self.slice(first, self.index)

    def identifier(self, what: str = "a name") -> str:
        """Read an identifier."""
        if not self.is_name():
            raise self.error(what)
        value = identifier_value(self.text, self.token)
        if not value:
            raise self.error(what)
        self.index += 1
        return value

    def names(self, what: str = "a name") -> Names:
        """Read an identifier of one or several parts, with points between them."""
        parts = [self.identifier(what)]
        while self.accept("."):
            parts.append(self.identifier(what))
        return tuple(parts)

    def name_list(self, what: str = "a column") -> Names:
        """Read `(a, b)`."""
        self.expect("(")
        items = [self.identifier(what)]
        while self.accept(","):
            items.append(self.identifier(what))
        self.expect(")")
        return tuple(items)

    def table_name(self, what: str = "the name of a table") -> TableName:
        """Read the name of a table, or IDENTIFIER(...)."""
        first = self.index
        if self.at("IDENTIFIER", "("):
            inner = self.inside_parentheses(self.index + 1)
            self.index = self.closers[first + 1] + 1
            return TableName(parts=(), slice=self.slice_from(first), computed=inner)
        parts = self.names(what)
        return TableName(parts=parts, slice=self.slice_from(first))

    def inside_parentheses(self, opener: int) -> Slice:
        """Return the text between a parenthesis and its partner, which may not be empty."""
        closer = self.closers[opener]
        if closer == opener + 1:
            raise self.error("an expression", self.tokens[closer])
        return self.slice(opener + 1, closer)

    def parenthesised(self) -> Slice:
        """Read `( ... )`, and return what is between the parentheses."""
        if self.word != "(":
            raise self.error("(")
        opener = self.index
        self.index = self.closers[opener] + 1
        return self.inside_parentheses(opener)

    def string(self, what: str = "a string") -> str:
        """Read a string; strings next to each other are one value."""
        if self.token.kind != STRING:
            raise self.error(what)
        parts = []
        while self.token.kind == STRING:
            parts.append(string_value(self.text, self.token))
            self.index += 1
        return "".join(parts)

    def whole_number(self, what: str) -> int:
        """Read an integer."""
        piece = self.text[self.token.start : self.token.end]
        if self.token.kind != NUMBER or not piece.isdecimal():
            raise self.error(what)
        self.index += 1
        return int(piece)

    def separated(self, opener: int) -> tuple[Slice, ...]:
        """Return the pieces between commas within a bracket."""
        closer = self.closers[opener]
        pieces = []
        first = index = opener + 1
        while index <= closer:
            value = self.tokens[index].value
            if index == closer or value == ",":
                if index == first:
                    raise self.error("an expression", self.tokens[index])
                pieces.append(self.slice(first, index))
                first = index + 1
            elif value in _PAIRS:
                index = self.closers[index]
            index += 1
        return tuple(pieces)

    # Expressions

    def expression(self, stops: Collection[str] = _NOTHING, what: str = "an expression") -> Slice:
        """Read an expression up to a comma, a closing bracket, or one of these keywords.

        A keyword ends it only where the expression is complete: a column may have its name.
        """
        first = self.index
        progress = Progress(first)
        while not self._ends(progress, stops):
            progress = self.step(progress, skip_brackets=True)
        if progress.at == first:
            raise self.error(what)
        self.index = progress.at
        if progress.cases:
            raise self.error("END of CASE")
        if not progress.complete:
            raise self.error(what)
        return self.slice_from(first)

    def _ends(self, progress: Progress, stops: Collection[str]) -> bool:
        token = self.tokens[progress.at]
        value = token.value
        if token.kind == END or value in (")", "]", ";"):
            return True
        if value == ",":
            return True
        if progress.cases:
            return False
        if not progress.complete:
            return value in stops and self._is_misplaced(progress.at, stops)
        if value == "NOT" and value in stops:
            # DEFAULT 1 NOT NULL, but not DEFAULT a NOT IN (1)
            return self.tokens[progress.at + 1].value == "NULL"
        if value == "(" and value in stops:
            return self._is_query_after(progress.at)
        return value in stops and token.kind in (WORD, SYMBOL)

    def _is_misplaced(self, index: int, stops: Collection[str]) -> bool:
        """Return whether a keyword in the place of an operand is not a column of its name."""
        following = self.tokens[index + 1]
        if self.tokens[index].kind != WORD or self._is_field(index):
            return False
        if following.kind == WORD:
            return following.value not in stops and following.value not in _AFTER_A_COLUMN
        return following.kind in (NUMBER, STRING, QUOTED)

    def _is_query_after(self, index: int) -> bool:
        """Return whether a bracket after a complete expression is a query, and not a call."""
        before = self.tokens[index - 1]
        if not self.is_name(before):
            return True
        return before.value != "EXISTS" and starts_query(self.tokens, index + 1)

    def step(self, progress: Progress, *, skip_brackets: bool = False) -> Progress:
        """Read a token of an expression; with `skip_brackets`, a pair of brackets as one."""
        index, complete, cases = progress
        token = self.tokens[index]
        if token.value in _PAIRS and skip_brackets:
            return Progress(self.closers[index] + 1, True, cases)
        if token.kind == SYMBOL:
            return self._symbol(progress, token.value)
        if token.kind != WORD or self._is_field(index):
            return Progress(index + 1, True, cases)
        if complete:
            return self._word_after_operand(progress, token.value)
        return self._word_as_operand(progress, token.value)

    def _is_field(self, index: int) -> bool:
        return index > 0 and self.tokens[index - 1].value == "."

    def _symbol(self, progress: Progress, value: str) -> Progress:
        index, complete, cases = progress
        if value == "?":
            return Progress(index + 1, True, cases)
        if value == "*" and not complete:
            return Progress(index + 1, True, cases)
        if value == "!" and complete:
            return Progress(index + 1, True, cases)
        if value == "::" and complete:
            return Progress(self.type_end(index + 1), True, cases)
        return Progress(index + 1, value in (")", "]", "*/"), cases)

    def _word_as_operand(self, progress: Progress, value: str) -> Progress:
        index, _, cases = progress
        if value == "CASE" and not self._is_column(index):
            return Progress(index + 1, False, cases + 1)
        if value == "NOT" or (cases and value in _WITHIN_CASE):
            return Progress(index + 1, False, cases)
        if value == "DISTINCT" and self.is_distinct_from(index):
            return Progress(index + 2, False, cases)
        return Progress(index + 1, True, cases)

    def _word_after_operand(self, progress: Progress, value: str) -> Progress:
        index, _, cases = progress
        if cases and value == "END":
            return Progress(index + 1, True, cases - 1)
        if cases and value in _WITHIN_CASE:
            return Progress(index + 1, False, cases)
        return Progress(index + 1, value not in _INFIX, cases)

    def _is_column(self, index: int) -> bool:
        """Return whether a CASE is the name of a column."""
        token = self.tokens[index + 1]
        if token.kind == SYMBOL:
            return token.value not in _PREFIX_SYMBOLS
        return token.kind == END or (token.kind == WORD and token.value in _AFTER_A_COLUMN)

    def is_distinct_from(self, index: int) -> bool:
        """Return whether a DISTINCT is that of IS [NOT] DISTINCT FROM."""
        if self.tokens[index + 1].value != "FROM" or index == 0:
            return False
        before = index - 1
        if self.tokens[before].value in ("NOT", "!") and before > 0:
            before -= 1
        return self.tokens[before].value == "IS"

    def type_end(self, index: int) -> int:
        """Return the index after the data type that begins at an index."""
        token = self.tokens[index]
        if token.kind not in (WORD, QUOTED):
            raise self.error("a data type", token)
        index += 1
        following = self.tokens[index].value
        if token.value in _TYPES_IN_ANGLES and following in ("<", "<>"):
            return index + 1 if following == "<>" else self._after_angles(index)
        if token.value == "INTERVAL":
            return self._after_units(index)
        if following == "(":
            index = self.closers[index] + 1
        if self.tokens[index].value == "COLLATE":
            return self._after_names(index + 1)
        return self._after_time_zone(index)

    def _after_angles(self, index: int) -> int:
        opening, depth = index, 0
        while self.tokens[index].kind != END:
            value = self.tokens[index].value
            if value == "(":
                index = self.closers[index]
            depth += (value == "<") - (value == ">")
            index += 1
            if depth == 0:
                return index
        raise self.refusal("the < that begins here has no >", self.tokens[opening].start)

    def _after_units(self, index: int) -> int:
        if self.tokens[index].value in _UNITS:
            index += 1
            if self.tokens[index].value == "TO":
                index += 2
        return min(index, len(self.tokens) - 1)

    def _after_names(self, index: int) -> int:
        while self.is_name(self.tokens[index]):
            index += 1
            if self.tokens[index].value != ".":
                break
            index += 1
        return index

    def _after_time_zone(self, index: int) -> int:
        if self.tokens[index].value in ("WITH", "WITHOUT"):
            end = index + 1
            end += self.tokens[end].value == "LOCAL"
            if self.tokens[end].value == "TIME" and self.tokens[end + 1].value == "ZONE":
                return end + 2
        return index

    def data_type(self) -> Slice:
        """Read a data type."""
        first = self.index
        self.index = self.type_end(first)
        return self.slice_from(first)

    def value_expression(self) -> Slice:
        """Read an expression without AND, OR and predicates: a word after it is an alias."""
        first = self.index
        progress = Progress(first)
        while not self._value_ends(progress):
            if not progress.complete and self.tokens[progress.at].value == "INTERVAL":
                progress = Progress(self._after_interval(progress.at), True, progress.cases)
            else:
                progress = self.step(progress, skip_brackets=True)
        if not progress.complete:
            raise self.error("a time", self.tokens[progress.at])
        self.index = progress.at
        return self.slice_from(first)

    def _value_ends(self, progress: Progress) -> bool:
        token = self.tokens[progress.at]
        if token.kind == END or token.value in (")", "]", ";", ",", "|>"):
            return True
        if not progress.complete or progress.cases or self._is_field(progress.at):
            return False
        return token.kind == QUOTED or (
            token.kind == WORD and token.value not in ("DIV", "COLLATE")
        )

    def _after_interval(self, index: int) -> int:
        """Return the index after `INTERVAL 1 DAY 2 HOURS` or `INTERVAL '1' DAY TO HOUR`."""
        index += 1
        while True:
            value = index + (self.tokens[index].value in ("-", "+"))
            if self.tokens[value].kind not in (NUMBER, STRING):
                return index
            unit = value + 1
            if self.tokens[unit].value not in _UNITS:
                # INTERVAL '1 day' has its unit in the string
                return unit
            index = self._after_units(unit)

    # References

    def reference(self, *, streaming: bool = False, may_have_alias: bool = True) -> Reference:
        """Read the name of a table, its time travel, sample and alias."""
        first = self.index
        table = self.table_name()
        travel = self.travel()
        spanned = self.slice_from(first)
        options = None
        if self.at("WITH", "("):
            self.index += 1
            options = self.parenthesised()
        if self.at("TABLESAMPLE", "("):
            self.index = self.closers[self.index + 1] + 1
            if self.at("REPEATABLE", "("):
                self.index = self.closers[self.index + 1] + 1
        alias_at = self.tokens[self.index - 1].end
        alias = self.alias() if may_have_alias else None
        return Reference(
            table=table,
            slice=spanned,
            travel=travel,
            options=options,
            alias=alias,
            alias_at=alias_at if may_have_alias else None,
            streaming=streaming,
        )

    def travel(self) -> VersionAsOf | TimestampAsOf | Changes | None:
        """Read the time travel after a table's name, if it has one."""
        if self.at("CHANGES", "FROM"):
            return self._changes()
        ahead = 1 if self.word == "FOR" else 0
        by = _BY.get(self.after(ahead).value)
        is_travel = self.after(ahead + 1).value == "AS" and self.after(ahead + 2).value == "OF"
        if by is None or not is_travel:
            return None
        self.index += ahead
        return self.as_of()

    def as_of(self) -> VersionAsOf | TimestampAsOf:
        """Read `VERSION AS OF v` or `TIMESTAMP AS OF t`."""
        by = _BY.get(self.word)
        if by is None:
            raise self.error("VERSION AS OF or TIMESTAMP AS OF")
        self.index += 1
        self.expect("AS", "OF")
        if by == "version":
            return VersionAsOf(version=self._version())
        return TimestampAsOf(timestamp=self.value_expression())

    def _version(self) -> Slice:
        first = self.index
        what = "the number of a version"
        if self.accept(":"):
            self.identifier("the name of a parameter")
        elif self.token.kind == STRING:
            self.string(what)
        elif self.token.kind == NUMBER or self.word == "?":
            self.index += 1
        else:
            raise self.error(what)
        return self.slice_from(first)

    def _changes(self) -> Changes:
        self.expect("CHANGES", "FROM")
        by = {"VERSION": "version", "TIMESTAMP": "timestamp"}.get(self.word)
        if by is None:
            raise self.error("VERSION or TIMESTAMP")
        word = self.word
        start, start_inclusive = self._bound(word)
        end, end_inclusive = None, True
        if self.accept("TO"):
            end, end_inclusive = self._bound(word)
        return Changes(
            by="version" if by == "version" else "timestamp",
            start=start,
            end=end,
            start_inclusive=start_inclusive,
            end_inclusive=end_inclusive,
        )

    def _bound(self, word: str) -> tuple[Slice, bool]:
        self.expect(word)
        bound = self._version() if word == "VERSION" else self.value_expression()
        if self.accept("EXCLUSIVE"):
            return bound, False
        self.accept("INCLUSIVE")
        return bound, True

    def target_alias(self) -> str | None:
        """Read the alias of a table that a statement changes; it has no list of columns."""
        first = self.index
        alias = self.alias()
        if alias is not None and self.tokens[self.index - 1].value == ")":
            self.index = first
            raise self.refusal(f"the alias {alias} cannot have a list of columns here")
        return alias

    def alias(self) -> str | None:
        """Read the alias after a relation, with its columns, if it has one."""
        if not self.accept("AS") and not self._is_alias():
            return None
        alias = self.identifier("an alias")
        if self.word == "(":
            self.index = self.closers[self.index] + 1
        return alias

    def _is_alias(self) -> bool:
        if self.token.kind == QUOTED:
            return True
        return self.token.kind == WORD and self.word not in _STRICT and not self.is_clause()

    def is_clause(self, index: int | None = None) -> bool:
        """Return whether a word begins a clause here; it may be an alias instead."""
        index = self.index if index is None else index
        if not self._may_be_clause(index):
            return False
        # Of `where WHERE a = 1`, the first is an alias
        word = self.tokens[index].value
        return word not in _CLAUSE_WITH_ONE_EXPRESSION or not self._may_be_clause(index + 1)

    def _may_be_clause(self, index: int) -> bool:
        word = self.tokens[index].value
        following = self.tokens[min(index + 1, len(self.tokens) - 1)]
        if word in _CLAUSE_BY_NEXT:
            return following.value in _CLAUSE_BY_NEXT[word]
        if word not in _CLAUSE_BEFORE_EXPRESSION:
            return False
        is_known = following.kind in (WORD, SYMBOL, END)
        return not (is_known and following.value in _NOT_AN_EXPRESSION)


def _closers(text: str, tokens: list[Token]) -> dict[int, int]:
    """Return the index of the closing bracket of each opening one."""
    closers: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        value = token.value
        if value in _PAIRS:
            opened.append(index)
        elif value in (")", "]"):
            if not opened or _PAIRS[tokens[opened[-1]].value] != value:
                raise error_at(text, token.start, f"this {value} closes nothing")
            closers[opened.pop()] = index
    if opened:
        token = tokens[opened[-1]]
        closing = _PAIRS[token.value]
        raise error_at(text, token.start, f"the {token.value} that begins here has no {closing}")
    return closers


def starts_query(tokens: list[Token], index: int) -> bool:
    """Return whether a query begins at a token, and not a name such as `table`."""
    token = tokens[index]
    if token.kind != WORD or token.value not in _QUERY_WORDS:
        return False
    following = tokens[min(index + 1, len(tokens) - 1)]
    if following.kind == END:
        return False
    if following.kind in (WORD, SYMBOL) and following.value in _AFTER_A_NAME:
        return False
    is_name = following.kind in (WORD, QUOTED)
    if token.value in ("TABLE", "WITH"):
        return is_name
    if token.value == "FROM":
        return is_name or following.value == "("
    return token.value not in ("MAP", "REDUCE") or following.value != "("
