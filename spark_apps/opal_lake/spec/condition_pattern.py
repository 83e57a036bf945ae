"""Regular expressions of a delete condition: Java tries all ways of a pattern, and some have more ways than there is time.

What is refused is more than what is slow. The text is looked at as it stands and without its escapes, as Spark may be set to read either.
"""

import re
from collections.abc import Iterator

MOST_PATTERN = 200  # characters
MOST_REPEATS = 3  # each may be as many ways as the text has letters
MOST_CHOICES = 8  # quantifiers, and groups that hold an alternative

_NAMED = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "b": "\b",
    "0": "\0",
    "Z": "\x1a",
    "%": "\\%",
    "_": "\\_",
}
_ODD = re.compile(r"\\+[uU0-9]|\\+Q|\(\?(?!:|i\))|\[\^?\]|&&")
_PIECES = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|(?:[*+?]|\{[^}]*\})[+?]?|.", re.DOTALL)


def why_slow(literal: str) -> str | None:
    """What a pattern, given as an SQL text with its quotes, may not hold; None where it is plain."""
    pattern = literal[1:-1]
    if len(pattern) > MOST_PATTERN:
        return f"has {len(pattern):,} characters; write at most {MOST_PATTERN}"
    plain = re.sub(r"\\(.)", lambda match: _NAMED.get(match[1], match[1]), pattern, flags=re.DOTALL)
    return _why_odd(pattern) or _why_slow(pattern) or _why_odd(plain) or _why_slow(plain)


def _why_odd(pattern: str) -> str | None:
    """So that pieces are distinguished as in Java."""
    odd = _ODD.search(pattern)
    if odd:
        return f"holds {odd[0]!r}; write it of plain letters, classes, groups and quantifiers"
    return None


def _why_slow(pattern: str) -> str | None:
    repeats = choices = 0
    holding = [False]  # by open group, whether it holds a quantifier or an alternative
    closed: bool | None = None  # of the group that ended with the last piece
    for piece in _pieces(pattern):
        ended, closed = closed, None
        if piece == "(":
            holding.append(False)
        elif piece == ")" and len(holding) > 1:
            closed = holding.pop()
            holding[-1] |= closed
        elif piece == "|":
            choices += not holding[-1]
            holding[-1] = True
        elif piece[0] in "*+?{":
            if ended and piece[0] != "?":  # that one is no repetition
                return f"has {piece!r} behind a group that holds a quantifier or an alternative, which may take for ever; write it flatter"
            repeats += piece[0] != "?"
            choices += 1
            holding[-1] = True
        elif piece.startswith("[") and (piece == "[" or "[" in piece[1:]):
            return "has a class in a class; write it as one"
    if repeats > MOST_REPEATS or choices > MOST_CHOICES:
        return f"has more than {MOST_REPEATS} of *, + and {{}}, or more than {MOST_CHOICES} of these, ? and alternatives; write it simpler"
    return None


def _pieces(pattern: str) -> Iterator[str]:
    """The `?` of `(?:` and `(?i)` is no quantifier."""
    return (match[0] for match in _PIECES.finditer(pattern.replace("(?:", "(").replace("(?i)", "")))
