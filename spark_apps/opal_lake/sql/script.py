"""Scripts: several statements in one text, which semicolons separate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opal_lake.errors import InvalidInputError
from opal_lake.sql.lexer import END, STRING, WORD, string_value, tokens
from opal_lake.sql.names import FindCatalog, name_parts, uri_of_parts
from opal_lake.sql.parse import parse, split_script
from opal_lake.sql.statements import (
    AlterTable,
    Call,
    CreateTable,
    Delete,
    DropTable,
    InsertInto,
    InsertReplaceWhere,
    Merge,
    Restore,
    Slice,
    Statement,
    Update,
)

_MAX_SHOWN = 80  # characters of a statement's first line in messages and results


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptStep:
    """A statement of a script: its number from 1 on, and the line at which it begins."""

    number: int
    total: int
    line: int
    statement: Statement

    @property
    def first_line(self) -> str:
        """Return the first line of the statement, cut if it is long."""
        line = self.statement.text.text.splitlines()[0].rstrip()
        return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN]}..."

    def token_in(self, token: str) -> str:
        """Return the token of this statement in a script with a token."""
        return token if self.total == 1 else f"{token}/{self.number}"


def read_script(text: str) -> tuple[ScriptStep, ...]:
    """Return the statements of a script.

    Raises InvalidInputError if one cannot be read.
    """
    pieces = split_script(text)
    if not pieces:
        raise InvalidInputError("the script has no statement")
    steps = []
    for number, piece in enumerate(pieces, start=1):
        step = ScriptStep(
            number=number,
            total=len(pieces),
            line=text.count("\n", 0, piece.offset) + 1,
            statement=parse(text, piece),
        )
        steps.append(step)
    return tuple(steps)


def joined_script(texts: tuple[str, ...]) -> str:
    """Return one script of several texts.

    Raises InvalidInputError if one cannot be read.
    """
    if len(texts) == 1:
        return texts[0]
    for number, text in enumerate(texts, start=1):
        try:
            for piece in split_script(text):
                parse(text, piece)
        except InvalidInputError as error:
            raise InvalidInputError(f"text {number} of {len(texts)}: {error}") from error
    # The line break ends a comment at the end of a text
    return "\n;\n".join(texts)


def changed_uri(
    statement: Statement, args: Mapping[str, Any], find_catalog: FindCatalog
) -> str | None:
    """Return the path of the Opal table that a statement changes, drops or calls.

    None for another statement, and for a table of Spark. Raises InvalidInputError for a name that
    only Spark can compute.
    """
    if isinstance(statement, Call):
        return _called_uri(statement, args, find_catalog)
    if isinstance(statement, Update | Delete | Merge):
        name = statement.target.table
    elif isinstance(
        statement,
        AlterTable | CreateTable | DropTable | InsertInto | InsertReplaceWhere | Restore,
    ):
        name = statement.table
    else:
        return None
    parts = name.parts
    if name.computed is not None:
        parts = name_parts(_known_text(name.computed, args))
    return uri_of_parts(parts, find_catalog)


def _called_uri(statement: Call, args: Mapping[str, Any], find_catalog: FindCatalog) -> str | None:
    """Return the path of the table of a CALL; None if the procedure is Spark's."""
    within = statement.procedure.parts[:1]
    if not within or find_catalog(within[0]) is None:
        return None
    named = [argument for argument in statement.arguments if argument.name is not None]
    value = next((a.value for a in named if str(a.name).lower() == "table"), None)
    if value is None and statement.arguments and statement.arguments[0].name is None:
        value = statement.arguments[0].value
    if value is None:
        # The statement itself reports what is missing
        return None
    parts = name_parts(_known_text(value, args))
    # A short name is one of the procedure's catalog
    own = (*within, *parts)
    return uri_of_parts(parts, find_catalog) or uri_of_parts(own, find_catalog)


def _known_text(value: Slice, args: Mapping[str, Any]) -> str:
    """Return the text of a literal or parameter, without Spark."""
    pieces = tokens(value.text)
    known: object = None
    if [piece.kind for piece in pieces] == [STRING, END]:
        known = string_value(value.text, pieces[0])
    elif len(pieces) == 3 and pieces[0].value == ":" and pieces[1].kind == WORD:
        known = args.get(value.text[pieces[1].start : pieces[1].end])
    if not isinstance(known, str):
        raise InvalidInputError(
            f"{value.text} computes the name of a table, which has to be known before Spark "
            "starts; write the name, a string or a parameter"
        )
    return known
