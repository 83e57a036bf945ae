"""The lexer: the text of a condition to tokens."""

import re
from dataclasses import dataclass

from opal_lake.definition.conditions.faults import FaultError

_TOKENS = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<name>`(?:[^`]|``)*`)
  | (?P<text>'(?:[^']|'')*')
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<comment>--|/\*)
  | (?P<operator><=>|<=|>=|<>|!=|==|[=<>+\-*/%.,()])
    """,
    re.VERBOSE | re.ASCII,
)
# A comment would hide from a reader what a stored condition says
_COMMENT = "a condition has no comments; remove it"
_REMEDIES = {
    "'": "the text that begins here has no end; close it with '",
    "`": "the name that begins here has no end; close it with `",
    '"': "conditions have no double quotes; write a text as 'D', and a column as `D`",
    ";": "a condition is not a statement; remove the ;",
    "|": "conditions have no |; write OR, or concat(a, b)",
    "&": "conditions have no &; write AND",
    "!": "conditions have no ! alone; write NOT, or != between two values",
    "[": "conditions cannot index lists or maps; compute the value as a column first",
    "?": "conditions have no parameters; write the value",
    ":": "conditions have no parameters and no casts; write the value",
    "\\": "a backslash is allowed in texts only; remove it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A piece of the text.

    `value` is a name or text without quotes, otherwise the piece as it stands.
    """

    kind: str
    value: str
    at: int

    @property
    def keyword(self) -> str:
        """The word in upper case, or an empty text if the piece is not a word."""
        return self.value.upper() if self.kind == "word" else ""

    @property
    def shown(self) -> str:
        """The piece as a message names it."""
        if self.kind == "end":
            return "the end"
        if self.kind == "text":
            return f"the text {self.value!r}"
        return repr(self.value)


def tokens_of(text: str, max_characters: int) -> list[Token]:
    """Return the tokens of the text; a token of kind "end" is the last."""
    if len(text) > max_characters:
        raise FaultError(
            max_characters,
            f"the condition has {len(text):,} characters; write at most {max_characters:,}",
        )
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            raise _unknown(text[at], at)
        if match.lastgroup == "comment":
            raise FaultError(at, f"found {match[0]!r}; {_COMMENT}")
        if match.lastgroup != "space":
            tokens.append(_token(match.lastgroup or "", match[0], at))
        at = match.end()
        if match.lastgroup == "number" and text[at : at + 1].isalnum():
            raise FaultError(
                at, f"found {text[at]!r} in a number; write numbers as 5, 1.50 or 1e-3"
            )
    if not tokens:
        raise FaultError(0, "the condition is empty; write one such as op = 'D'")
    return [*tokens, Token(kind="end", value="", at=len(text))]


def _token(kind: str, piece: str, at: int) -> Token:
    if kind in ("name", "text"):
        quote = piece[0]
        return Token(kind=kind, value=piece[1:-1].replace(quote * 2, quote), at=at)
    return Token(kind=kind, value=piece, at=at)


def _unknown(character: str, at: int) -> FaultError:
    remedy = _REMEDIES.get(character)
    if remedy is None and character.isalpha():
        remedy = "write a name with letters beyond ASCII in back-quotes, for example `größe`"
    return FaultError(
        at, f"found {character!r}; {remedy or 'conditions do not have this character'}"
    )
