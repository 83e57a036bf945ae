"""What an SQL condition in a table's metadata may hold: Spark's driver evaluates it, and the metadata is untrusted.

Nothing is parsed. The text is cut into words as Spark's own lexer cuts it, less of its alphabet; whatever reading Spark gives these words,
a call is a word before a parenthesis, a subquery needs SELECT, TABLE, VALUES or the like, and both are looked for here. So nothing hangs on
two parsers agreeing.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opal_lake.errors import InvalidInputError
from opal_lake.spec.condition_pattern import why_slow

MOST_CHARACTERS = 10_000
MOST_NESTED = 100
MOST_GROWING = 1
MOST_GROWING_CHARACTERS = 256  # of such a call
MOST_REPEATED = 64  # characters of a literal in it

_NULLS = "coalesce equal_null if ifnull isnan isnotnull isnull nanvl nullif nullifzero nvl nvl2 zeroifnull"
_TEXTS = """
    ascii bit_length btrim char_length character_length concat contains endswith find_in_set get_json_object
    ilike initcap instr lcase left len length like locate lower ltrim octet_length position regexp regexp_extract regexp_instr
    regexp_like right rlike rtrim split split_part startswith substr substring substring_index translate trim ucase upper
"""
_NUMBERS = """
    abs bit_count bit_get bround ceil ceiling floor getbit greatest least mod negative pmod positive round shiftleft shiftright
    sign signum sqrt to_number try_add try_divide try_mod try_multiply try_subtract try_to_number
"""
_TIMES = """
    add_months convert_timezone date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff
    datepart day dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day make_date make_timestamp
    make_timestamp_ltz make_timestamp_ntz minute month months_between next_day quarter second timestamp_micros timestamp_millis
    timestamp_seconds timestampadd timestampdiff to_date to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
    to_utc_timestamp trunc try_to_date try_to_timestamp unix_date unix_micros unix_millis unix_seconds unix_timestamp weekday
    weekofyear year
"""
_PARTS = """
    array array_contains array_max array_min array_position array_size arrays_overlap cardinality element_at get map_contains_key
    map_keys map_values named_struct size try_element_at
"""
_TYPES = """
    bigint binary boolean byte char character date dec decimal double float int integer interval long numeric real short smallint
    string timestamp timestamp_ltz timestamp_ntz tinyint varchar
"""
_CONVERSIONS = "bigint binary boolean date double float int smallint string timestamp tinyint"
_UNITS = """
    century day dayofweek days decade doy dow hour hours microsecond microseconds millennium millisecond milliseconds minute
    minutes month months quarter second seconds week weeks year years
"""
_KEYWORDS = "all and any as between case div else end escape false ilike in is like not null or regexp rlike some then true unknown when"
_OPERATORS = frozenset(
    {"and", "between", "div", "ilike", "in", "like", "not", "or", "regexp", "rlike"}
)
_BEFORE_PARENTHESIS = _OPERATORS | {"case", "else", "then", "when"}
_PATTERN_OPERATORS = frozenset({"regexp", "rlike"})
_GROWING = {
    "replace": 2,
    "concat_ws": 0,
}  # a call may make its text longer by a factor: that of this argument
_PATTERNS = frozenset(
    {"regexp", "regexp_extract", "regexp_instr", "regexp_like", "rlike", "split"}
)  # a call's second argument is one

_BY_SYNTAX = (
    "cast char character dec decimal numeric try_cast varchar"  # with parameters in parentheses
)
FUNCTIONS = (
    frozenset(f"{_NULLS} {_TEXTS} {_NUMBERS} {_TIMES} {_PARTS} {_CONVERSIONS} {_BY_SYNTAX}".split())
    | _GROWING.keys()
)
_WORDS = frozenset(f"{_KEYWORDS} {_TYPES} {_UNITS}".split())
# A query needs one of these, a window OVER, a script USING: without quotes they are refused even where a column has the name
_RESERVED = frozenset(
    [
        "distinct",
        "from",
        "lateral",
        "map",
        "over",
        "reduce",
        "select",
        "table",
        "using",
        "values",
        "with",
    ]
)
# Functions without parentheses, unless the table has such a column
_OF_THE_SESSION = frozenset(
    {
        "current_catalog",
        "current_database",
        "current_date",
        "current_path",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "system_user",
        "user",
    }
)
_DATED = frozenset(
    {"date", "timestamp", "timestamp_ltz", "timestamp_ntz"}
)  # DATE 'today' is another day tomorrow
_OF_NO_DAY = re.compile(r"""['"]\s*(?!epoch)[^\W\d]|.*\\""", re.DOTALL | re.IGNORECASE)

_OF_TODAY = re.compile(
    r"\\?\s*(now|today|tomorrow|yesterday)(\s+(\w+/\w+|UTC.*|GMT.*|Z|[+-]\d.*))?\s*", re.IGNORECASE
).fullmatch

_LEXEMES = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:BD|bd|[LSYFDlsyfd])?(?!\w))
  | (?P<name>`(?:[^`]|``)*`)
  | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<operator>::|<=>|<=|>=|<>|!=|==|\|\||<<|>>>|>>|[=<>!+\-*/%&|^~.,()\[\]])
    """,
    re.VERBOSE
    | re.DOTALL
    | re.ASCII,  # by the letters of Unicode, `ſelect` would be a word that Spark reads as SELECT
)
_MISREAD = re.compile(r"--|/\*|\*/|->|=>|\|>")  # comments, lambdas, named arguments, pipes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexeme:
    """A piece of the text; `value` is a word in lower case, a name or text without its quotes, else as it stands."""

    kind: str
    value: str
    start: int


def check_condition(condition: str, columns: Iterable[str] | None) -> None:
    """InvalidInputError says what the condition may not hold. Without `columns` any name may be one."""
    try:
        lexemes = _lexemes(condition)
        _check_nesting(lexemes)
        _check_words(lexemes, None if columns is None else {name.casefold() for name in columns})
    except _RefusedError as error:
        shown = condition if len(condition) <= 200 else f"{condition[:200]}..."
        raise InvalidInputError(f"the delete condition {shown!r} {error}") from None


class _RefusedError(Exception):
    """Why."""


def _lexemes(condition: str) -> list[Lexeme]:
    if len(condition) > MOST_CHARACTERS:
        raise _RefusedError(f"has {len(condition):,} characters; write at most {MOST_CHARACTERS:,}")
    lexemes, at = [], 0
    while at < len(condition):
        match = _LEXEMES.match(condition, at)
        if match is None or _MISREAD.match(condition, at):
            raise _RefusedError(
                f"holds {condition[at : at + 2]!r} at character {at}, which no delete condition may; {_ALLOWED}"
            )
        if match.lastgroup != "space":
            lexemes.append(_lexeme(match.lastgroup or "", match[0], at))
        at = match.end()
    if not lexemes:
        raise _RefusedError("is empty; write a condition, as \"op = 'D'\", or give none")
    return lexemes


def _lexeme(kind: str, text: str, at: int) -> Lexeme:
    if kind == "name":
        return Lexeme(kind=kind, value=text[1:-1].replace("``", "`"), start=at)
    if kind != "word":
        return Lexeme(kind=kind, value=text, start=at)
    return Lexeme(kind=kind, value=text.lower(), start=at)


