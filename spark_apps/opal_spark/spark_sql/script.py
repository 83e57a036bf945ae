"""Scripts: several statements in one text, which semicolons separate."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.sql.parse import parse, split_script
from opal_lake.sql.statements import (
    AlterTable,
    Call,
    CreateTable,
    Delete,
    InsertInto,
    InsertReplaceWhere,
    Merge,
    Restore,
    Slice,
    Statement,
    Update,
)
from opal_spark.engine.failures import spark_errors
from opal_spark.engine.versions import check_session
from opal_spark.spark_sql.arguments import Arguments
from opal_spark.spark_sql.procedures import takes_token
from opal_spark.spark_sql.run import run

# Statements that a token makes harmless to repeat
_CHANGES = (
    AlterTable,
    CreateTable,
    Delete,
    InsertInto,
    InsertReplaceWhere,
    Merge,
    Restore,
    Update,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A statement of a script that has run, by its number, and its result."""

    number: int
    total: int
    statement: Slice
    rows: DataFrame


def run_script(
    spark: SparkSession,
    text: str,
    args: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> Iterator[Step]:
    """Run the statements of a script in their order, and yield each result.

    A result must be used before the next one is asked for: queries run when they are used. All
    statements are parsed before the first one runs. With a `token` each statement that changes a
    table has a token of its own, `token/1` and so on by its number, so that a repeat of the script
    goes on where it stopped. Statements of a single-statement script have the token itself.
    """
    check_session(spark)
    pieces = split_script(text)
    if not pieces:
        raise InvalidInputError("the script has no statement")
    statements = [parse(text, piece) for piece in pieces]
    for number, statement in enumerate(statements, start=1):
        try:
            with spark_errors():
                own_token = _token(statement, token, number, len(statements))
                arguments = Arguments(dict(args) if args else None, statement.text)
                rows = run(spark, statement, arguments, own_token)
                yield Step(
                    number=number, total=len(statements), statement=statement.text, rows=rows
                )
        except GeneratorExit:
            raise
        except Exception as error:
            if len(statements) > 1:
                error.add_note(_statement_note(text, statement.text, number, len(statements)))
            raise


def _token(statement: Statement, token: str | None, number: int, total: int) -> str | None:
    """Return the token of a statement; None for one that changes no table."""
    changes = isinstance(statement, _CHANGES)
    if isinstance(statement, Call):
        changes = takes_token(statement)
    if token is None or not changes:
        return None
    return token if total == 1 else f"{token}/{number}"


def _statement_note(text: str, statement: Slice, number: int, total: int) -> str:
    line = text.count("\n", 0, statement.offset) + 1
    before = "no statement ran before it"
    if number > 1:
        before = f"the {number - 1} before it ran" if number > 2 else "the one before it ran"
    return f"It is statement {number} of {total}, at line {line}; {before}."
