"""The schema that a query gives with `format("opal")`: the columns that it selects, and the check of their types.

Columns and members of structs go by name, whatever their order and case: a Python data source sees no session, and no table has names that
differ in case only. Columns of a table are all nullable, so that NOT NULL is a promise that the rows themselves have to keep.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from opal_lake.definition.schema import Array, Atomic, DataType, Field, Map, Struct
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_spark.engine.columns import spark_schema, spark_type_name


def requested_fields(schema: T.StructType, spec: TableSpec) -> tuple[Field, ...]:
    """The table's fields by the names and in the order of the schema; an error names all that do not fit."""
    problems: list[str] = []
    known = spark_schema(spec, physical=False)
    fields = _fields(schema, spec.schema.fields, known, "", problems)
    if not schema.fields:
        problems.append("it names no column")
    if problems:
        columns = ", ".join(f"{field.name} {spark_type_name(field.dataType)}" for field in known)
        raise InvalidInputError(
            f"the schema given to format('opal') does not fit the table: {'; '.join(problems)}. The table has {columns}: name any of them "
            "with these types, and cast in the query; without a schema all are read"
        )
    return fields


def _fields(
    schema: T.StructType,
    fields: Sequence[Field],
    known: T.StructType,
    parent: str,
    problems: list[str],
) -> tuple[Field, ...]:
    """`known` are the types of `fields`, as Spark has them."""
    by_name = {
        field.name.casefold(): (field, member.dataType)
        for field, member in zip(fields, known, strict=True)
    }
    selected, seen = [], set()
    for requested in schema:
        path, name = f"{parent}{requested.name}", requested.name.casefold()
        if name not in by_name:
            problems.append(f"there is no column {path!r}")
        elif name in seen:
            problems.append(f"column {path!r} is named twice")
        else:
            field, kind = by_name[name]
            part = _part(requested.dataType, field.type, kind, path, problems)
            selected.append(
                Field(id=field.id, name=requested.name, physical=field.physical, type=part)
            )
        seen.add(name)
    return tuple(selected)


def _part(
    requested: T.DataType, kind: DataType, known: T.DataType, path: str, problems: list[str]
) -> DataType:
    match kind, requested, known:
        case Struct(fields=fields), T.StructType(), T.StructType() if requested.fields:
            return Struct(fields=_fields(requested, fields, known, f"{path}.", problems))
        case Array(element=element), T.ArrayType(), T.ArrayType():
            part = _part(
                requested.elementType, element.type, known.elementType, f"{path}.element", problems
            )
            return Array(
                element=Field(
                    id=element.id, name=element.name, physical=element.physical, type=part
                )
            )
        case Map(key=key, value=value), T.MapType(), T.MapType():
            keys = _part(requested.keyType, key.type, known.keyType, f"{path}.key", problems)
            values = _part(
                requested.valueType, value.type, known.valueType, f"{path}.value", problems
            )
            return Map(
                key=Field(id=key.id, name=key.name, physical=key.physical, type=keys),
                value=Field(id=value.id, name=value.name, physical=value.physical, type=values),
            )
        case Atomic(), _, _ if requested == known:
            return kind
    problems.append(
        f"column {path!r} is {spark_type_name(known)} in the table, {spark_type_name(requested)} in the schema"
    )
    return kind


def refuse_nulls(rows: pa.Table, schema: T.StructType) -> None:
    """Spark relies on NOT NULL, and would return wrong results for a null in such a column."""
    for column, requested in zip(rows.columns, schema, strict=True):
        for chunk in column.chunks if _promises(requested.dataType, requested.nullable) else ():
            _check(chunk, requested.dataType, requested.nullable, requested.name)


def _promises(kind: T.DataType, nullable: bool) -> bool:
    """Whether the type or a part of it is NOT NULL."""
    match kind:
        case T.StructType():
            return not nullable or any(
                _promises(member.dataType, member.nullable) for member in kind
            )
        case T.ArrayType():
            return not nullable or _promises(kind.elementType, kind.containsNull)
        case T.MapType():
            return (
                not nullable
                or _promises(kind.valueType, kind.valueContainsNull)
                or _promises(kind.keyType, True)
            )
    return not nullable


def _check(array: pa.Array, kind: T.DataType, nullable: bool, path: str) -> None:
    """`array` has what lies in values that are there, and no null of its parents."""
    if array.null_count and not nullable:
        raise InvalidInputError(
            f"column {path!r} has nulls, and the schema says NOT NULL; leave that out"
        )
    match kind:
        case T.StructType():
            there = array.filter(pc.is_valid(array))
            for index, member in enumerate(kind):
                _check(
                    there.field(index), member.dataType, member.nullable, f"{path}.{member.name}"
                )
        case T.ArrayType():
            _check(array.flatten(), kind.elementType, kind.containsNull, f"{path}.element")
        case T.MapType():
            entries = array.cast(
                pa.list_(pa.struct([array.type.key_field, array.type.item_field]))
            ).flatten()
            _check(entries.field(0), kind.keyType, True, f"{path}.key")
            _check(entries.field(1), kind.valueType, kind.valueContainsNull, f"{path}.value")
