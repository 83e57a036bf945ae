"""Which columns of the table a result has beside columns of its own."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from opal_lake.definition.schema import Field
from opal_lake.definition.table_spec import TableSpec, refuse_text
from opal_lake.errors import InvalidInputError


def check_columns(
    spec: TableSpec, columns: Sequence[Any] | None, own: Collection[str] = (), noun: str = ""
) -> None:
    """Raise InvalidInputError for no column, one that comes twice, or one of the result's own.

    Checks what callers ask for. Queries of Spark, for example a count, may need no column.
    """
    if columns is None:
        return
    if len(columns) == 0:
        raise InvalidInputError(
            "columns=[]: name at least one column, or leave out columns for all"
        )
    known = {name.casefold() for name in spec.schema.names}
    always = {name.casefold() for name in own} - known
    for name in columns:
        if isinstance(name, str) and name.casefold() in always:
            raise InvalidInputError(
                f"columns: {name!r} is always in {noun}; "
                "leave it out, and name columns of the table"
            )
    names = Counter(field.name for field in chosen_fields(spec, columns))
    for name, times in names.items():
        if times > 1:
            raise InvalidInputError(f"columns name {name!r} {times} times; name it once")


def chosen_fields(spec: TableSpec, columns: Sequence[Any] | None) -> tuple[Field, ...]:
    """Those named, or all."""
    refuse_text("columns", columns)
    if wrong := [name for name in columns or () if not isinstance(name, str)]:
        raise InvalidInputError(
            f"columns: {wrong[0]!r} is not the name of a column; give names, as [{spec.schema.names[0]!r}]"
        )
    return (
        spec.schema.fields
        if columns is None
        else tuple(spec.schema.field(name) for name in columns)
    )


def fields_beside(
    own: Collection[str], spec: TableSpec, columns: Sequence[str] | None, noun: str
) -> tuple[Field, ...]:
    """The same, where neither they nor the keys have a name of the result's own columns, which Spark tells apart by more than case."""
    fields = chosen_fields(spec, columns)
    if clash := [field.name for field in spec.keys if is_named(field, own)]:
        raise InvalidInputError(
            f"the key column {clash[0]} has the name of a column of {noun}; such a table has none"
        )
    if clash := [field.name for field in fields if is_named(field, own)]:
        raise InvalidInputError(
            f"the table has a column {clash[0]}, and so has {noun}; leave it out of the columns that you read"
        )
    return fields


def is_named(field: Field, names: Collection[str]) -> bool:
    """Whether it has one of the names, in any case."""
    return field.name.casefold() in {name.casefold() for name in names}
