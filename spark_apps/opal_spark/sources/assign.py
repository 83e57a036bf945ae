"""The assignment of a DataFrame's columns to a table's, without loss."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from opal_lake.definition.schema import (
    RESERVED_PREFIX,
    Array,
    Atomic,
    DataType,
    Field,
    Map,
    Struct,
    decimal_parts,
    schema_of_arrow,
    type_name,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_spark.engine.columns import arrow_of_spark, quoted, spark_schema

_WIDER = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "long": (),
    "float": ("double",),
}
# The digits of a decimal that holds all values of a type
_INTEGER_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}


def assigned_columns(
    rows: DataFrame, spec: TableSpec, *, ignore: bool = False
) -> list[Column | str]:
    """Return the columns of rows as the table's columns, in the table's order.

    With `ignore`, columns that the table lacks are left out; otherwise they are an error.
    """
    own = fields_given(rows.schema, spec, ignore=ignore)
    expected = spark_schema(spec, physical=False)
    return [_assigned(given, field) for given, field in zip(own, expected, strict=True)]


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

    It is None for a missing column that was added to the table later. Raises InvalidInputError with
    all columns that are unknown, missing, or would lose values.
    """
    own = _own(schema)
    if ignore:
        left_out = set(unknown_fields(schema, spec).names)
        own = [field for field in own if field.name not in left_out]
    given = {field.name.casefold(): field for field in own}
    expected = {field.name.casefold(): field for field in spec.schema.fields}
    given_schema = schema_of_arrow(arrow_of_spark(StructType(own)))
    types = {field.name.casefold(): field.type for field in given_schema.fields}
    unknown = [field.name for name, field in given.items() if name not in expected]
    missing, losing = [], []
    for name, field in expected.items():
        if name in types:
            loss = misfit(types[name], field.type, field.name)
            if loss is not None:
                losing.append(loss)
        elif not spec.schema.is_added(field):
            missing.append(field.name)
    problems = [f"unknown column {name!r}" for name in unknown]
    problems += [f"missing column {name!r}" for name in missing]
    problems += losing
    if problems:
        step = "select and cast the columns to these"
        if unknown:
            step += ", or ingest unknown ones with on_new_columns='add' or 'ignore'"
        raise InvalidInputError(
            f"the rows do not fit the table: {'; '.join(problems)}. "
            f"The table has {_signature(spec)}; {step}"
        )
    return [given.get(field.name.casefold()) for field in spec.schema.fields]


def _assigned(given: StructField | None, expected: StructField) -> Column | str:
    """Return the column with the expected name and type; null without a given field."""
    if given is None:
        return F.lit(None).cast(expected.dataType).alias(expected.name)
    needs_no_cast = given.dataType == expected.dataType
    if given.name == expected.name and needs_no_cast:
        # The name is enough, and every call on a Column costs a millisecond
        return quoted(given.name)
    column = F.col(quoted(given.name)).cast(expected.dataType)
    return column.alias(expected.name)


def _signature(spec: TableSpec) -> str:
    return ", ".join(f"{field.name!r} {type_name(field.type)}" for field in spec.schema.fields)


def misfit(given: DataType, expected: DataType, name: str) -> str | None:
    """Return the reason why values would be lost; None if none would."""
    match given, expected:
        case Atomic(name=actual), Atomic(name=other) if fits(actual, other):
            return None
        case Array(element=actual), Array(element=other):
            return misfit(actual.type, other.type, f"{name}.element")
        case Map(), Map():
            key_misfit = misfit(given.key.type, expected.key.type, f"{name}.key")
            if key_misfit is not None:
                return key_misfit
            return misfit(given.value.type, expected.value.type, f"{name}.value")
        case Struct(), Struct():
            return _struct_misfit(given.fields, expected.fields, name)
    return f"column {name!r} is {type_name(given)}, the table has {type_name(expected)}"


def _struct_misfit(given: tuple[Field, ...], expected: tuple[Field, ...], name: str) -> str | None:
    names = [field.name for field in given]
    expected_names = [field.name for field in expected]
    # A cast goes by position
    if [name.casefold() for name in names] != [name.casefold() for name in expected_names]:
        return f"column {name!r} has the fields {names}, the table {expected_names}"
    for actual, other in zip(given, expected, strict=True):
        problem = misfit(actual.type, other.type, f"{name}.{other.name}")
        if problem is not None:
            return problem
    return None


def fits(given: str, expected: str) -> bool:
    """Return whether every value of one atomic type is a value of the other."""
    if given == expected or expected in _WIDER.get(given, ()):
        return True
    target = decimal_parts(expected)
    if target is None:
        return False
    precision, scale = target
    integer_digits = precision - scale
    if given in _INTEGER_DIGITS:
        return integer_digits >= _INTEGER_DIGITS[given]
    source = decimal_parts(given)
    if source is None:
        return False
    given_precision, given_scale = source
    return scale >= given_scale and integer_digits >= given_precision - given_scale
