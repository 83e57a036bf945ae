"""A SQL statement from its text to its result: each kind of statement has a function here.

Statements without an Opal table go to Spark as they are.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark.engine.versions import check_session
from opal_spark.spark_sql.arguments import Arguments, Given
from opal_spark.spark_sql.catalog import catalog_of, table_uri
from opal_spark.spark_sql.parse import parse
from opal_spark.spark_sql.statements import Other, Slice, Statement

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
    statement = parse(text)
    return run(spark, statement, Arguments(args, statement.text), token)


def run(spark: SparkSession, statement: Statement, args: Arguments, token: str | None) -> DataFrame:
    """Run a statement that is parsed already."""
    if not _is_on_opal(spark, statement, args):
        return _by_spark(spark, statement.text, args, token)
    runner = RUNNERS.get(type(statement))
    if runner is None:
        raise InvalidInputError(f"{statement.text.text} is not supported on Opal tables")
    return runner(spark, statement, args, token)


def _is_on_opal(spark: SparkSession, statement: Statement, args: Arguments) -> bool:
    """Return whether a statement names an Opal table, or something of a catalog."""
    tables = [reference.table for reference in statement.references]
    if isinstance(statement, Other):
        tables += statement.names
    elif hasattr(statement, "target"):
        tables.append(statement.target.table)
    elif hasattr(statement, "table"):
        tables.append(statement.table)
    if any(table_uri(spark, table, args) is not None for table in tables):
        return True
    others = [getattr(statement, name, None) for name in ("namespace", "procedure")]
    return any(other and catalog_of(spark, other.parts) for other in others)


def _by_spark(spark: SparkSession, text: Slice, args: Arguments, token: str | None) -> DataFrame:
    """Let Spark run a statement without Opal tables."""
    if token is not None:
        raise InvalidInputError(
            f"token={token!r}: the statement changes no Opal table, so that it cannot apply once; "
            "leave out the token"
        )
    return spark.sql(text.text, args.of(text))


RUNNERS: Mapping[type[Statement], Runner] = {}
