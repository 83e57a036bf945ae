"""The form of a mistake in a YAML file: `file:line:column: dags.orders.table.keys: the fact; what to write`.

The words are made where it is seen: of the text in `reader.py`, of a value in `models/mistakes.py`, of values that do not fit each other in
`models/rules.py`, of the table itself in `lint/lake.py`. The position comes from `files.py`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches

from opal_lake.errors import InvalidInputError

Keys = tuple[str | int, ...]
KINDS = ("dags", "mutations")  # keys of a file that have DAGs below them
LONGEST_PATH = 4096  # an editor has to find the file: its name is never cut


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in a text, counted from 1."""

    line: int
    column: int


START = Position(1, 1)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One finding. `at` is the way of keys to it, empty for the whole file."""

    file: str
    position: Position
    at: Keys
    what: str
    kind: str = "error"

    def __str__(self) -> str:
        parts = [
            f"{shown(self.file, LONGEST_PATH)}:{self.position.line}:{self.position.column}",
            dotted(self.at),
            self.what,
        ]
        return ": ".join(filter(None, parts))

    @property
    def dag_id(self) -> str | None:
        """The pipeline that it concerns; None when it is the whole file."""
        return str(self.at[1]) if len(self.at) > 1 and self.at[0] in KINDS else None

    def of(self, file: str) -> "Problem":
        """The same with the file's name."""
        return replace(self, file=file)


class YamlError(InvalidInputError):
    """A file that cannot be read at all."""

    def __init__(self, position: Position, what: str) -> None:
        super().__init__(what)
        self.position = position


def dotted(at: Keys) -> str:
    """`dags.orders.table.keys[0]`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{shown(key)}" for key in at)
    return text.removeprefix(".")


def shown(text: str, most: int = 80) -> str:
    """On one line, with nothing that moves a cursor or reorders text."""
    clean = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def advice(name: str, known: Collection[str]) -> str:
    """The nearest right name, or all of them."""
    near = get_close_matches(name, known, n=1) or get_close_matches(name.casefold(), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {listed(known)}"


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
