"""The schema that a query gives with `format("opal")`.

The schema selects columns, and its types are checked against the table's. Columns and members of
structs are matched by name; order and case make no difference. A Python data source cannot see the
session's setting for case, and no table has two names that differ only in case. All columns of a
table are nullable, so for NOT NULL the rows themselves are checked.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from opal_lake.definition.schema import Array, Atomic, DataType, Field, Map, Struct
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_spark.engine.columns import spark_schema, spark_type_name


def requested_fields(schema: T.StructType, spec: TableSpec) -> tuple[Field, ...]:
    """Return the table's fields with the names and the order of the requested schema.

    Raises InvalidInputError with all columns that do not fit.
    """
    problems: list[str] = []
    known = spark_schema(spec, physical=False)
    fields = _fields(schema, spec.schema.fields, known, "", problems)
    if not schema.fields:
        problems.append("it names no column")
    if problems:
        columns = ", ".join(f"{field.name} {spark_type_name(field.dataType)}" for field in known)
        raise InvalidInputError(
            f"the schema given to format('opal') does not fit the table: {'; '.join(problems)}. "
            f"The table has {columns}: name any of them with these types, and cast in the query; "
            "without a schema all columns are read"
        )
    return fields


def _fields(
    schema: T.StructType,
    fields: Sequence[Field],
    known: T.StructType,
    parent: str,
    problems: list[str],
) -> tuple[Field, ...]:
    """Return the requested fields, and add what does not fit to `problems`.

    `known` has the types of `fields`, as Spark has them.
    """
    by_name: dict[str, tuple[Field, T.DataType]] = {}
    for field, member in zip(fields, known, strict=True):
        by_name[field.name.casefold()] = (field, member.dataType)
    selected: list[Field] = []
    seen: set[str] = set()
    for requested in schema:
        path = f"{parent}{requested.name}"
        name = requested.name.casefold()
        if name not in by_name:
            problems.append(f"column {path!r} does not exist")
        elif name in seen:
            problems.append(f"column {path!r} is named twice")
        else:
            field, kind = by_name[name]
            part = _part(requested.dataType, field.type, kind, path, problems)
            selected.append(replace(field, name=requested.name, type=part))
        seen.add(name)
    return tuple(selected)


def _part(
    requested: T.DataType, kind: DataType, known: T.DataType, path: str, problems: list[str]
) -> DataType:
    """Return the requested parts of a type, and add what does not fit to `problems`.

    `kind` is the table's type at the path, and `known` the same type as Spark has it.
    """
    match kind, requested, known:
        case Struct(fields=fields), T.StructType(), T.StructType() if requested.fields:
            return Struct(fields=_fields(requested, fields, known, f"{path}.", problems))
        case Array(element=element), T.ArrayType(), T.ArrayType():
            part = _part(
                requested.elementType, element.type, known.elementType, f"{path}.element", problems
            )
            return Array(element=replace(element, type=part))
        case Map(key=key, value=value), T.MapType(), T.MapType():
            keys = _part(requested.keyType, key.type, known.keyType, f"{path}.key", problems)
            values = _part(
                requested.valueType, value.type, known.valueType, f"{path}.value", problems
            )
            return Map(key=replace(key, type=keys), value=replace(value, type=values))
        case Atomic(), _, _ if requested == known:
            return kind
    problems.append(
        f"column {path!r} is {spark_type_name(known)} in the table, "
        f"{spark_type_name(requested)} in the schema"
    )
    return kind


def refuse_nulls(rows: pa.Table, schema: T.StructType) -> None:
    """Raise InvalidInputError for nulls in columns that the schema declares NOT NULL.

    Spark relies on NOT NULL, and would return wrong results.
    """
    for column, requested in zip(rows.columns, schema, strict=True):
        if _has_not_null(requested.dataType, requested.nullable):
            for chunk in column.chunks:
                _check(chunk, requested.dataType, requested.nullable, requested.name)


def _has_not_null(kind: T.DataType, nullable: bool) -> bool:
    """Return whether a type or a part of it is NOT NULL."""
    if not nullable:
        return True
    match kind:
        case T.StructType():
            return any(_has_not_null(member.dataType, member.nullable) for member in kind)
        case T.ArrayType():
            return _has_not_null(kind.elementType, kind.containsNull)
        case T.MapType():
            # Spark has no nullable keys, but a part of a key may be NOT NULL
            if _has_not_null(kind.keyType, True):
                return True
            return _has_not_null(kind.valueType, kind.valueContainsNull)
    return False


def _check(array: pa.Array, kind: T.DataType, nullable: bool, path: str) -> None:
    """Raise InvalidInputError for a null in a value that is NOT NULL.

    `array` has no members of a null struct: NOT NULL does not apply to these.
    """
    if array.null_count and not nullable:
        raise InvalidInputError(
            f"column {path!r} has nulls, but the schema says NOT NULL; leave NOT NULL out"
        )
    match kind:
        case T.StructType():
            valid = array.filter(pc.is_valid(array))
            for index, member in enumerate(kind):
                part = valid.field(index)
                _check(part, member.dataType, member.nullable, f"{path}.{member.name}")
        case T.ArrayType():
            _check(array.flatten(), kind.elementType, kind.containsNull, f"{path}.element")
        case T.MapType():
            # Arrow flattens lists without the values of nulls, but not maps
            entry = pa.struct([array.type.key_field, array.type.item_field])
            entries = array.cast(pa.list_(entry)).flatten()
            _check(entries.field(0), kind.keyType, True, f"{path}.key")
            _check(entries.field(1), kind.valueType, kind.valueContainsNull, f"{path}.value")
