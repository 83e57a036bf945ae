"""Columns as Spark sees them: schemas, and expressions from a data file's columns to the table's.

All expressions are native ones over plain physical names, so Spark can prune columns, push filters
down and generate code, on Connect as well.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.definition.default_values import DefaultValue
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
from opal_lake.definition.sql_types import refuse_lengths
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_spark.engine.failures import spark_errors

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
    """Quote a column name for Spark's parser."""
    return "`" + name.replace("`", "``") + "`"


def columns_named(names: Iterable[str]) -> list[Column]:
    """Return the columns with these names, which may hold any characters."""
    return [F.col(quoted(name)) for name in names]


def spark_schema(spec: TableSpec, physical: bool) -> T.StructType:
    """Return the schema of a table, or with `physical` the schema of its data files.

    The schema of the data files also has the row ids. All columns are nullable.
    """
    if not physical:
        return _struct_type(spec.schema.fields, physical=False, orc=False)
    schema = _struct_type(spec.schema.fields, physical=True, orc=spec.file_format == "orc")
    schema.add(SEGMENT, T.LongType())
    schema.add(OFFSET, T.IntegerType())
    if spec.deletes is not None:
        schema.add(DELETED, T.BooleanType())
    return schema


def spark_field_type(field: Field) -> T.DataType:
    """Return the type that a column of the table has in DataFrames."""
    return _spark_type(field.type, physical=False, orc=False)


def default_column(field: Field, value: DefaultValue | None, *, orc: bool = False) -> Column:
    """Return a default of a column as a literal; null for None.

    With `orc` the literal has the type that ORC files have.
    """
    kind = field.type
    if value is None or not isinstance(kind, Atomic):
        return F.lit(None).cast(_spark_type(kind, physical=False, orc=orc))
    if kind.name in _ORC_STORAGE:
        stored = F.lit(value).cast(_ORC_STORAGE[kind.name])
        return stored if orc else _load(stored, kind, orc=True)
    if kind.name == "binary":
        return F.unhex(F.lit(value))
    if kind.name in _FLOATS:
        value = float(value)
    return F.lit(value).cast(_spark_atomic(kind.name, orc=orc))


def write_default(spec: TableSpec, name: str) -> Column:
    """Return the value of a column, by its name, in new rows that lack it."""
    field = spec.schema.field(name)
    return default_column(field, field.write)


def _struct_type(fields: Sequence[Field], *, physical: bool, orc: bool) -> T.StructType:
    schema = T.StructType()
    for field in fields:
        name = field.physical if physical else field.name
        schema.add(name, _spark_type(field.type, physical=physical, orc=orc))
    return schema


def _spark_atomic(name: str, *, orc: bool) -> T.DataType:
    if parts := decimal_parts(name):
        return T.DecimalType(*parts)
    if orc and name in _ORC_STORAGE:
        return _ORC_STORAGE[name]
    return _SPARK_OF[name]


def _spark_type(kind: DataType, *, physical: bool, orc: bool) -> T.DataType:
    match kind:
        case Atomic(name=name):
            return _spark_atomic(name, orc=orc)
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
    """Return a DataFrame's schema as an Arrow schema, for the columns of a table.

    Raises InvalidInputError for a type that tables lack.
    """
    if not isinstance(schema, T.StructType):
        raise InvalidInputError(
            f"the schema {schema!r} is not a StructType; write StructType.fromDDL('id BIGINT, ...')"
        )
    return pa.schema(
        [_arrow_field(field.name, field.name, field.dataType) for field in schema.fields]
    )


def parsed_columns(spark: SparkSession, schema: str) -> pa.Schema:
    """Return the columns of a schema as in CREATE TABLE, as Spark reads it.

    Settings of the session say what some types mean, such as TIMESTAMP.
    """
    refuse_lengths("schema", schema)
    with spark_errors():
        parsed = spark.createDataFrame([], schema).schema
    return arrow_of_spark(parsed)


def columns_of_schema(schema: T.StructType) -> pa.Schema:
    """Return the columns of a new table's schema, which must not have CHAR or VARCHAR.

    A schema of a source may have them: `arrow_of_spark` makes them texts of any length.
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
        for name, part in _parts_of_spark(kind):
            pending.append((f"{path}.{name}", part))
    return columns


def _parts_of_spark(kind: T.DataType) -> list[tuple[str, T.DataType]]:
    """Return the names and types of a nested type's parts; none for another type."""
    match kind:
        case T.StructType():
            return [(field.name, field.dataType) for field in kind.fields]
        case T.ArrayType():
            return [("element", kind.elementType)]
        case T.MapType():
            return [("key", kind.keyType), ("value", kind.valueType)]
    return []


def spark_of_arrow(schema: pa.Schema) -> T.StructType:
    """Return the columns of an Arrow schema as a Spark schema."""
    return _struct_type(schema_of_arrow(schema).fields, physical=False, orc=False)


def _arrow_field(name: str, path: str, kind: T.DataType) -> pa.Field:
    return pa.field(name, _arrow_type(path, kind))


