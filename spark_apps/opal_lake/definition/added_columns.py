"""Columns that a table gets after its creation."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from opal_lake.definition.schema import (
    ATOMIC_TYPES,
    Schema,
    arrow_type,
    atomic_type_name,
    check_names,
    extended,
    schema_of_arrow,
    type_name,
)
from opal_lake.definition.sql_types import arrow_of_type
from opal_lake.errors import InvalidInputError

NewColumns = Mapping[str, str | pa.DataType]


def arrow_of_columns(columns: NewColumns) -> pa.Schema:
    """Return the Arrow schema of columns that a caller gives as names with types.

    A type is a text as in SQL, such as `double` or `array<decimal(10,2)>`, or an Arrow type.
    """
    if not columns:
        raise InvalidInputError(
            f"columns={columns!r} names no column; give a name and a type, for example "
            "columns={'discount': 'double'}"
        )
    check_names(columns)
    return pa.schema([pa.field(name, _arrow_of(name, kind)) for name, kind in columns.items()])


def plan_added(schema: Schema, columns: pa.Schema) -> Schema:
    """Return the schema with the requested columns that it lacks, if any, added.

    Raises InvalidInputError if it has one of the columns with another type.
    """
    requested = {field.name: field.type for field in schema_of_arrow(columns).fields}
    existing = {field.name.casefold(): field for field in schema.fields}
    new: list[pa.Field] = []
    problems: list[str] = []
    for name, kind in requested.items():
        field = existing.get(name.casefold())
        if field is None:
            new.append(columns.field(name))
        elif arrow_type(field.type) != arrow_type(kind):
            problems.append(
                f"column {field.name!r} is {type_name(field.type)}, not {type_name(kind)}"
            )
    if problems:
        raise InvalidInputError(
            f"the table has other types: {'; '.join(problems)}. "
            "Choose another name; `alter` can widen the type of a column"
        )
    if not new:
        return schema
    return extended(schema, pa.schema(new))


def unknown_columns(schema: Schema, columns: pa.Schema) -> pa.Schema:
    """Return the columns that a table lacks, for `plan_added`.

    Names that differ only in case are the same.
    """
    existing = {name.casefold() for name in schema.names}
    unknown = [field for field in columns if field.name.casefold() not in existing]
    return pa.schema([plain_field(field) for field in unknown])


def refuse_former(schema: Schema, names: Iterable[str], *, dropped: bool = True) -> None:
    """Raise InvalidInputError for names of a source that columns of the table had.

    Its values would get lost, or into a new column. Without `dropped` only columns that were
    renamed are refused.
    """
    for name in names:
        column = schema.former(name)
        if column is not None:
            raise InvalidInputError(f"the rows have a column {former_name(name, column.name)}")
        if dropped and schema.had(name):
            raise InvalidInputError(
                f"the rows have a column {name!r}, which was dropped from the table; leave it out "
                "with on_new_columns='ignore', or add it again with `opal add-columns`"
            )


def former_name(name: str, current: str) -> str:
    """Return what a source should do about a name that a column had, for a message."""
    return (
        f"{name!r}, which the table calls {current!r} since it was renamed; rename it in the "
        "source, or rename the table's column back"
    )


def plain_field(field: pa.Field) -> pa.Field:
    """Return a field of a source with the type of its values."""
    # A dictionary is an encoding of a source's column, and no type of a table
    if pa.types.is_dictionary(field.type):
        return pa.field(field.name, field.type.value_type)
    return field


def _arrow_of(name: str, kind: str | pa.DataType) -> pa.DataType:
    """Return a column's Arrow type; raise InvalidInputError for an unknown name."""
    if isinstance(kind, pa.DataType):
        return kind
    if not isinstance(kind, str):
        raise _unknown_type(name, kind)
    return arrow_of_type(name, kind)


def _unknown_type(name: str, kind: object) -> InvalidInputError:
    known = ", ".join(map(atomic_type_name, ATOMIC_TYPES))
    return InvalidInputError(
        f"column {name!r}: {kind!r} is not a type; write one as text, one of {known}, "
        "DECIMAL(p,s), ARRAY<type>, MAP<type, type> or STRUCT<name: type, ...>, or give Arrow's"
    )
