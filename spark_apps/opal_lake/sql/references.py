"""The tables that a query reads, and where it names them.

A scan goes through the tokens once, with a stack of frames in place of recursion: one frame for
each open bracket. In each frame it knows whether a word is part of an expression or a table.
"""

from collections.abc import Callable, Iterable

from opal_lake.errors import InvalidInputError
from opal_lake.sql.cursor import Cursor, Progress, starts_query
from opal_lake.sql.lexer import END, NUMBER, QUOTED, SYMBOL, WORD, Token, tokens, words
from opal_lake.sql.statements import Changes, Reference, Slice

# What a frame reads at the moment
START = "start"  # a query may begin
SELECT = "select"  # the columns of a SELECT
RELATION = "relation"  # a table, a subquery or a function is next
AFTER_RELATION = "after a relation"  # an alias was read; a comma brings another relation
ON = "on"  # the condition of a join
TAIL = "tail"  # WHERE, GROUP BY and what follows them
VALUES = "values"
PIPE = "pipe"  # after |>
CTE = "cte"  # a name of a WITH
EXPRESSION = "expression"  # brackets that are not a query

_SET_OPERATIONS = frozenset({"UNION", "EXCEPT", "MINUS", "INTERSECT"})
_TAIL_WORDS = words("WHERE GROUP HAVING WINDOW ORDER CLUSTER DISTRIBUTE SORT LIMIT OFFSET")
_JOIN_WORDS = words("ANTI CROSS FULL INNER LEFT NATURAL OUTER RIGHT SEMI LATERAL")
# Words that join two operands, so that they are not an alias after one
_INFIX = words("AND OR IN IS NOT LIKE ILIKE RLIKE REGEXP BETWEEN DIV COLLATE")
# What follows an alias, and so makes a keyword one: SELECT a offset FROM t
_AFTER_AN_ALIAS = frozenset({"FROM", ",", ")", ""})
_OPENING = frozenset({"(", "["})
_CLOSING = frozenset({")", "]"})


class _Scope:
    """The names of a WITH that hide tables, and the scope around it."""

    __slots__ = ("names", "outer", "pending", "recursive")

    def __init__(self, outer: "_Scope | None", *, recursive: bool) -> None:
        self.outer = outer
        self.recursive = recursive
        self.names: set[str] = set()
        self.pending: str | None = None  # whose query is read

    def hides(self, name: str) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if name.lower() in scope.names:
                return True
            scope = scope.outer
        return False


class _Frame:
    """An open bracket, and what is read within it."""

    __slots__ = ("cases", "complete", "is_function", "mode", "scope", "stops_at", "was_values")

    def __init__(self, mode: str, scope: _Scope | None, stops_at: int) -> None:
        self.mode = mode
        self.scope = scope
        self.stops_at = stops_at  # the index of the closing bracket
        self.complete = False
        self.cases = 0
        self.is_function = False  # a table-valued function: TABLE t may be an argument
        self.was_values = False


def references(text: str) -> tuple[Reference, ...]:
    """Return the references to tables in a query, in the order of the text.

    Names of WITH are not among them, nor are functions.
    """
    cursor = Cursor(text, tokens(text))
    return tuple(scan(cursor, 0, len(cursor.tokens) - 1, mode=START))


def scan(cursor: Cursor, first: int, stop: int, *, mode: str = EXPRESSION) -> list[Reference]:
    """Return the references among some tokens: of a query, or of an expression."""
    index = cursor.index
    references = _Scan(cursor, first, stop, mode).run()
    cursor.index = index
    return references


def with_placeholders(
    piece: Slice,
    replacements: Iterable[tuple[Reference, str]],
    edits: Iterable[tuple[int, int, str]] = (),
) -> str:
    """Return a piece of SQL with a placeholder in place of each reference.

    It is for `spark.sql(text, **frames)`, with the placeholders as names.
    Every brace of the user is doubled. A reference without an alias gets one, the last part of its
    name, so that `SELECT orders.id FROM lake.shop.orders` finds its column. `edits` replace further
    spans of the whole text.
    """
    edits = list(edits)
    for reference, name in replacements:
        span = reference.slice
        edits.append((span.offset, span.end, f"{{{name}}}"))
        if reference.alias is None and reference.alias_at is not None and reference.table.parts:
            alias = reference.table.parts[-1].replace("`", "``")
            at = reference.alias_at
            edits.append((at, at, f" AS `{_braces_doubled(alias)}`"))
    parts = []
    position = piece.offset
    for start, end, new in sorted(edits):
        if start < position or end > piece.end:
            raise InvalidInputError(
                f"the reference at offset {start} is outside the piece of SQL, which spans"
                f" {piece.offset} to {piece.end}, or overlaps another reference"
            )
        parts.append(_braces_doubled(piece.text[position - piece.offset : start - piece.offset]))
        parts.append(new)
        position = end
    parts.append(_braces_doubled(piece.text[position - piece.offset :]))
    return "".join(parts)