def _check_nesting(lexemes: Sequence[Lexeme]) -> None:
    """Also that parentheses match: the condition is put into others."""
    pairs, opened = {")": "(", "]": "["}, []
    for lexeme in lexemes:
        if lexeme.kind != "operator":
            continue
        if lexeme.value in ("(", "["):
            opened.append(lexeme.value)
        elif lexeme.value in pairs and (not opened or opened.pop() != pairs[lexeme.value]):
            raise _RefusedError(
                f"has a {lexeme.value!r} at character {lexeme.start} that closes nothing; take it out"
            )
        if len(opened) > MOST_NESTED:
            raise _RefusedError(f"nests more than {MOST_NESTED} parentheses; write it flatter")
    if opened:
        raise _RefusedError(f"lacks {len(opened)} closing parentheses; add them")


def _check_words(lexemes: Sequence[Lexeme], columns: set[str] | None) -> None:
    growing = 0
    for at, lexeme in enumerate(lexemes):
        around = Around(lexemes=lexemes, at=at)
        if lexeme.kind == "word" and around.word(1) == "" and around.kind(1) == "text":
            _check_literal(lexeme, lexemes[at + 1])
        if lexeme.kind == "text":
            _check_text(lexeme)
        if lexeme.kind not in ("word", "name", "text"):
            continue
        is_call = around.operator(1) == "("
        if (
            lexeme.kind == "word"
            and around.operator(-1) != "."
            and lexeme.value in (_PATTERNS if is_call else _PATTERN_OPERATORS)
        ):
            _check_pattern(lexeme.value, around)
        if is_call:
            _check_call(lexeme, around)
            if lexeme.kind == "word" and lexeme.value in _GROWING:
                growing += 1
                _check_growing(lexeme.value, growing, _arguments(lexemes, at + 1))
        elif lexeme.kind != "text" and around.operator(-1) != ".":
            _check_name(lexeme, columns, around)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What stands before and behind a lexeme; nothing beyond the ends."""

    lexemes: Sequence[Lexeme]
    at: int

    def kind(self, steps: int) -> str:
        position = self.at + steps
        return self.lexemes[position].kind if 0 <= position < len(self.lexemes) else ""

    def word(self, steps: int) -> str:
        return self.lexemes[self.at + steps].value if self.kind(steps) == "word" else ""

    def operator(self, steps: int) -> str:
        return self.lexemes[self.at + steps].value if self.kind(steps) == "operator" else ""


def _check_text(text: Lexeme) -> None:
    """Compared with a date, or cast to one, such a text is another day tomorrow; and nothing here knows what it is compared with."""
    if _OF_TODAY(text.value[1:-1]):
        raise _RefusedError(
            f"holds {text.value}, which Spark may read as the time of the query; {_ALLOWED}"
        )


def _check_literal(lexeme: Lexeme, text: Lexeme) -> None:
    if lexeme.value == "r":
        raise _RefusedError("holds a raw string, r'...'; write it as '...'")
    if lexeme.value in _DATED and _OF_NO_DAY.match(text.value):
        raise _RefusedError(
            f"holds {lexeme.value.upper()} {text.value}, which is another time each day; {_ALLOWED}"
        )


def _check_call(lexeme: Lexeme, around: Around) -> None:
    name = lexeme.value
    if lexeme.kind == "word" and around.operator(-1) != ".":
        if name in _BEFORE_PARENTHESIS or (
            name in ("any", "all", "some") and around.word(-1) in ("like", "ilike")
        ):
            return
        if name in FUNCTIONS:
            if around.operator(2) == ")":
                raise _RefusedError(
                    f"calls {name}() without arguments, which is another value each time; {_ALLOWED}"
                )
            return
    raise _RefusedError(f"calls {name}(), which no delete condition may; {_ALLOWED}")


def _arguments(lexemes: Sequence[Lexeme], opened: int) -> list[list[Lexeme]]:
    """Of the call whose parenthesis opens there."""
    arguments: list[list[Lexeme]] = [[]]
    depth = 1
    for lexeme in lexemes[opened + 1 :]:
        value = lexeme.value if lexeme.kind == "operator" else ""
        depth += (value in ("(", "[")) - (value in (")", "]"))
        if not depth:
            break
        if value == "," and depth == 1:
            arguments.append([])
        else:
            arguments[-1].append(lexeme)
    return arguments


def _is_literal(argument: Sequence[Lexeme]) -> bool:
    return len(argument) == 1 and argument[0].kind == "text"


def _check_growing(name: str, calls: int, arguments: Sequence[Sequence[Lexeme]]) -> None:
    if calls > MOST_GROWING:
        raise _RefusedError(
            f"calls {' or '.join(_GROWING)} more than once, which could make a text of any length; write one call"
        )
    held = [lexeme for argument in arguments for lexeme in argument]
    texts = [lexeme.value for lexeme in held if lexeme.kind == "text"]
    if any(len(text) - 2 > MOST_REPEATED for text in texts):
        raise _RefusedError(
            f"calls {name}() with a text of more than {MOST_REPEATED} characters; write a shorter one"
        )
    if held and held[-1].start - held[0].start > MOST_GROWING_CHARACTERS:
        raise _RefusedError(
            f"calls {name}() with arguments of more than {MOST_GROWING_CHARACTERS} characters; write fewer"
        )
    position = _GROWING[name]
    if position < len(arguments) and not _is_literal(arguments[position]):
        raise _RefusedError(
            f"calls {name}() with an argument {position + 1} that is no literal, which could make a text of any length"
        )


def _check_pattern(name: str, around: Around) -> None:
    """`x RLIKE 'a'`, or a call."""
    if around.operator(1) == "(":
        arguments = _arguments(around.lexemes, around.at + 1)
        literal = arguments[1][0] if len(arguments) > 1 and _is_literal(arguments[1]) else None
    else:
        ends = around.kind(2) in ("", "word") or around.operator(2) in (")", ",")
        literal = around.lexemes[around.at + 1] if around.kind(1) == "text" and ends else None
    if literal is None:
        raise _RefusedError(
            f"uses {name} with a pattern that is no literal; write it as {name.upper()} 'a pattern'"
        )
    if slow := why_slow(literal.value):
        raise _RefusedError(f"uses {name} with the pattern {literal.value[:200]}, which {slow}")


def _check_name(lexeme: Lexeme, columns: set[str] | None, around: Around) -> None:
    name = lexeme.value
    if lexeme.kind == "word":
        if (name in ("distinct", "from") and _is_no_query(name, around)) or (
            name == "x" and around.kind(1) == "text"
        ):
            return
        if name in _RESERVED:
            raise _RefusedError(
                f"holds {name.upper()}, which no delete condition may (such a column goes in backticks); {_ALLOWED}"
            )
        if name in _OF_THE_SESSION and columns is not None and name not in columns:
            raise _RefusedError(f"calls {name}, which is another value each time; {_ALLOWED}")
        if name in _WORDS:
            return
    if columns is not None and name.casefold() not in columns:
        raise _RefusedError(
            f"does not fit the columns: there is none named {name!r}; the table has {', '.join(sorted(columns))}"
        )


def _is_no_query(name: str, around: Around) -> bool:
    """`IS [NOT] DISTINCT FROM` and `EXTRACT(YEAR FROM`: no query begins or goes on like that without another reserved word."""
    if name == "distinct":
        return around.word(-1) in ("is", "not") and around.word(1) == "from"
    return around.word(-1) == "distinct" or (
        around.word(-3) == "extract" and around.operator(-2) == "(" and around.word(-1) in _WORDS
    )


_ALLOWED = (
    "a condition is deterministic and holds comparisons, AND, OR, NOT, IN, LIKE, CASE, casts, and built-in functions of texts, numbers, "
    "times, nulls, arrays, maps and structs (docs/concepts.md: delete conditions)"
)
