"""Patterns of LIKE: `%` is any text, `_` one code point, all else itself."""

import re
from dataclasses import dataclass

MAX_PATTERN = 500  # characters
_PLAIN = re.compile(r"[A-Za-z0-9 ]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The pieces between the `%`; in a piece, None is any code point."""

    pieces: tuple[tuple[str | None, ...], ...]

    @property
    def prefix(self) -> str:
        """The characters that a match begins with."""
        return _plain_start(self.pieces[0])

    @property
    def is_prefix_alone(self) -> bool:
        """True if the pattern is characters and one `%` at its end."""
        return len(self.pieces) == 2 and not self.pieces[1] and None not in self.pieces[0]

    @property
    def exact(self) -> str | None:
        """The only text that matches; None if there are more."""
        only = self.pieces[0]
        if len(self.pieces) > 1 or None in only:
            return None
        return _plain_start(only)

    def regex(self, *, backtracks: bool) -> str:
        """Return a regular expression of the whole text.

        The first match of each piece is as good as any. An engine that tries all ways, as Java's,
        gets each piece in an atomic group, so that its time is bounded.
        """
        first, *rest = [_piece_regex(piece) for piece in self.pieces]
        if not rest:
            return rf"(?s)\A{first}\z"
        inner, last = rest[:-1], rest[-1]
        group = "(?>" if backtracks else "(?:"
        groups = "".join(f"{group}.*?{piece})" for piece in inner if piece)
        return rf"(?s)\A{first}{groups}.*{last}\z"


def pattern_of(text: str, escape: str) -> Pattern:
    """Return the pattern; ValueError says what is wrong with it."""
    if len(text) > MAX_PATTERN:
        raise ValueError(f"has {len(text):,} characters; write at most {MAX_PATTERN}")
    pieces: list[list[str | None]] = [[]]
    characters = iter(text)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape) or not escaped:
                raise ValueError(
                    f"has {escape + escaped!r}, but {escape!r} escapes only %, _ and itself; "
                    f"write {escape * 2!r} for the character"
                )
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return Pattern(pieces=tuple(tuple(piece) for piece in pieces))


def literal_pattern(text: str, *, starts: bool, ends: bool) -> Pattern:
    """Return the pattern of texts with a part at their begin, their end, or anywhere."""
    before: tuple[tuple[str | None, ...], ...] = () if starts else ((),)
    after: tuple[tuple[str | None, ...], ...] = () if ends else ((),)
    return Pattern(pieces=(*before, tuple(text), *after))


def _plain_start(piece: tuple[str | None, ...]) -> str:
    start: list[str] = []
    for character in piece:
        if character is None:
            break
        start.append(character)
    return "".join(start)


def _piece_regex(piece: tuple[str | None, ...]) -> str:
    return "".join(_character_regex(character) for character in piece)


def _character_regex(character: str | None) -> str:
    if character is None:
        return "."
    if _PLAIN.match(character):
        return character
    # By code point, which the engines of Arrow and of Java read alike
    return rf"\x{{{ord(character):X}}}"
