"""CALL: the verbs of a table, each with the arguments that its operation declares."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Operation, operations_of
from opal_lake.result import JobResult
from opal_lake.sql.names import name_parts
from opal_lake.sql.statements import Argument, Call, Slice, TableName
from opal_spark.engine.columns import spark_of_arrow
from opal_spark.engine.session import rows_from_arrow
from opal_spark.spark_sql.arguments import Arguments
from opal_spark.spark_sql.catalog import catalog_of, table_uri
from opal_spark.spark_sql.results import job_frame, value_frame
from opal_spark.table import OpalTable

SYSTEM = "system"
_TABLE = "table"
# The statements to write instead of verbs that take rows
_STATEMENTS = {
    "ingest": "INSERT INTO t query, or call ingest in Python",
    "insert": "MERGE INTO t USING source ON keys WHEN NOT MATCHED THEN INSERT *",
    "merge": "MERGE INTO t USING source ON condition WHEN ..",
    "overwrite": "INSERT OVERWRITE t query",
    "upsert": "INSERT INTO t query",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def call(spark: SparkSession, statement: Call, args: Arguments, token: str | None) -> DataFrame:
    """Run a verb of a table: `CALL lake.system.compact(table => 'shop.orders')`."""
    operation = _operation(statement.procedure)
    if statement.references:
        raise InvalidInputError(
            f"an argument of CALL {statement.procedure} reads a table; pass the value as a "
            "parameter"
        )
    given = _named(operation, statement, _values(spark, statement.arguments, args))
    name = given.pop(_TABLE, None)
    if not isinstance(name, str):
        raise InvalidInputError(
            f"CALL {statement.procedure} needs a table; write table => 'shop.orders'"
        )
    table = OpalTable.for_path(spark, _table_uri(spark, statement.procedure, name, args))
    _add_token(operation, given, token)
    result = operation.of(given).run(table)
    if isinstance(result, JobResult):
        return job_frame(spark, result)
    if isinstance(result, pa.Table):
        return rows_from_arrow(spark, result, spark_of_arrow(result.schema))
    if isinstance(result, Iterator):
        raise InvalidInputError(
            f"{operation.title} returns objects of Python; write DESCRIBE HISTORY for the commits "
            "as rows"
        )
    is_frame = hasattr(result, "toArrow")
    return result if is_frame else value_frame(spark, result)


def _operation(procedure: TableName) -> type[Operation[Any]]:
    parts = procedure.parts
    verbs = operations_of(OpalTable)
    if len(parts) != 3 or parts[1].lower() != SYSTEM:
        raise InvalidInputError(
            f"{procedure} is not a procedure; write a verb of a table such as "
            f"{parts[0]}.{SYSTEM}.compact"
        )
    name = parts[2].lower()
    if name in _STATEMENTS:
        raise InvalidInputError(
            f"{procedure} is not a procedure, as {name} takes rows; write the statement "
            f"{_STATEMENTS[name]}"
        )
    if name not in verbs:
        raise InvalidInputError(
            f"{procedure} is not a procedure; the procedures of {parts[0]}.{SYSTEM} are "
            f"{', '.join(sorted(verbs.keys() - _STATEMENTS.keys()))}"
        )
    return verbs[name]


def _named(
    operation: type[Operation[Any]], statement: Call, values: Sequence[Any]
) -> dict[str, Any]:
    """Return the values by the names of their arguments; unnamed ones come first.

    What Python takes by name alone has a name here as well.
    """
    names = [_TABLE, *operation.fields()]
    by_position = [_TABLE, *operation.position_names()]
    given: dict[str, Any] = {}
    has_named = False
    for position, (argument, value) in enumerate(zip(statement.arguments, values, strict=True)):
        name = argument.name.lower() if argument.name is not None else None
        if name is None and has_named:
            raise InvalidInputError(
                f"argument {position + 1} of CALL {statement.procedure} has no name, but one "
                "before it has; name it as well"
            )
        if name is None and position >= len(by_position):
            raise _needs_name(statement, by_position, names)
        has_named = name is not None
        name = name or by_position[position]
        if name not in names:
            raise InvalidInputError(
                f"CALL {statement.procedure} has no argument {name}; its arguments are "
                f"{', '.join(names)}"
            )
        if name in given:
            raise InvalidInputError(f"CALL {statement.procedure} has {name} twice; give it once")
        if name == "where" and value is None:
            # As a condition NULL is met by no row, and as an argument it stands for all rows
            raise InvalidInputError(
                f"CALL {statement.procedure}: where is NULL; leave it out for all rows"
            )
        given[name] = value
    return given


def _needs_name(
    statement: Call, by_position: Sequence[str], names: Sequence[str]
) -> InvalidInputError:
    """Return the error for more values without a name than CALL takes."""
    nameless = [argument.value for argument in statement.arguments if argument.name is None]
    others = [name for name in names if name not in by_position]
    surplus = nameless[len(by_position)]
    message = (
        f"CALL {statement.procedure} takes {', '.join(by_position)} without a name, and has "
        f"{surplus} after them"
    )
    if not others:
        return InvalidInputError(f"{message}; leave it out")
    return InvalidInputError(f"{message}; write name => {surplus}, with one of {', '.join(others)}")


def _add_token(operation: type[Operation[Any]], given: dict[str, Any], token: str | None) -> None:
    if token is None:
        return
    argument = operation.token_argument
    if not argument:
        raise InvalidInputError(f"token={token!r}: {operation.title} takes no token; leave it out")
    if given.get(argument) not in (None, token):
        raise InvalidInputError(
            f"CALL has {argument} => {given[argument]!r}, and the statement the token {token!r}; "
            "give one of them"
        )
    given[argument] = token


def _table_uri(spark: SparkSession, procedure: TableName, text: str, args: Arguments) -> str:
    """Return the path of a table; a short name is one of the procedure's catalog."""
    parts = name_parts(text)
    whole = TableName(parts=parts, slice=Slice(text=text, offset=0))
    uri = table_uri(spark, whole, args)
    if uri is not None:
        return uri
    catalog = catalog_of(spark, procedure.parts)
    assert catalog is not None
    return catalog.uri(parts)


# Values


def _values(spark: SparkSession, arguments: Sequence[Argument], args: Arguments) -> list[Any]:
    """Return the values of the arguments, as Spark computes them."""
    values = []
    for argument in arguments:
        query = f"SELECT ({argument.value.text}\n) AS value"
        rows = spark.sql(query, args.of(argument.value))
        is_moment = isinstance(rows.schema["value"].dataType, T.TimestampType)
        if is_moment:
            # A collected time would depend on the time zone of this process
            rows = rows.select(F.unix_micros("value").alias("value"))
        row = rows.head()
        assert row is not None
        value = row[0]
        if is_moment and value is not None:
            value = _EPOCH + timedelta(microseconds=value)
        values.append(_plain(value))
    return values


def _plain(value: Any) -> Any:
    """Return a value of Spark as operations take it."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Row):
        return _plain(value.asDict())
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(_without_nulls(member)) for member in value]
    return value


def _without_nulls(value: Any) -> Any:
    """Return an element of an array; a null member of a struct is left out.

    All structs of an array have the same members.
    """
    if not isinstance(value, Row):
        return value
    return {name: member for name, member in value.asDict().items() if member is not None}
