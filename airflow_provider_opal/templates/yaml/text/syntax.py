"""Errors of the YAML scanner as a position and a remedy."""

from typing import Any

import yaml

from airflow_provider_opal.templates.yaml.text.problem import START, Position, YamlError, shown

_QUOTE = "put the text into quotes"

# Pairs of a part of the scanner's message and the message to show instead. The first pair that fits
# counts. The scanners in C and in Python use different words
_REMEDIES: tuple[tuple[str, str], ...] = (
    ("unexpected ':'", f"a ':' follows within a value; {_QUOTE}"),
    (
        "comment or line break",
        f"a '|' or '>' begins a text on the lines below, and more follows it here; {_QUOTE}",
    ),
    (
        "<document start>",
        "this belongs to nothing above it; line it up with the other keys, or remove it",
    ),
    (
        "block sequence entries",
        f"a '- ' cannot begin here; put it on a line of its own, or {_QUOTE}",
    ),
    (
        "mapping values are not allowed",
        f"a ':' follows within a value; {_QUOTE}, or line the key up with the others",
    ),
    (
        "expected ',' or ']'",
        (
            "the list that opens at {opened} is not closed before this; "
            "write ']', and ',' between its items"
        ),
    ),
    (
        "expected ',' or '}'",
        (
            "the braces that open at {opened} are not closed before this; "
            "write '}', and ',' between the members"
        ),
    ),
    (
        "unexpected end of stream",
        "the quote that opens at {opened} is not closed; write the other quote",
    ),
    ("document indicator", "the quote that opens at {opened} is not closed; write the other quote"),
    (
        "unknown escape character",
        "a backslash in double quotes begins an escape; write it twice, or use 'single quotes'",
    ),
    (
        "hexdecimal",
        (
            "a backslash in double quotes begins an escape, and this one is incomplete; "
            "write it twice, or use 'single quotes'"
        ),
    ),
    (
        "did not find expected key",
        (
            "the indentation fits neither the mapping that begins at {opened} nor a value; "
            "line the key up with the others"
        ),
    ),
    ("expected <block end>", "the indentation does not fit what begins at {opened}; line it up"),
    ("could not find expected ':'", "a ':' is missing after this key; write 'name: value'"),
    (
        "expected '-' indicator",
        (
            "the list that begins at {opened} goes on without '- '; "
            "line its items up and begin each with '- '"
        ),
    ),
    ("expected node content", f"a value was expected here; write one, or {_QUOTE}"),
    ("expected alphabetic", "'&' and '*' begin an anchor or an alias; " + _QUOTE),
    ("incompatible YAML", "this version of YAML is not known; remove the line"),
    ("directive", f"a '%' begins a directive here; remove the line, or {_QUOTE}"),
    ("tag", f"a '!' begins a tag, and tags are not allowed; {_QUOTE}"),
)
_AT_OPENING = ("unexpected end of stream", "document indicator")


def syntax_error(error: yaml.YAMLError, text: str) -> YamlError:
    """Return the scanner's error with a position and a remedy."""
    complaint = str(getattr(error, "problem", None) or error).splitlines()[0]
    position = _position(getattr(error, "problem_mark", None))
    opened = _position(getattr(error, "context_mark", None))
    lines = text.splitlines()
    is_at_end = position.line > len(lines)
    if "cannot start any token" in complaint:
        return YamlError(position, _bad_start(text, position))
    if "node content" in complaint and is_at_end:
        last_line = lines[-1] if lines else ""
        end = Position(max(len(lines), 1), len(last_line) + 1)
        return YamlError(end, "the file ends within brackets or braces; close them")
    # The end of the file would not show where the mistake is
    is_unclosed = "expected ',' or" in complaint and is_at_end
    if is_unclosed or any(part in complaint for part in _AT_OPENING):
        position = opened
    unknown = f"{shown(complaint)}; look for a missing quote, colon or space before it"
    remedies = [remedy for part, remedy in _REMEDIES if part in complaint]
    remedy = remedies[0] if remedies else unknown
    return YamlError(position, remedy.replace("{opened}", f"{opened.line}:{opened.column}"))


def _bad_start(text: str, position: Position) -> str:
    lines = text.splitlines()
    character = ""
    if position.line <= len(lines):
        character = lines[position.line - 1][position.column - 1 : position.column]
    if character == "\t":
        return "a tab cannot indent; use spaces"
    return f"a value cannot begin with {character!r}; {_QUOTE}"


def _position(mark: Any) -> Position:
    if mark is None:
        return START
    return Position(mark.line + 1, mark.column + 1)
