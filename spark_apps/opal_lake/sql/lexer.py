"""Tokens of SQL text, as Spark reads them.

Spark matches the longest rule on the text in upper case, and so does this module. Two rules are
wider than Spark 4.1's, which refuses such texts: a string between dollar quotes is one token, as
from Spark 4.2 on, and a quote or comment without an end is an error with its place.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final, NamedTuple

from opal_lake.errors import InvalidInputError

WORD: Final = "word"  # an identifier or a keyword; `value` is the text in upper case
QUOTED: Final = "quoted"  # an identifier in backticks
STRING: Final = "string"
NUMBER: Final = "number"
SYMBOL: Final = "symbol"  # an operator or punctuation; `value` is the text
ROWS: Final = "rows"  # rows of literals in an INSERT
OTHER: Final = "other"  # a character that Spark does not know, such as { or @
END: Final = "end"

_MAX_SHOWN = 40  # characters of the text that an error shows

_SPACES = (
    " \t\n\f\r\v\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u202f\u205f\u3000"
)
# A decimal that a letter or digit follows is not one: `1.2a` is 1, a point and the name 2A.
_DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:E[+-]?[0-9]+)?(?:BD|[DF])?(?![A-Z0-9_])"
_SIGNED_EXPONENT = r"[0-9]+E[+-][0-9]+(?:BD|[DF])?"
_PLAIN_NUMBER = re.compile(r"[0-9]+(?:[LSY]|(?:E[0-9]+)?(?:BD|[DF])?)")
_RULES = re.compile(
    rf"[{_SPACES}]*+(?:"
    rf"(?P<number>{_DECIMAL}|{_SIGNED_EXPONENT})"
    r"|(?P<symbol>/\*\+|\*/|<=>|>>>|<>|<=|<<|>=|>>|!=|!>|!<|==|\|\||\|>|::|->|=>"
    r"|(?!/\*|--)[-;(),.\[\]!=<>+*/%~&|^:?])"
    # A raw string begins with a letter, so it comes before words
    r"""|(?P<string>'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+"|R'[^']*+'|R"[^"]*+")"""
    r"|(?P<uri>[^\W\d_]+://[\w/\-.?=&#%]+)"
    r"|(?P<word>\w+)"
    r"|(?P<quoted>`(?:[^`]|``)*+`)"
    r"|(?P<line>--(?:\\\n|[^\r\n])*+\r?\n?)"
    r"|(?P<comment>/\*)"
    r"|(?P<dollar>\$[A-Z]*\$)"
    r"|(?P<other>.)"
    r")",
    re.DOTALL,
)
# A row without parentheses in it, and so without a subquery. It may hold no comment.
_ROW = (
    rf"\((?![{_SPACES}]*(?:SELECT|FROM|TABLE|VALUES|WITH|MAP|REDUCE)\b)"
    r"(?:R'[^']*+'|R\"[^\"]*+\"|\w++|'(?:[^'\\]|\\.|'')*+'|\"(?:[^\"\\]|\\.|\"\")*+\""
    r"|-(?!-)|[^\w()'\"`\-/$;])*+\)"
)
_LITERAL_ROWS = re.compile(rf"{_ROW}(?:[{_SPACES}]*+,[{_SPACES}]*+{_ROW})*+", re.DOTALL)
_COMMENT_EDGE = re.compile(r"/\*(?!\+)|\*/")
_COMPLEX_TYPES = frozenset({"ARRAY", "MAP", "STRUCT"})
_UNCLOSED = {
    "'": "the string that begins here has no end; close it with '",
    '"': 'the string that begins here has no end; close it with "',
    "`": "the name that begins here has no end; close it with `",
}
_ESCAPE = re.compile(
    r"\\(?:u(?P<four>[0-9a-fA-F]{4})|U(?P<eight>[0-9a-fA-F]{8})"
    r"|(?P<octal>[0-3][0-7]{2})|(?P<single>.))|(?P<doubled>''|\"\")",
    re.DOTALL,
)
# What follows the backslash, and what it means; of % and _ the backslash stays, for LIKE
_SINGLE_ESCAPES = {
    "0": "\0",
    "b": "\b",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "Z": "\x1a",
    "%": "\\%",
    "_": "\\_",
}


def words(text: str) -> frozenset[str]:
    """Return the words of a text: a set of keywords."""
    return frozenset(text.split())


class Token(NamedTuple):
    """A token: its kind, its value, and where it begins and ends in the text."""

    kind: str
    value: str
    start: int
    end: int


def tokens(
    text: str, start: int = 0, stop: int | None = None, *, join_rows: bool = False
) -> list[Token]:
    """Return the tokens of a piece of a text, without spaces and comments.

    The last one has the kind END. Offsets count from the beginning of the text. With `join_rows`,
    rows of literals after VALUES are one token: an INSERT may have megabytes of them.
    """
    end = len(text) if stop is None else stop
    upper = _upper(text[:end])
    found_tokens: list[Token] = []
    append = found_tokens.append
    match_at = _RULES.match
    position, depth = start, 0
    while (match := match_at(upper, position)) is not None:
        kind = match.lastgroup
        begin, position = match.span(kind or 0)
        value = upper[begin:position]
        if kind == SYMBOL:
            if depth and value[0] == ">" and value != ">=":
                # Within a type, two closing brackets are two tokens
                value, position, depth = ">", begin + 1, depth - 1
            elif join_rows and value == "(":
                kind, value, position = _parenthesis_or_rows(upper, begin, found_tokens)
            append(Token(kind, value, begin, position))
        elif kind == WORD:
            if _PLAIN_NUMBER.fullmatch(value):
                kind = NUMBER
            depth += value in _COMPLEX_TYPES
            append(Token(kind, value, begin, position))
        elif kind in _VALUELESS:
            append(Token(kind, "", begin, position))
        else:
            position = _rare(text, upper, match, found_tokens)
    append(Token(END, "", end, end))
    return found_tokens


