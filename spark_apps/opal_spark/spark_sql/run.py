"""A SQL statement from its text to its result: each kind of statement has a function here.

Statements without an Opal table go to Spark as they are.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.sql.lexer import STRING, string_value, tokens
from opal_lake.sql.names import OPAL
from opal_lake.sql.parse import parse
from opal_lake.sql.statements import (
    Call,
    CreateTable,
    Delete,
    InsertInto,
    InsertOverwrite,
    InsertReplaceWhere,
    Merge,
    Other,
    Query,
    Statement,
    TableName,
    Update,
)
from opal_spark.engine.session import syntax_fault
from opal_spark.engine.versions import check_session
from opal_spark.spark_sql.arguments import Arguments, Given
from opal_spark.spark_sql.catalog import catalog_of, refuse_unknown_catalog, table_uri
from opal_spark.spark_sql.reads import Reads
from opal_spark.spark_sql.run_rows import (
    run_delete,
    run_insert,
    run_merge,
    run_overwrite,
    run_query,
    run_replace_where,
    run_update,
)
from opal_spark.spark_sql.syntax import check_syntax
from opal_spark.spark_sql.tables import TABLE_RUNNERS

# What runs a statement that names an Opal table
Runner = Callable[[SparkSession, Any, Arguments, str | None], DataFrame]


def sql(spark: SparkSession, text: str, args: Given = None, token: str | None = None) -> DataFrame:
    """Run a SQL statement on Opal tables, views and tables of Spark.

    A query reads the newest versions of now, when its result is used. A statement that changes a
    table has run when this returns; its result counts the rows. With a `token` it applies once,
    however often it is called. `args` are the values of parameters: a dict for `:name`, or a list
    for `?`.
    """
    check_session(spark)
    try:
        statement = parse(text)
    except InvalidInputError:
        if _may_name_opal(spark, text):
            _check_settings(spark, text)
            raise
        # Spark may know more of its own language
        return spark.sql(text, args)
    return run(spark, statement, Arguments(args, statement.text), token, text)


def run(
    spark: SparkSession, statement: Statement, args: Arguments, token: str | None, whole: str
) -> DataFrame:
    """Run a statement of the text `whole` that is parsed already."""
    try:
        return _run(spark, statement, args, token)
    except ParseException:
        changes_opal = is_on_opal(spark, statement, args)
        if changes_opal or _reads_opal(spark, statement, args):
            # Spark's error shows a text in which tables have other names
            check_syntax(spark, statement, whole, is_on_opal=changes_opal)
        raise


def _run(
    spark: SparkSession, statement: Statement, args: Arguments, token: str | None
) -> DataFrame:
    check_runnable(spark, statement, args)
    changes_opal = is_on_opal(spark, statement, args)
    if not changes_opal and not _reads_opal(spark, statement, args):
        return _by_spark(spark, statement, args, token)
    _check_settings(spark, statement.text.text)
    if isinstance(statement, Query):
        return run_query(spark, statement, args, token)
    if not changes_opal:
        return _by_spark(spark, statement, args, token)
    return RUNNERS[type(statement)](spark, statement, args, token)


def check_runnable(spark: SparkSession, statement: Statement, args: Arguments) -> None:
    """Raise InvalidInputError for a statement that nothing can run; read no table."""
    _refuse_unknown_catalogs(spark, statement)
    _refuse_table_changes(spark, statement)
    if isinstance(statement, Query):
        return
    if is_on_opal(spark, statement, args):
        if type(statement) not in RUNNERS:
            raise _unsupported(spark, statement)
    elif _reads_opal(spark, statement, args) and _keeps_its_query(statement):
        raise _unsupported(spark, statement)


def _reads_opal(spark: SparkSession, statement: Statement, args: Arguments) -> bool:
    return _any_opal(spark, [reference.table for reference in statement.references], args)


def _refuse_unknown_catalogs(spark: SparkSession, statement: Statement) -> None:
    """Raise InvalidInputError for a name in an unknown catalog.

    Spark would read the first part as a database.
    """
    names = [reference.table for reference in statement.references]
    if not isinstance(statement, Other):
        # A name in another statement may be one of a setting or a column
        names += _tables_of(statement)
    for name in names:
        refuse_unknown_catalog(spark, name, parts_of_spark=2)
    if isinstance(statement, Call):
        refuse_unknown_catalog(spark, statement.procedure, parts_of_spark=2)
    namespace = getattr(statement, "namespace", None)
    if namespace is not None:
        refuse_unknown_catalog(spark, namespace, parts_of_spark=1)


def is_on_opal(spark: SparkSession, statement: Statement, args: Arguments) -> bool:
    """Return whether a statement changes or describes something of Opal."""
    if isinstance(statement, CreateTable) and (statement.provider or "").lower() == OPAL:
        return True
    if _any_opal(spark, _tables_of(statement), args):
        return True
    others = [getattr(statement, name, None) for name in ("namespace", "procedure")]
    return any(other and catalog_of(spark, other.parts) for other in others)


def _refuse_table_changes(spark: SparkSession, statement: Statement) -> None:
    """Raise InvalidInputError for Delta's function of changes on an Opal table."""
    text = statement.text.text
    if "table_changes" not in text.lower():
        return
    all_tokens = tokens(text, join_rows=True)
    for function, bracket, argument in zip(
        all_tokens, all_tokens[1:], all_tokens[2:], strict=False
    ):
        is_call = function.value == "TABLE_CHANGES" and bracket.value == "("
        if is_call and argument.kind == STRING:
            name = string_value(text, argument)
            if catalog_of(spark, tuple(name.split("."))) is not None:
                raise InvalidInputError(
                    f"table_changes is not a function of Opal tables; write {name} CHANGES FROM "
                    "VERSION 1 TO VERSION 2, in which both bounds are inclusive"
                )


