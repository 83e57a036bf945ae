"""The assignment of a DataFrame's columns to a table's, without loss."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import NullType, StructField, StructType

from opal_lake.definition.added_columns import refuse_former
from opal_lake.definition.schema import (
    RESERVED_PREFIX,
    schema_of_arrow,
    type_name,
)
from opal_lake.definition.table_spec import TableSpec, refuse_commit_column
from opal_lake.errors import InvalidInputError
from opal_spark.engine.columns import arrow_of_spark, quoted, spark_schema, write_default
from opal_spark.engine.conditions import generated_value
from opal_spark.engine.stored_values import misfit


def whole_rows(rows: DataFrame, spec: TableSpec) -> DataFrame:
    """Return rows of a source as rows of the table, with generated columns."""
    refuse_commit_column(spec, rows.columns)
    complete = rows.select(*assigned_columns(rows, spec))
    values = {column.field.name: generated_value(column) for column in spec.generated}
    if not values:
        return complete
    columns = [values.get(name, F.col(quoted(name))).alias(name) for name in complete.columns]
    return complete.select(*columns)


def assigned_columns(
    rows: DataFrame, spec: TableSpec, *, ignore: bool = False
) -> list[Column | str]:
    """Return the columns of rows as the table's columns, in the table's order.

    With `ignore`, columns that the table lacks are left out; otherwise they are an error.
    """
    own = fields_given(rows.schema, spec, ignore=ignore)
    expected = spark_schema(spec, physical=False)
    columns: list[Column | str] = []
    for given, field in zip(own, expected, strict=True):
        if given is None:
            columns.append(write_default(spec, field.name).alias(field.name))
        else:
            columns.append(_assigned(given, field))
    return columns


def unknown_fields(schema: StructType, spec: TableSpec) -> StructType:
    """Return the fields for which the table has no column."""
    names = {name.casefold() for name in spec.schema.names}
    return StructType([field for field in _own(schema) if field.name.casefold() not in names])


def _own(schema: StructType) -> list[StructField]:
    """Return the fields of the source itself, without those that a reader added."""
    return [field for field in schema if not field.name.startswith(RESERVED_PREFIX)]


def fields_given(
    schema: StructType, spec: TableSpec, *, ignore: bool = False
) -> list[StructField | None]:
    """Return the field of a schema for each column of the table, in the table's order.

    It is None for a missing column that has a default, or was added to the table later. Raises
    InvalidInputError with all columns that are unknown, missing, or would lose values.
    """
    own = _own(schema)
    if ignore:
        left_out = set(unknown_fields(schema, spec).names)
        refuse_former(spec.schema, sorted(left_out), dropped=False)
        own = [field for field in own if field.name not in left_out]
    given = {field.name.casefold(): field for field in own}
    expected = {field.name.casefold(): field for field in spec.schema.fields}
    # Nulls without a type fit every column
    typed = [field for field in own if not isinstance(field.dataType, NullType)]
    given_schema = schema_of_arrow(arrow_of_spark(StructType(typed)))
    types = {field.name.casefold(): field.type for field in given_schema.fields}
    unknown = [field.name for name, field in given.items() if name not in expected]
    missing, losing = [], []
    for name, field in expected.items():
        if name in types:
            loss = misfit(types[name], field.type, field.name)
            if loss is not None:
                losing.append(loss)
        elif name not in given and not spec.schema.is_optional(field):
            missing.append(field.name)
    problems = [f"unknown column {name!r}" for name in unknown]
    problems += [f"missing column {name!r}" for name in missing]
    problems += losing
    if problems:
        refuse_former(spec.schema, unknown)
        step = "select and cast the columns to these"
        if unknown:
            step += ", or ingest unknown ones with on_new_columns='add' or 'ignore'"
        raise InvalidInputError(
            f"the rows do not fit the table: {'; '.join(problems)}. "
            f"The table has {_signature(spec)}; {step}"
        )
    return [given.get(field.name.casefold()) for field in spec.schema.fields]


def _assigned(given: StructField, expected: StructField) -> Column | str:
    """Return the column with the expected name and type."""
    needs_no_cast = given.dataType == expected.dataType
    if given.name == expected.name and needs_no_cast:
        # The name is enough, and every call on a Column costs a millisecond
        return quoted(given.name)
    column = F.col(quoted(given.name)).cast(expected.dataType)
    return column.alias(expected.name)


def _signature(spec: TableSpec) -> str:
    return ", ".join(f"{field.name!r} {type_name(field.type)}" for field in spec.schema.fields)
