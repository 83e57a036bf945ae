"""Values as columns of a table store them: which types fit, and SQL's store assignment."""

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.definition.schema import (
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
from opal_lake.errors import InvalidInputError
from opal_spark.engine.columns import arrow_of_spark, spark_field_type, spark_type_name
from opal_spark.engine.failures import UNSTORABLE

_WIDER = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "long": (),
    "float": ("double",),
}
# The digits of a decimal that holds all values of a type
_INTEGER_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)


def stored_value(value: Column, given: T.DataType, field: Field, where: str) -> Column:
    """Return a value in the type of a column, by SQL's store assignment.

    `given` is the value's type, and `where` names the value in errors. Numbers convert to numbers,
    times to times, and most values to texts. A number that the column cannot hold is an error in
    the row, whatever the session's ANSI mode, and so is a fraction in a column of integers. Only a
    floating-point number is rounded, to the nearest number of the column's type. Raises
    InvalidInputError for other types.
    """
    expected = spark_field_type(field)
    if given == expected or isinstance(given, T.NullType):
        return value.cast(expected)
    if isinstance(given, T.StringType) and isinstance(expected, T.StringType):
        return value.cast(expected)
    known = arrow_of_spark(T.StructType([T.StructField(field.name, given)]))
    if misfit(schema_of_arrow(known).fields[0].type, field.type, field.name) is None:
        return value.cast(expected)
    if not _is_assignable(given, expected):
        raise InvalidInputError(
            f"{where} is {spark_type_name(given)}, and column {field.name!r} is "
            f"{type_name(field.type)}; cast the value to that type"
        )

    def checked(original: Column) -> Column:
        converted = original.try_cast(expected)
        text = F.concat(
            F.lit(f"{where} is "),
            original.cast("string"),
            F.lit(f" in some row, and column {field.name!r} of type {type_name(field.type)} "),
            F.lit(UNSTORABLE),
        )
        is_lost = original.isNotNull() & converted.isNull()
        if _may_cut_digits(given, expected):
            is_lost |= converted.try_cast(given) != original
        if isinstance(given, T.DoubleType) and isinstance(expected, T.FloatType):
            # A CAST of 1e300 gives infinity
            infinity = F.lit(float("inf"))
            is_lost |= (F.abs(converted) == infinity) & (F.abs(original) < infinity)
        return F.when(is_lost, F.raise_error(text).cast(expected)).otherwise(converted)

    # Within the array a value is computed once, even if it is random
    return F.get(F.transform(F.array(value), checked), F.lit(0))


def _may_cut_digits(given: T.DataType, expected: T.DataType) -> bool:
    """Return whether a CAST from number to number may cut digits off a fraction."""
    is_decimal = isinstance(given, T.DecimalType)
    if isinstance(expected, T.IntegralType):
        return is_decimal or isinstance(given, T.FractionalType)
    return is_decimal and isinstance(expected, T.DecimalType)


def _is_assignable(given: T.DataType, expected: T.DataType) -> bool:
    if isinstance(given, T.NumericType) and isinstance(expected, T.NumericType):
        return True
    if isinstance(given, _TIMES) and isinstance(expected, _TIMES):
        return True
    is_shown = isinstance(given, T.NumericType | T.BooleanType | T.DateType | T.TimestampType)
    is_shown |= isinstance(given, T.TimestampNTZType)
    return isinstance(expected, T.StringType) and is_shown


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