_VALUELESS = frozenset({STRING, NUMBER, QUOTED})


def _parenthesis_or_rows(upper: str, begin: int, before: list[Token]) -> tuple[str, str, int]:
    """Return kind, value and end of what a parenthesis begins after some tokens."""
    rows = _LITERAL_ROWS.match(upper, begin) if _is_row_start(before) else None
    return (SYMBOL, "(", begin + 1) if rows is None else (ROWS, "", rows.end())


def _is_row_start(before: list[Token]) -> bool:
    """Return whether a row may begin after these tokens: after VALUES, or after a row."""
    # Of a MERGE, each value of a row is needed
    if not before or before[0].value == "MERGE":
        return False
    if before[-1].value == "VALUES":
        return True
    return before[-1].value == "," and len(before) > 1 and before[-2].kind == ROWS


def _rare(text: str, upper: str, match: re.Match[str], tokens_so_far: list[Token]) -> int:
    """Read a comment, a URI, a dollar quote or an unknown character; return its end."""
    kind = match.lastgroup
    begin, position = match.span(kind or 0)
    if kind == "comment":
        return _end_of_comment(text, upper, begin)
    if kind == "line":
        return position
    if kind == "uri":
        tokens_so_far.append(Token(WORD, upper[begin:position], begin, position))
        return position
    if kind == "dollar":
        return _dollar_quoted(upper, begin, position, tokens_so_far)
    value = upper[begin:position]
    if value in _UNCLOSED:
        raise error_at(text, begin, _UNCLOSED[value])
    tokens_so_far.append(Token(OTHER, text[begin:position], begin, position))
    return position


def _dollar_quoted(upper: str, begin: int, after: int, tokens_so_far: list[Token]) -> int:
    quote = upper[begin:after]
    closing = upper.find(quote, after)
    if closing < 0:
        tokens_so_far.append(Token(OTHER, "$", begin, begin + 1))
        return begin + 1
    position = closing + len(quote)
    tokens_so_far.append(Token(STRING, "", begin, position))
    return position


def _end_of_comment(text: str, upper: str, begin: int) -> int:
    depth = 0
    position = begin
    while (edge := _COMMENT_EDGE.search(upper, position)) is not None:
        depth += -1 if edge[0] == "*/" else 1
        position = edge.end()
        if depth == 0:
            return position
    raise error_at(text, begin, "the comment that begins here has no end; close it with */")


def _upper(text: str) -> str:
    """Return the text in upper case, character by character as Java does it."""
    if text.isascii():
        return text.upper()
    return "".join(map(_upper_character, text))


@lru_cache(maxsize=65536)
def _upper_character(character: str) -> str:
    # A number that is not a digit, such as ², is part of a word for `re`, but not for Spark
    if character.isalnum() and not unicodedata.category(character).startswith("L"):
        return character if character.isascii() else "\x00"
    upper = character.upper()
    return upper if len(upper) == 1 else character


def error_at(text: str, offset: int, message: str) -> InvalidInputError:
    """Return an error that begins with a line and a column, both counted from 1."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return InvalidInputError(f"SQL, line {line}, column {column}: {message}")


def shown(text: str, token: Token) -> str:
    """Return how an error names a token."""
    if token.kind == END:
        return "the end of the statement"
    piece = text[token.start : token.end]
    if len(piece) > _MAX_SHOWN:
        piece = f"{piece[:_MAX_SHOWN]}..."
    return piece


def identifier_value(text: str, token: Token) -> str:
    """Return the name that an identifier stands for, without its backticks."""
    piece = text[token.start : token.end]
    if token.kind == QUOTED:
        return piece[1:-1].replace("``", "`")
    return piece


def string_value(text: str, token: Token) -> str:
    """Return the value of a string, with its escapes resolved as Spark does it."""
    piece = text[token.start : token.end]
    if piece[0] in "rR":
        return piece[2:-1]
    if piece[0] == "$":
        tag = piece[: piece.index("$", 1) + 1]
        return piece[len(tag) : -len(tag)]
    quote = piece[0]

    def resolved(match: re.Match[str]) -> str:
        digits = match["four"] or match["eight"]
        if digits:
            return _character(text, token, int(digits, 16))
        if match["octal"]:
            return chr(int(match["octal"], 8))
        if match["doubled"]:
            return quote if match["doubled"][0] == quote else match["doubled"]
        return _SINGLE_ESCAPES.get(match["single"], match["single"])

    return _ESCAPE.sub(resolved, piece[1:-1])


def _character(text: str, token: Token, code_point: int) -> str:
    try:
        return chr(code_point)
    except ValueError:
        message = f"\\U{code_point:08X} is not a character; the greatest is \\U0010FFFF"
        raise error_at(text, token.start, message) from None
