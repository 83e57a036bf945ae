"""A SQL statement from its text to its result: each kind of statement has a function here.

Statements without an Opal table go to Spark as they are.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.sql.names import OPAL
from opal_lake.sql.parse import parse
from opal_lake.sql.statements import (
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
from opal_spark.engine.versions import check_session
from opal_spark.spark_sql.arguments import Arguments, Given
from opal_spark.spark_sql.catalog import catalog_of, table_uri
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
    return run(spark, statement, Arguments(args, statement.text), token)


def run(spark: SparkSession, statement: Statement, args: Arguments, token: str | None) -> DataFrame:
    """Run a statement that is parsed already."""
    changes_opal = is_on_opal(spark, statement, args)
    references = [reference.table for reference in statement.references]
    if not changes_opal and not _any_opal(spark, references, args):
        return _by_spark(spark, statement, args, token)
    _check_settings(spark, statement.text.text)
    runner = RUNNERS.get(type(statement))
    if isinstance(statement, Query):
        return run_query(spark, statement, args, token)
    if not changes_opal:
        _check_readable(statement)
        return _by_spark(spark, statement, args, token)
    if runner is None:
        raise _unsupported(statement)
    return runner(spark, statement, args, token)


def is_on_opal(spark: SparkSession, statement: Statement, args: Arguments) -> bool:
    """Return whether a statement changes or describes something of Opal."""
    tables: list[TableName] = []
    if isinstance(statement, Other):
        read = {reference.slice.offset for reference in statement.references}
        tables += [name for name in statement.names if name.slice.offset not in read]
    elif hasattr(statement, "target"):
        tables.append(statement.target.table)
    elif hasattr(statement, "table"):
        tables.append(statement.table)
    if isinstance(statement, CreateTable) and (statement.provider or "").lower() == OPAL:
        return True
    if _any_opal(spark, tables, args):
        return True
    others = [getattr(statement, name, None) for name in ("namespace", "procedure")]
    return any(other and catalog_of(spark, other.parts) for other in others)


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


def _check_readable(statement: Statement) -> None:
    """Raise InvalidInputError if Spark would keep the text of a query on Opal tables."""
    if not isinstance(statement, Other):
        return
    if not statement.text.text.lstrip("( \n\t").upper().startswith(("EXPLAIN", "DESC")):
        raise _unsupported(statement)


def _unsupported(statement: Statement) -> InvalidInputError:
    hint = getattr(statement, "hint", None) or _VIEW_HINT
    text = " ".join(statement.text.text.split())
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}..."
    return InvalidInputError(f"{text} is not supported on Opal tables; {hint}")


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
_VIEW_HINT = (
    "for a view, write opal_spark.sql(spark, 'SELECT ...').createOrReplaceTempView('name'), which "
    "reads the version of now"
)
_READ_DIFFERENTLY = {
    "spark.sql.ansi.doubleQuotedIdentifiers": ['"'],
    "spark.sql.parser.escapedStringLiterals": ["\\"],
    "spark.sql.legacy.consecutiveStringLiterals.enabled": ["''", '""'],
}
