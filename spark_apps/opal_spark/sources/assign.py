"""Whether a DataFrame's columns can be assigned to a table's without loss, and how."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, StructField, StructType

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
_INTEGER_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}


def assigned_columns(
    rows: DataFrame, spec: TableSpec, *, ignore: bool = False
) -> list[Column | str]:
    """The table's columns in the table's order; `ignore` leaves unknown ones out."""
    own = fields_given(rows.schema, spec, ignore=ignore)
    logical = spark_schema(spec, physical=False)
    return [_assigned(given, logical[index]) for index, given in enumerate(own)]


def unknown_fields(schema: StructType, spec: TableSpec) -> StructType:
    """Those for which the table has no column."""
    names = {name.casefold() for name in spec.schema.names}
    return StructType(
        [
            field
            for field in schema
            if not field.name.startswith(RESERVED_PREFIX) and field.name.casefold() not in names
        ]
    )


def fields_given(
    schema: StructType, spec: TableSpec, *, ignore: bool = False
) -> list[StructField | None]:
    """Of a schema the fields for the table's columns, in the table's order; an error names all that are unknown, missing, or would lose.

    None where a column that was added to the table is not there.
    """
    left_out = {field.name for field in unknown_fields(schema, spec)} if ignore else set()
    own = [
        field
        for field in schema
        if not field.name.startswith(RESERVED_PREFIX) and field.name not in left_out
    ]
    given = {field.name.casefold(): field for field in own}
    expected = {field.name.casefold(): field for field in spec.schema.fields}
    unknown = [given[name].name for name in given if name not in expected]
    problems = [f"unknown column {name!r}" for name in unknown]
    problems += [
        f"missing column {field.name!r}"
        for name, field in expected.items()
        if name not in given and not spec.schema.is_added(field)
    ]
    source = {
        field.name.casefold(): field
        for field in schema_of_arrow(arrow_of_spark(StructType(own))).fields
    }
    for name, field in expected.items():
        if name in source and (problem := misfit(source[name].type, field.type, field.name)):
            problems.append(problem)
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
    """Only the name if that is enough: every call on a Column costs a millisecond."""
    if given is None:
        return F.lit(None).cast(expected.dataType).alias(expected.name)
    if (
        given.name == expected.name
        and isinstance(given.dataType, AtomicType)
        and given.dataType == expected.dataType
    ):
        return quoted(given.name)
    return F.col(quoted(given.name)).cast(expected.dataType).alias(expected.name)


def _signature(spec: TableSpec) -> str:
    return ", ".join(f"{field.name} {type_name(field.type)}" for field in spec.schema.fields)


def misfit(given: DataType, expected: DataType, name: str) -> str | None:
    """The reason why values would be lost; None if none would."""
    match given, expected:
        case Atomic(name=actual), Atomic(name=other):
            return (
                None
                if fits(actual, other)
                else f"column {name!r} is {type_name(given)}, the table has {type_name(expected)}"
            )
        case Array(element=actual), Array(element=other):
            return misfit(actual.type, other.type, f"{name}.element")
        case Map(), Map():
            return misfit(given.key.type, expected.key.type, f"{name}.key") or misfit(
                given.value.type, expected.value.type, f"{name}.value"
            )
        case Struct(), Struct():
            return _struct_misfit(given.fields, expected.fields, name)
    return f"column {name!r} is {type_name(given)}, the table has {type_name(expected)}"


def _struct_misfit(given: tuple[Field, ...], expected: tuple[Field, ...], name: str) -> str | None:
    if [field.name.casefold() for field in given] != [field.name.casefold() for field in expected]:
        return f"column {name!r} has the fields {[f.name for f in given]}, the table {[f.name for f in expected]}"
    misfits = (
        misfit(actual.type, other.type, f"{name}.{other.name}")
        for actual, other in zip(given, expected, strict=True)
    )
    return next((problem for problem in misfits if problem), None)


def fits(given: str, expected: str) -> bool:
    """Whether every value of one atomic type is a value of the other."""
    if given == expected or expected in _WIDER.get(given, ()):
        return True
    target, source = decimal_parts(expected), decimal_parts(given)
    if target and source:
        return target[1] >= source[1] and target[0] - target[1] >= source[0] - source[1]
    return bool(
        target and given in _INTEGER_DIGITS and target[0] - target[1] >= _INTEGER_DIGITS[given]
    )
