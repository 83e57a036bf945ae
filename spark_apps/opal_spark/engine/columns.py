"""Columns as Spark sees them: schemas, and the expressions that turn a data file's columns into the table's.

Everything is a native expression over plain physical names, so that Spark prunes, pushes down and generates code, on Connect as well.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.definition.schema import (
    DELETED,
    OFFSET,
    SEGMENT,
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

_SPARK_OF: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "byte": T.ByteType(),
    "short": T.ShortType(),
    "integer": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
}
_ORC_STORAGE: dict[str, T.DataType] = {
    "timestamp": T.LongType(),
    "timestamp_ntz": T.LongType(),
    "date": T.IntegerType(),
}
_FLOATS = ("float", "double")
_ARROW_OF: dict[type[T.DataType], pa.DataType] = {
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.CharType: pa.string(),
    T.VarcharType: pa.string(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", tz="UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
}
_ADVICE: dict[type[T.DataType], str] = {
    T.NullType: "cast it to the type that its values will have",
    T.DayTimeIntervalType: "cast it to BIGINT microseconds or to STRING",
    T.YearMonthIntervalType: "cast it to INT months or to STRING",
    T.CalendarIntervalType: "cast it to STRING",
    T.VariantType: "turn it into STRING with to_json, or cast it to the struct that it holds",
    T.TimeType: "cast it to STRING",
    T.UserDefinedType: "select the columns of its SQL type",
}


def quoted(name: str) -> str:
    """A column name as Spark's parser takes it, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"


def spark_schema(spec: TableSpec, physical: bool) -> T.StructType:
    """The table's columns, or those of its data files with the row ids; everything nullable."""
    if not physical:
        return _struct_type(spec.schema.fields, physical=False, orc=False)
    schema = _struct_type(spec.schema.fields, physical=True, orc=spec.file_format == "orc")
    schema = schema.add(SEGMENT, T.LongType()).add(OFFSET, T.IntegerType())
    return schema.add(DELETED, T.BooleanType()) if spec.deletes is not None else schema


def _struct_type(fields: Sequence[Field], *, physical: bool, orc: bool) -> T.StructType:
    return T.StructType(
        [
            T.StructField(
                field.physical if physical else field.name,
                _spark_type(field.type, physical=physical, orc=orc),
            )
            for field in fields
        ]
    )


def _spark_type(kind: DataType, *, physical: bool, orc: bool) -> T.DataType:
    match kind:
        case Atomic(name=name):
            parts = decimal_parts(name)
            return (
                T.DecimalType(*parts)
                if parts
                else _ORC_STORAGE[name]
                if orc and name in _ORC_STORAGE
                else _SPARK_OF[name]
            )
        case Struct(fields=fields):
            return _struct_type(fields, physical=physical, orc=orc)
        case Array(element=element):
            return T.ArrayType(_spark_type(element.type, physical=physical, orc=orc))
        case Map(key=key, value=value):
            return T.MapType(
                _spark_type(key.type, physical=physical, orc=orc),
                _spark_type(value.type, physical=physical, orc=orc),
            )


def arrow_of_spark(schema: T.StructType) -> pa.Schema:
    """Return a DataFrame's schema in Arrow, for a table's specification."""
    if not isinstance(schema, T.StructType):
        raise InvalidInputError(
            f"the schema {schema!r} is no StructType; write StructType.fromDDL('id BIGINT, ...')"
        )
    return pa.schema(
        [_arrow_field(field.name, field.name, field.dataType) for field in schema.fields]
    )


def columns_of_schema(schema: T.StructType) -> pa.Schema:
    """Return the columns of a schema that a user writes, with types that a table keeps as they are.

    `arrow_of_spark` is for schemas of sources, whose CHAR and VARCHAR become texts of any length.
    """
    columns = arrow_of_spark(schema)
    pending = [(field.name, field.dataType) for field in schema.fields]
    while pending:
        path, kind = pending.pop()
        if isinstance(kind, T.CharType | T.VarcharType):
            raise InvalidInputError(
                f"column {path!r}: {kind.simpleString().upper()} is not a type of a table, whose "
                "texts have no length; write STRING, and check lengths before the ingest"
            )
        pending += [(f"{path}.{name}", part) for name, part in _parts_of_spark(kind)]
    return columns


def _parts_of_spark(kind: T.DataType) -> list[tuple[str, T.DataType]]:
    match kind:
        case T.StructType():
            return [(field.name, field.dataType) for field in kind.fields]
        case T.ArrayType():
            return [("element", kind.elementType)]
        case T.MapType():
            return [("key", kind.keyType), ("value", kind.valueType)]
    return []


def spark_of_arrow(schema: pa.Schema) -> T.StructType:
    """Return the columns of a table's schema as Spark has them."""
    return _struct_type(schema_of_arrow(schema).fields, physical=False, orc=False)


def _arrow_field(name: str, path: str, kind: T.DataType) -> pa.Field:
    return pa.field(name, _arrow_type(path, kind))


