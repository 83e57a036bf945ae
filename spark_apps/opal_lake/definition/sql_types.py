"""Types in SQL, such as `DECIMAL(10,2)` or `STRUCT<a: INT, b: ARRAY<STRING>>`, without Spark."""

import re
from collections.abc import Iterator

import pyarrow as pa

from opal_lake.definition.schema import (
    ATOMIC_TYPES,
    SQL_NAMES,
    arrow_type,
    atomic_type_name,
    check_names,
    decimal_parts,
    type_from_json,
)
from opal_lake.errors import InvalidInputError

# Other names of types in Spark's SQL, and their names in the format
_ALIASES = {
    **{sql: name for name, sql in SQL_NAMES.items()},
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
    "varchar": "string",
}
_DEFAULT_DECIMAL = "decimal(10,0)"  # SQL's, where no digits are given
_QUOTED = re.compile(r"`[^`]*`|'(?:[^'\\]|\\.)*'")  # names, and comments of columns
_WITH_LENGTH = re.compile(r"\b(?:VARCHAR|CHAR|CHARACTER)\b\s*\([\s\d]*\)", re.IGNORECASE)
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")
# Types from data may nest without bound; no column nests deeper than this (FORMAT, section 2)
_MAX_LEVELS = 64


def arrow_of_type(column: str, text: str) -> pa.DataType:
    """Return the Arrow type of a type in SQL or of the format, such as `long`.

    Raises InvalidInputError for another text. Its message names the column.
    """
    try:
        tokens = _Tokens(text)
        kind = _type(tokens, 0)
        tokens.end()
    except _NotATypeError:
        refuse_lengths(f"column {column!r}", text)
        known = ", ".join(map(atomic_type_name, ATOMIC_TYPES))
        raise InvalidInputError(
            f"column {column!r}: {text!r} is not a type; use one of {known}, DECIMAL(p,s), "
            "ARRAY<type>, MAP<type, type> or STRUCT<name: type, ...>"
        ) from None
    return kind


class _NotATypeError(Exception):
    """The text is not a type."""


class _Tokens:
    """The words, names and signs of a text, from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens_of(text))
        self._position = 0

    def take(self) -> tuple[str, bool]:
        """Return the next token, and whether it is a name in backquotes."""
        if self._position == len(self._tokens):
            raise _NotATypeError
        token = self._tokens[self._position]
        self._position += 1
        return token

    def takes(self, sign: str) -> bool:
        """Take the next token if it is this sign; return whether it was."""
        is_next = self._tokens[self._position : self._position + 1] == [(sign, False)]
        self._position += is_next
        return is_next

    def expect(self, sign: str) -> None:
        if not self.takes(sign):
            raise _NotATypeError

    def end(self) -> None:
        if self._position < len(self._tokens):
            raise _NotATypeError


def _tokens_of(text: str) -> Iterator[tuple[str, bool]]:
    position, stripped = 0, text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise _NotATypeError
        if match[1] is not None:
            yield match[1].replace("``", "`"), True
        else:
            yield match[2] or match[3], False
        position = match.end()


def _type(tokens: _Tokens, level: int) -> pa.DataType:
    if level > _MAX_LEVELS:
        raise _NotATypeError
    word, is_quoted = tokens.take()
    if is_quoted:
        raise _NotATypeError
    word = word.lower()
    match word:
        case "array":
            tokens.expect("<")
            element = _type(tokens, level + 1)
            tokens.expect(">")
            return pa.list_(pa.field("element", element))
        case "map":
            tokens.expect("<")
            key = _type(tokens, level + 1)
            tokens.expect(",")
            value = _type(tokens, level + 1)
            tokens.expect(">")
            return pa.map_(key, value)
        case "struct":
            return _struct(tokens, level)
    return _atomic(word, tokens)


def _struct(tokens: _Tokens, level: int) -> pa.DataType:
    tokens.expect("<")
    members: list[pa.Field] = []
    while not members or tokens.takes(","):
        name, is_quoted = tokens.take()
        if not is_quoted and not name[0].isalnum() and name[0] != "_":
            raise _NotATypeError
        tokens.takes(":")  # Spark's SQL lets it out
        members.append(pa.field(name, _type(tokens, level + 1)))
    tokens.expect(">")
    check_names(member.name for member in members)
    return pa.struct(members)


def _atomic(word: str, tokens: _Tokens) -> pa.DataType:
    name = _ALIASES.get(word, word)
    arguments = _arguments(tokens)
    if name == "decimal":
        name = _decimal_name(arguments)
    elif arguments or (name not in ATOMIC_TYPES):
        raise _NotATypeError
    return arrow_type(type_from_json(name))


def _arguments(tokens: _Tokens) -> list[str]:
    """Return the numbers in parentheses behind a type, if any."""
    if not tokens.takes("("):
        return []
    arguments: list[str] = []
    while not arguments or tokens.takes(","):
        number, _ = tokens.take()
        if not number.isdecimal():
            raise _NotATypeError
        arguments.append(number)
    tokens.expect(")")
    return arguments


def _decimal_name(arguments: list[str]) -> str:
    """Return the type of a decimal; raise for digits that no decimal has."""
    if not arguments:
        return _DEFAULT_DECIMAL
    digits = [int(argument) for argument in arguments]
    if len(digits) == 1:
        digits.append(0)
    name = f"decimal({','.join(map(str, digits))})"
    parts = decimal_parts(name)
    if parts is None:
        raise _NotATypeError
    precision, scale = parts
    if not 0 < precision <= 38 or scale > precision:
        raise _NotATypeError
    return name


def refuse_lengths(what: str, text: str) -> None:
    """Raise InvalidInputError for a text type with a length, which no table keeps.

    `what` says what the text is, for the message.
    """
    match = _WITH_LENGTH.search(_QUOTED.sub("", text))
    if match is not None:
        raise InvalidInputError(
            f"{what}: {match[0].upper()} is not a type of a table, whose texts have no length "
            "limit; write STRING, and check lengths before the ingest"
        )
