"""The form of a mistake in a YAML file.

It is `file:line:column: dags.orders.table.keys: the fact; what to write`.

The module that detects a mistake writes the words: `reader.py` for the text of a file,
`models/mistakes.py` for a value, `models/rules.py` for values that do not fit each other, and
`lint/lake.py` for the table itself. `files.py` adds the position.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches

from opal_lake.errors import InvalidInputError

Keys = tuple[str | int, ...]
KINDS = ("dags", "mutations", "scripts")  # keys of a file that have DAGs below them
MAX_SHOWN_CHARACTERS = 80
MAX_PATH_CHARACTERS = 4096  # an editor has to find the file: its name is not cut


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in a text, counted from 1."""

    line: int
    column: int


START = Position(1, 1)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One finding.

    `at` holds the keys that lead to it; it is empty for the whole file.
    """

    file: str
    position: Position
    at: Keys
    what: str
    kind: str = "error"

    def __str__(self) -> str:
        file = shown(self.file, MAX_PATH_CHARACTERS)
        location = f"{file}:{self.position.line}:{self.position.column}"
        keys = dotted(self.at)
        if not keys:
            return f"{location}: {self.what}"
        return f"{location}: {keys}: {self.what}"

    @property
    def dag_id(self) -> str | None:
        """The pipeline that it concerns; None if it concerns the whole file."""
        if len(self.at) < 2 or self.at[0] not in KINDS:
            return None
        return str(self.at[1])

    def of(self, file: str) -> "Problem":
        """Return the problem with the file's name."""
        return replace(self, file=file)


class YamlError(InvalidInputError):
    """A file that cannot be read at all."""

    def __init__(self, position: Position, what: str) -> None:
        super().__init__(what)
        self.position = position


def dotted(at: Keys) -> str:
    """Return keys as a text such as `dags.orders.table.keys[0]`."""
    text = ""
    for key in at:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{shown(key)}"
    return text.removeprefix(".")


def shown(text: str, max_characters: int = MAX_SHOWN_CHARACTERS) -> str:
    """Return a text for one line.

    Characters that move a cursor or reorder text are escaped.
    """
    clean = "".join(map(_printable, text))
    if len(clean) <= max_characters:
        return clean
    return clean[: max_characters - 1] + "…"


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "backslashreplace").decode()


def advice(name: str, known: Collection[str]) -> str:
    """Return a hint: the nearest known name, or all known names."""
    return near_name(name, known) or f"use one of {listed(known)}"


def near_name(name: str, known: Collection[str]) -> str | None:
    """Return a hint with the nearest known name, or None if no name is near."""
    near = get_close_matches(name, known, n=1) or get_close_matches(name.casefold(), known, n=1)
    return f"did you mean {near[0]!r}?" if near else None


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