def _arrow_type(path: str, kind: T.DataType) -> pa.DataType:
    match kind:
        case T.StructType():
            return pa.struct(
                [
                    _arrow_field(member.name, f"{path}.{member.name}", member.dataType)
                    for member in kind.fields
                ]
            )
        case T.ArrayType():
            return pa.list_(_arrow_field("element", f"{path}.element", kind.elementType))
        case T.MapType():
            return pa.map_(
                _arrow_type(f"{path}.key", kind.keyType),
                _arrow_type(f"{path}.value", kind.valueType),
            )
        case T.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case T.StringType() if kind.isUTF8BinaryCollation():
            return pa.string()
        case T.StringType():
            raise InvalidInputError(
                f"column {path!r} has the collation {kind.collation}, and tables compare texts byte by byte; cast it to "
                "STRING COLLATE UTF8_BINARY"
            )
    if type(kind) in _ARROW_OF:
        return _ARROW_OF[type(kind)]
    advice = next(
        (text for refused, text in _ADVICE.items() if isinstance(kind, refused)),
        "cast it to STRING or BINARY",
    )
    raise InvalidInputError(
        f"column {path!r}: type {kind.simpleString().upper()} is not supported in a table; {advice}"
    )


def spark_type_name(kind: T.DataType) -> str:
    """Return a type of Spark as a schema has it; one that no table has as Spark writes it."""
    try:
        return type_name(_arrow_type("", kind))
    except InvalidInputError:
        return kind.simpleString()


def read_columns(spec: TableSpec, columns: Sequence[str] | None = None) -> list[Column | str]:
    """For each named column (default: all) the expression over a data file's columns that gives the table's, names and types."""
    fields = (
        spec.schema.fields if columns is None else [spec.schema.field(name) for name in columns]
    )
    return read_fields(fields, spec)


def read_fields(fields: Sequence[Field], spec: TableSpec) -> list[Column | str]:
    """The same for fields of any names."""
    return [_read_column(field, orc=spec.file_format == "orc") for field in fields]


def _read_column(field: Field, *, orc: bool) -> Column | str:
    stored_otherwise, renamed_within = (
        _loads_otherwise(field.type, orc=orc),
        _has_renamed(field.type),
    )
    if not stored_otherwise and not renamed_within and field.name == field.physical:
        return quoted(field.name)  # a name costs a third of the calls that an expression costs
    column = F.col(field.physical)
    if stored_otherwise:
        column = _load(column, field.type, orc=orc)
    if renamed_within:  # a cast goes by position, renames at any depth, and keeps nulls null
        column = column.cast(_spark_type(field.type, physical=False, orc=False))
    return column.alias(field.name)


def _parts(kind: DataType) -> Sequence[Field]:
    match kind:
        case Struct(fields=fields):
            return fields
        case Array(element=element):
            return [element]
        case Map(key=key, value=value):
            return [key, value]
        case Atomic():
            return []


def _has_orc_storage(kind: DataType) -> bool:
    return any(_has_orc_storage(part.type) for part in _parts(kind)) or (
        isinstance(kind, Atomic) and kind.name in _ORC_STORAGE
    )


def _loads_otherwise(kind: DataType, *, orc: bool) -> bool:
    """Also floats that Spark would look for in extremes and dictionaries of files, where -0.0 is not 0.0: it would skip equal ones."""
    if isinstance(kind, Struct):
        return any(_loads_otherwise(member.type, orc=orc) for member in kind.fields)
    return (orc and _has_orc_storage(kind)) or (isinstance(kind, Atomic) and kind.name in _FLOATS)


def _has_renamed(kind: DataType) -> bool:
    return any(part.name != part.physical or _has_renamed(part.type) for part in _parts(kind))


def _load(column: Column, kind: DataType, *, orc: bool) -> Column:
    if not _loads_otherwise(kind, orc=orc):
        return column
    match kind:
        case Struct(fields=fields):
            members = [
                _load(column.getField(field.physical), field.type, orc=orc).alias(field.physical)
                for field in fields
            ]
            return F.when(column.isNotNull(), F.struct(*members))
        case Array(element=element):
            return F.transform(column, lambda item: _load(item, element.type, orc=orc))
        case Map(key=key, value=value):
            column = (
                F.transform_keys(column, lambda item, _: _load(item, key.type, orc=orc))
                if _has_orc_storage(key.type)
                else column
            )
            return (
                F.transform_values(column, lambda _, item: _load(item, value.type, orc=orc))
                if _has_orc_storage(value.type)
                else column
            )
        case Atomic(name="float" | "double"):
            return F.nanvl(
                column, column
            )  # the same value, by an expression that goes into no file's filter
        case Atomic(name="timestamp"):
            return F.timestamp_micros(column)
        case Atomic(name="timestamp_ntz"):
            # A cast from TIMESTAMP goes by the session's zone; adding to a wall-clock time is plain arithmetic.
            return F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'") + column * F.expr(
                "INTERVAL '0.000001' SECOND"
            )
        case Atomic():
            return F.date_from_unix_date(column)