def _tables_of(statement: Statement) -> list[TableName]:
    """Return the tables that a statement changes or describes."""
    if isinstance(statement, Other):
        read = {reference.slice.offset for reference in statement.references}
        return [name for name in statement.names if name.slice.offset not in read]
    if hasattr(statement, "target"):
        return [statement.target.table]
    return [statement.table] if hasattr(statement, "table") else []


def _any_opal(spark: SparkSession, names: Iterable[TableName], args: Arguments) -> bool:
    return any(table_uri(spark, name, args) is not None for name in names)


def _by_spark(
    spark: SparkSession, statement: Statement, args: Arguments, token: str | None
) -> DataFrame:
    """Let Spark run a statement; it may read Opal tables, but changes none."""
    if token is not None:
        raise InvalidInputError(
            f"token={token!r}: the statement changes no Opal table, so that it cannot apply once; "
            "leave out the token"
        )
    return Reads(spark, statement, args).piece(statement.text).rows(spark)


def _keeps_its_query(statement: Statement) -> bool:
    """Return whether Spark would keep the text of a query, as a view does.

    It cannot read that text later, in which Opal tables have other names.
    """
    if not isinstance(statement, Other):
        return False
    first_words = " ".join(statement.text.text.lstrip("( \n\t").upper().split()[:4])
    return not first_words.startswith(_READ_ONCE)


def _unsupported(spark: SparkSession, statement: Statement) -> InvalidInputError:
    hint = getattr(statement, "hint", None)
    text = statement.text
    if hint is None:
        # A word that has no hint may be a slip
        fault = syntax_fault(spark, text.text, is_known=False)
        if fault is not None:
            return InvalidInputError(
                f"SQL, line {fault.line}, column {fault.column + 1}: {fault.message}"
            )
    shown = " ".join(text.text.split())
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return InvalidInputError(f"{shown} is not supported on Opal tables; {hint or _SUPPORTED}")


def _may_name_opal(spark: SparkSession, text: str) -> bool:
    """Return whether a text that cannot be read may have the name of an Opal table."""
    firsts = {match[1].lower() for match in _FIRST_PART.finditer(text)}
    return OPAL in firsts or any(catalog_of(spark, (first,)) for first in firsts)


def _check_settings(spark: SparkSession, text: str) -> None:
    """Raise InvalidInputError for settings by which Spark reads another text."""
    for name, marks in _READ_DIFFERENTLY.items():
        if spark.conf.get(name, "false") == "true" and any(mark in text for mark in marks):
            raise InvalidInputError(
                f"{name} is true, so that Spark reads {' or '.join(marks)} in the statement in "
                f"another way than opal_spark.sql; run spark.conf.set({name!r}, False) first"
            )


RUNNERS: Mapping[type[Statement], Runner] = {
    **TABLE_RUNNERS,
    Delete: run_delete,
    InsertInto: run_insert,
    InsertOverwrite: run_overwrite,
    InsertReplaceWhere: run_replace_where,
    Merge: run_merge,
    Update: run_update,
}
_FIRST_PART = re.compile(r"(\w+)`?\s*\.")
_SHOWN = 60  # characters of a statement that an error shows
# Statements that read the tables of their query once
_READ_ONCE = (
    "EXPLAIN",
    "DESC",
    "CREATE TABLE",
    "INSERT OVERWRITE DIRECTORY",
    "INSERT OVERWRITE LOCAL DIRECTORY",
)
_SUPPORTED = "the page SQL of the reference lists the statements that are"
_READ_DIFFERENTLY = {
    "spark.sql.ansi.doubleQuotedIdentifiers": ['"'],
    "spark.sql.parser.escapedStringLiterals": ["\\"],
    "spark.sql.legacy.consecutiveStringLiterals.enabled": ["''", '""'],
}