def _arrow_type(path: str, kind: T.DataType) -> pa.DataType:
    match kind:
        case T.StructType():
            members = [
                _arrow_field(member.name, f"{path}.{member.name}", member.dataType)
                for member in kind.fields
            ]
            return pa.struct(members)
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
                f"column {path!r} has the collation {kind.collation}, and tables compare texts "
                "byte by byte; cast it to STRING COLLATE UTF8_BINARY"
            )
    if type(kind) in _ARROW_OF:
        return _ARROW_OF[type(kind)]
    raise InvalidInputError(
        f"column {path!r}: type {kind.simpleString().upper()} is not supported in a table; "
        f"{_advice(kind)}"
    )


def _advice(kind: T.DataType) -> str:
    # A user-defined type is an instance of a subclass, so its type is not a key of _ADVICE
    for unsupported, text in _ADVICE.items():
        if isinstance(kind, unsupported):
            return text
    return "cast it to STRING or BINARY"


def spark_type_name(kind: T.DataType) -> str:
    """Return a type's name in tables, or Spark's name if tables lack the type."""
    try:
        return type_name(_arrow_type("", kind))
    except InvalidInputError:
        return kind.simpleString()


def read_columns(spec: TableSpec, columns: Sequence[str] | None = None) -> list[Column | str]:
    """Return an expression over a data file's columns for each column of the table.

    It has the name and the type of the table's column. `columns` names the columns (default: all).
    """
    if columns is None:
        return read_fields(spec.schema.fields, spec)
    return read_fields([spec.schema.field(name) for name in columns], spec)


def read_fields(fields: Sequence[Field], spec: TableSpec) -> list[Column | str]:
    """Return the expressions of `read_columns` for fields.

    A field may have another name than the table's column.
    """
    orc = spec.file_format == "orc"
    return [_read_column(field, orc=orc) for field in fields]


def _read_column(field: Field, *, orc: bool) -> Column | str:
    needs_conversion = _needs_conversion(field.type, orc=orc)
    has_renamed_parts = _has_renamed_parts(field.type)
    if not needs_conversion and not has_renamed_parts and field.name == field.physical:
        # A plain name costs a third of the calls to the JVM that an expression costs
        return quoted(field.name)
    column = F.col(field.physical)
    if needs_conversion:
        column = _load(column, field.type, orc=orc)
    if has_renamed_parts:
        # A cast goes by position: it renames parts at any depth, and keeps nulls null
        column = column.cast(_spark_type(field.type, physical=False, orc=False))
    return column.alias(field.name)


def _parts(kind: DataType) -> Sequence[Field]:
    """Return the parts of a nested type; none for an atomic type."""
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
    if isinstance(kind, Atomic):
        return kind.name in _ORC_STORAGE
    return any(_has_orc_storage(part.type) for part in _parts(kind))


def _needs_conversion(kind: DataType, *, orc: bool) -> bool:
    """Return whether values in data files are converted to be values of the table."""
    if isinstance(kind, Struct):
        return any(_needs_conversion(member.type, orc=orc) for member in kind.fields)
    # A filter on a float that Spark pushes down compares with extremes and dictionaries of files,
    # for which -0.0 is not 0.0: files with the other zero would be skipped
    if isinstance(kind, Atomic) and kind.name in _FLOATS:
        return True
    return orc and _has_orc_storage(kind)


def _has_renamed_parts(kind: DataType) -> bool:
    parts = _parts(kind)
    return any(part.name != part.physical or _has_renamed_parts(part.type) for part in parts)


def _load_map(column: Column, key: DataType, value: DataType, *, orc: bool) -> Column:
    if _has_orc_storage(key):
        column = F.transform_keys(column, lambda item, _: _load(item, key, orc=orc))
    if _has_orc_storage(value):
        column = F.transform_values(column, lambda _, item: _load(item, value, orc=orc))
    return column


def _load(column: Column, kind: DataType, *, orc: bool) -> Column:
    """Convert a column of data files to the table's values, with physical names."""
    if not _needs_conversion(kind, orc=orc):
        return column
    match kind:
        case Struct(fields=fields):
            members = []
            for field in fields:
                member = _load(column.getField(field.physical), field.type, orc=orc)
                members.append(member.alias(field.physical))
            return F.when(column.isNotNull(), F.struct(*members))
        case Array(element=element):
            return F.transform(column, lambda item: _load(item, element.type, orc=orc))
        case Map(key=key, value=value):
            return _load_map(column, key.type, value.type, orc=orc)
        case Atomic(name="float" | "double"):
            # The same value, by an expression that Spark does not push into a file's filter
            return F.nanvl(column, column)
        case Atomic(name="timestamp"):
            return F.timestamp_micros(column)
        case Atomic(name="timestamp_ntz"):
            # A cast from TIMESTAMP would use the session's zone; adding an interval to a
            # TIMESTAMP_NTZ uses none
            epoch = F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")
            return epoch + column * F.expr("INTERVAL '0.000001' SECOND")
        case Atomic():
            return F.date_from_unix_date(column)
