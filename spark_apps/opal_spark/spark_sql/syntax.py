"""Reads of statements by Spark's parser alone, before anything runs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from opal_lake.sql.lexer import error_at
from opal_lake.sql.statements import (
    CreateTable,
    Delete,
    InsertInto,
    InsertOverwrite,
    InsertReplaceWhere,
    Merge,
    Other,
    Query,
    Slice,
    Statement,
    Update,
)
from opal_spark.engine.session import SyntaxFault, syntax_fault

# Statements that mean the same to Spark's parser as to ours
_READ_WHOLE = (Query, Delete, InsertInto, InsertOverwrite, InsertReplaceWhere, Update)
_NOT_A_LINE_END = re.compile(r"[^\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A piece of a statement, with what makes a whole statement of it."""

    piece: Slice
    before: str = ""
    after: str = ""


def check_syntax(
    spark: SparkSession, statement: Statement, whole: str, *, is_on_opal: bool
) -> None:
    """Raise InvalidInputError for what Spark's parser cannot read.

    `whole` is the text in which the error names a line and a column. Nothing runs.
    """
    for text in _texts(statement, is_on_opal=is_on_opal):
        read = text.before + _with_plain_names(statement, text.piece) + text.after
        fault = syntax_fault(spark, read, is_known=not isinstance(statement, Other))
        if fault is not None:
            offset = text.piece.offset + _offset(read, fault) - len(text.before)
            # Spark may find the fault in the text that follows the piece
            raise error_at(whole, min(offset, text.piece.end), fault.message)


def _texts(statement: Statement, *, is_on_opal: bool) -> Iterator[_Text]:
    """Yield the pieces of a statement that Spark parses when it runs."""
    if not is_on_opal or isinstance(statement, _READ_WHOLE):
        yield _Text(piece=statement.text)
    elif isinstance(statement, CreateTable) and statement.query is not None:
        yield _Text(piece=statement.query)
    elif isinstance(statement, Merge):
        # Spark takes the clauses in one order alone
        if statement.source_query is not None:
            yield _Text(piece=statement.source_query)
        for expression in _expressions(statement):
            yield _Text(piece=expression, before="SELECT (", after="\n)")


def _expressions(statement: Merge) -> Iterator[Slice]:
    yield statement.on
    for clause in statement.clauses:
        if clause.condition is not None:
            yield clause.condition
        yield from clause.values
        yield from (assignment.value for assignment in clause.assignments)


def _with_plain_names(statement: Statement, piece: Slice) -> str:
    """Return a piece with a plain name of equal length in place of each table.

    Spark's parser may not know the time travel of a table, such as CHANGES. The lines and columns
    of everything else stay.
    """
    text = piece.text
    for reference in statement.references:
        span = reference.slice
        if piece.offset <= span.offset and span.end <= piece.end:
            first_line, *others = span.text.split("\n")
            lines = ["t" * len(first_line), *(_NOT_A_LINE_END.sub(" ", line) for line in others)]
            start, end = span.offset - piece.offset, span.end - piece.offset
            text = text[:start] + "\n".join(lines) + text[end:]
    return text


def _offset(text: str, fault: SyntaxFault) -> int:
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: fault.line - 1]) + fault.column