def _braces_doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


class _Scan:
    def __init__(self, cursor: Cursor, first: int, stop: int, mode: str) -> None:
        self.cursor = cursor
        self.tokens = cursor.tokens
        self.index = first
        self.stop = stop
        self.frames = [_Frame(mode, None, stop)]
        self.references: list[Reference] = []
        self.readers: dict[str, Callable[[_Frame, Token], None]] = {
            START: self._start,
            SELECT: self._select,
            RELATION: self._relation,
            AFTER_RELATION: self._after_relation,
            ON: self._on,
            TAIL: self._tail,
            VALUES: self._values,
            PIPE: self._pipe,
            CTE: self._cte,
            EXPRESSION: self._expression,
        }

    def run(self) -> list[Reference]:
        while self.index < self.stop:
            frame = self.frames[-1]
            token = self.tokens[self.index]
            if token.kind == SYMBOL and token.value in _CLOSING and len(self.frames) > 1:
                self._close()
            else:
                self.readers[frame.mode](frame, token)
        return self.references

    # Frames

    def _open(self, mode: str | None = None) -> _Frame:
        """Enter the bracket at this place; by default its content decides what it is."""
        frame = self.frames[-1]
        inner = self.index + 1
        if starts_query(self.tokens, inner):
            mode = START
        opened = _Frame(mode or EXPRESSION, frame.scope, self.cursor.closers[self.index])
        self.frames.append(opened)
        self.index = inner
        return opened

    def _close(self) -> None:
        closed = self.frames.pop()
        frame = self.frames[-1]
        self.index += 1
        frame.complete = True
        if frame.mode == CTE:
            self._close_in_cte(frame, closed)
        elif frame.mode == RELATION:
            self._finish_relation(frame)
        elif frame.mode == START:
            frame.mode = TAIL

    def _finish_relation(self, frame: _Frame) -> None:
        """Read the sample and alias of a subquery, a function or rows of VALUES."""
        frame.mode = AFTER_RELATION
        frame.complete = True
        cursor = self.cursor
        cursor.index = self.index
        if cursor.at("TABLESAMPLE", "("):
            cursor.index = cursor.closers[cursor.index + 1] + 1
            if cursor.at("REPEATABLE", "("):
                cursor.index = cursor.closers[cursor.index + 1] + 1
        cursor.alias()
        self.index = cursor.index

    # Modes. Each reads the token at this place

    def _start(self, frame: _Frame, token: Token) -> None:
        value = token.value
        if value == "(":
            self._open(START)
        elif value == "WITH":
            self._enter_cte(frame)
        elif value == "TABLE":
            self.index += 1
            self._read_reference(frame, may_have_alias=False)
            frame.mode = TAIL
        elif value in ("ALL", "DISTINCT"):
            self.index += 1
        elif value == "INSERT":
            self._skip_to_query()
        elif value == "FROM":
            self._enter(frame, RELATION)
        elif value == "VALUES":
            self._enter(frame, VALUES)
        else:
            self._enter(frame, SELECT, read=value in ("SELECT", "MAP", "REDUCE"))
            self._skip_quantifier()

    def _skip_to_query(self) -> None:
        """Go to the query of an INSERT that follows a WITH."""
        self.index += 1
        while self.index < self.stop and not starts_query(self.tokens, self.index):
            self.index = self.cursor.closers.get(self.index, self.index) + 1

    def _enter(self, frame: _Frame, mode: str, *, read: bool = True) -> None:
        frame.mode = mode
        frame.complete = False
        frame.cases = 0
        self.index += read

    def _skip_quantifier(self) -> None:
        # A hint may stand between SELECT and DISTINCT
        if self.tokens[self.index].value == "/*+":
            while self.tokens[self.index].kind != END and self.tokens[self.index].value != "*/":
                self.index += 1
            self.index = min(self.index + 1, self.stop)
        token = self.tokens[self.index]
        following = self.tokens[min(self.index + 1, self.stop)]
        if token.value in ("ALL", "DISTINCT") and following.value not in (",", "FROM", ""):
            self.index += 1

    def _select(self, frame: _Frame, token: Token) -> None:
        if not self._is_keyword(frame, token):
            self._step(frame)
        elif token.value == "FROM" and not self._is_alias_before_more():
            self._enter(frame, RELATION)
        elif not self._leave_expression(frame, token):
            self._step(frame)

    def _is_keyword(self, frame: _Frame, token: Token) -> bool:
        """Return whether a token could end the expression before it."""
        if not frame.complete or token.kind not in (WORD, SYMBOL) or token.value == "(":
            return False
        return self.index == 0 or self.tokens[self.index - 1].value != "."

    def _leave_expression(self, frame: _Frame, token: Token) -> bool:
        """Go on after an expression, if a word or symbol ends it."""
        value = token.value
        if value == "|>":
            self._enter(frame, PIPE)
        elif value in _SET_OPERATIONS and not self._is_star_except(value):
            self._enter(frame, START)
        elif value in _TAIL_WORDS and not self._is_alias_here():
            self._enter(frame, TAIL)
        else:
            return False
        return True

    def _is_alias_before_more(self) -> bool:
        following = self.tokens[self.index + 1]
        return following.kind == END or following.value in ("FROM", ",")

    def _is_alias_here(self) -> bool:
        return self.tokens[self.index + 1].value in _AFTER_AN_ALIAS

    def _is_star_except(self, value: str) -> bool:
        before = self.tokens[self.index - 1].value if self.index else ""
        if value != "EXCEPT" or before != "*" or self.tokens[self.index + 1].value != "(":
            return False
        return not starts_query(self.tokens, self.index + 2)

    def _step(self, frame: _Frame) -> None:
        """Read a token of an expression."""
        token = self.tokens[self.index]
        if token.kind == SYMBOL and token.value in _OPENING:
            self._open()
            return
        progress = Progress(self.index, frame.complete, frame.cases)
        self.index, frame.complete, frame.cases = self.cursor.step(progress)

    def _relation(self, frame: _Frame, token: Token) -> None:
        following = self.tokens[min(self.index + 1, self.stop)]
        if token.value == "(":
            self._open(RELATION)
        elif token.value == "LATERAL" and self._is_prefix(following):
            self.index += 1
        elif token.value == "VALUES" and starts_query(self.tokens, self.index):
            self._enter(frame, VALUES)
            frame.was_values = True
        elif token.value == "STREAM" and self._is_stream(following):
            self.index += 1
            self._read_stream(frame)
        elif not self.cursor.is_name(token):
            # Spark reports what is wrong here
            frame.mode = AFTER_RELATION
        elif self._function_opener() is not None:
            self._open_function()
        else:
            self._read_reference(frame)

    def _is_prefix(self, following: Token) -> bool:
        """Return whether a LATERAL stands before a relation."""
        return following.value == "(" or self.cursor.is_name(following)

    def _is_stream(self, following: Token) -> bool:
        if following.value == "(":
            return True
        self.cursor.index = self.index + 1
        if not self.cursor.is_name(following) or following.value == "AS":
            return False
        return following.kind == QUOTED or not (
            following.value in _JOIN_WORDS | _SET_OPERATIONS | {"JOIN", "ON", "USING"}
            or self.cursor.is_clause()
        )

    def _read_stream(self, frame: _Frame) -> None:
        if self.tokens[self.index].value != "(":
            self._read_reference(frame, streaming=True)
            return
        closer = self.cursor.closers[self.index]
        self.index += 1
        self._read_reference(frame, streaming=True, may_have_alias=False)
        self.index = closer + 1
        self._finish_relation(frame)

    def _function_opener(self) -> int | None:
        """Return the index of the bracket of a table-valued function called here."""
        index = self.index
        if self.tokens[index].value == "IDENTIFIER" and self.tokens[index + 1].value == "(":
            after = self.cursor.closers[index + 1] + 1
            return after if self.tokens[after].value == "(" else None
        while self.tokens[index + 1].value == "." and self.cursor.is_name(self.tokens[index + 2]):
            index += 2
        return index + 1 if self.tokens[index + 1].value == "(" else None

    def _open_function(self) -> None:
        opener = self._function_opener()
        if opener is not None:
            self.index = opener
            self._open().is_function = True

    def _read_reference(
        self, frame: _Frame, *, streaming: bool = False, may_have_alias: bool = True
    ) -> None:
        cursor = self.cursor
        cursor.index = self.index
        reference = cursor.reference(streaming=streaming, may_have_alias=may_have_alias)
        self.index = cursor.index
        frame.mode = AFTER_RELATION
        frame.complete = True
        parts = reference.table.parts
        if len(parts) == 1 and frame.scope is not None and frame.scope.hides(parts[0]):
            if isinstance(reference.travel, Changes):
                raise cursor.refusal(
                    f"{parts[0]} is a name of WITH, which has no CHANGES; "
                    "name a table before CHANGES",
                    reference.slice.offset,
                )
            return
        self.references.append(reference)

    def _after_relation(self, frame: _Frame, token: Token) -> None:
        value = token.value
        if token.kind == SYMBOL and value in _OPENING:
            self._open()
        elif value in (",", "JOIN"):
            self._enter(frame, RELATION)
        elif value == "ON":
            self._enter(frame, ON)
        elif value in ("SELECT", "MAP", "REDUCE"):
            self._enter(frame, SELECT)
            self._skip_quantifier()
        elif value == "LATERAL" and self.tokens[self.index + 1].value == "VIEW":
            self._enter(frame, TAIL)
        elif not self._leave_expression(frame, token):
            self.index += 1

    def _on(self, frame: _Frame, token: Token) -> None:
        if not self._is_keyword(frame, token):
            self._step(frame)
        elif token.value in (",", "JOIN"):
            self._enter(frame, RELATION)
        elif token.value == "SELECT" or (
            token.value == "LATERAL" and self.tokens[self.index + 1].value == "VIEW"
        ):
            frame.mode = AFTER_RELATION
        elif not self._leave_expression(frame, token):
            self._step(frame)

    def _tail(self, frame: _Frame, token: Token) -> None:
        if not self._is_keyword(frame, token):
            self._step(frame)
        elif token.value == "SELECT":
            self._enter(frame, SELECT)
            self._skip_quantifier()
        elif not self._leave_expression(frame, token):
            self._step(frame)

    def _values(self, frame: _Frame, token: Token) -> None:
        if frame.complete and self._ends_rows(token):
            is_relation = frame.was_values
            frame.was_values = False
            if is_relation:
                self._finish_relation(frame)
            else:
                frame.mode = AFTER_RELATION
        else:
            self._step(frame)

    def _ends_rows(self, token: Token) -> bool:
        """Return whether the rows of VALUES end before a token: at an alias or a keyword."""
        if token.kind == QUOTED or token.value == "|>":
            return True
        if token.kind != WORD or self.tokens[self.index - 1].value == ".":
            return False
        return token.value not in _INFIX

    def _pipe(self, frame: _Frame, token: Token) -> None:
        value = token.value
        if value == "JOIN":
            self._enter(frame, RELATION)
        elif value in _SET_OPERATIONS:
            self._enter(frame, START)
        elif value == "SELECT":
            self._enter(frame, SELECT)
            self._skip_quantifier()
        elif value in _JOIN_WORDS:
            self.index += 1
        else:
            self._enter(frame, TAIL)

    def _expression(self, frame: _Frame, token: Token) -> None:
        if token.kind == SYMBOL and token.value in _OPENING:
            self._open()
        elif token.kind != WORD:
            self.index += 1
        elif frame.is_function and token.value == "TABLE":
            self._read_table_argument(frame)
        elif token.value in _SET_OPERATIONS and self.tokens[self.index - 1].value == ")":
            self._enter(frame, START)
        else:
            self.index += 1

    def _read_table_argument(self, frame: _Frame) -> None:
        """Read `TABLE t` or `TABLE(t)`; a query in the brackets is one like any other."""
        self.index += 1
        token = self.tokens[self.index]
        mode = frame.mode
        if self.cursor.is_name(token):
            self._read_reference(frame, may_have_alias=False)
        elif token.value == "(" and not starts_query(self.tokens, self.index + 1):
            closer = self.cursor.closers[self.index]
            self.index += 1
            if self.cursor.is_name(self.tokens[self.index]):
                self._read_reference(frame, may_have_alias=False)
            self.index = closer + 1
        frame.mode = mode

    # WITH

    def _enter_cte(self, frame: _Frame) -> None:
        self.index += 1
        is_recursive = self.tokens[self.index].value == "RECURSIVE" and self.cursor.is_name(
            self.tokens[self.index + 1]
        )
        is_recursive = is_recursive and self.tokens[self.index + 1].value != "AS"
        self.index += is_recursive
        frame.mode = CTE
        frame.scope = _Scope(frame.scope, recursive=is_recursive)

    def _cte(self, frame: _Frame, token: Token) -> None:
        """Read a token of `name [(columns)] [AS] [MAX RECURSION LEVEL n] (query)`."""
        scope = frame.scope
        if scope is None or token.kind == END:
            frame.mode = START
        elif scope.pending is None and self.cursor.is_name(token):
            self.cursor.index = self.index
            scope.pending = self.cursor.identifier().lower()
            self.index = self.cursor.index
            if scope.recursive:
                scope.names.add(scope.pending)
        elif token.value == "(":
            self._open_in_cte()
        elif token.kind in (WORD, NUMBER):
            self.index += 1
        else:
            frame.mode = START

    def _open_in_cte(self) -> None:
        """Enter the columns of a name, or its query."""
        inner = self.tokens[self.index + 1]
        is_query = inner.value == "(" or starts_query(self.tokens, self.index + 1)
        self._open(START if is_query else EXPRESSION)

    def _close_in_cte(self, frame: _Frame, closed: _Frame) -> None:
        scope = frame.scope
        if closed.mode == EXPRESSION or scope is None or scope.pending is None:
            return
        scope.names.add(scope.pending)
        scope.pending = None
        if self.tokens[self.index].value == ",":
            self.index += 1
        else:
            frame.mode = START
