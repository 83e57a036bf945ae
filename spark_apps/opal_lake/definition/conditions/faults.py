"""Faults of conditions, and their places in the text."""

from dataclasses import dataclass

from opal_lake.definition.conditions.tree import MAX_CHARACTERS
from opal_lake.errors import InvalidInputError

_SHOWN_BEFORE, _SHOWN_AFTER = 60, 30  # characters around the fault, of a long line
_MAX_QUOTED = 200  # characters of a condition


class FaultError(Exception):
    """A fault at a character of the text, counted from 0; `text` is fact and remedy."""

    def __init__(self, at: int, text: str) -> None:
        super().__init__(text)
        self.at, self.text = at, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A use of conditions: its name in messages, and the way out of its limits.

    A condition of a read may list many keys; one that is stored is parsed by every job.
    """

    name: str
    instead: str
    max_characters: int = 100_000


ANY_USE = Use(name="the condition", instead="compute it as a column before, and name the column")
DELETES = Use(
    name="the delete condition",
    instead="compute it as a column of the source before the ingest, and name the column",
    max_characters=MAX_CHARACTERS,
)
WHERE = Use(name="where", instead="filter the rows that are returned")
ROWS_WHERE = Use(
    name="where", instead="write the condition without it, or run the statement on Spark"
)
FILES_WHERE = Use(name="files_where", instead="leave it to the filter of the query")


def invalid(use: Use, text: str, fault: FaultError) -> InvalidInputError:
    """Return the error that shows the fault with a caret."""
    before = text[: fault.at]
    line_start = before.rfind("\n") + 1
    line = text[line_start:].split("\n", 1)[0].replace("\t", " ")
    column = fault.at - line_start
    first = max(0, column - _SHOWN_BEFORE)
    excerpt = line[first : column + _SHOWN_AFTER]
    position = f"column {column + 1}"
    if "\n" in text:
        line_number = before.count("\n") + 1
        position = f"line {line_number}, {position}"
    caret = " " * (column - first) + "^"
    return InvalidInputError(
        f"{use.name} {quote(text)} has a fault at {position}: {fault.text}\n"
        f"    {excerpt}\n    {caret}"
    )


def quote(text: str) -> str:
    """Return the text in quotes, shortened if it is long."""
    if len(text) > _MAX_QUOTED:
        text = f"{text[:_MAX_QUOTED]}..."
    return repr(text)
