"""The table's columns in a result that also has columns of its own, such as a change feed."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from opal_lake.definition.schema import Field
from opal_lake.definition.table_spec import TableSpec, refuse_text
from opal_lake.errors import InvalidInputError


def check_columns(
    spec: TableSpec, columns: Sequence[Any] | None, own: Collection[str] = (), noun: str = ""
) -> None:
    """Raise InvalidInputError for columns that a caller may not ask for.

    These are an empty list, a repeated column, and one of the result's `own` columns; `noun` names
    the result in messages. Queries of Spark are not checked here: a count needs no column.
    """
    if columns is None:
        return
    if len(columns) == 0:
        raise InvalidInputError(
            "columns=[]: name at least one column, or leave out columns for all"
        )
    known = {name.casefold() for name in spec.schema.names}
    # If the table also has such a column, `fields_beside` raises an error that names both
    only_own = {name.casefold() for name in own} - known
    for name in columns:
        if isinstance(name, str) and name.casefold() in only_own:
            raise InvalidInputError(
                f"columns: {name!r} is always in {noun}; "
                "leave it out, and name columns of the table"
            )
    names = Counter(field.name for field in chosen_fields(spec, columns))
    for name, times in names.items():
        if times > 1:
            raise InvalidInputError(f"columns name {name!r} {times} times; name it once")


def chosen_fields(spec: TableSpec, columns: Sequence[Any] | None) -> tuple[Field, ...]:
    """Return the named columns, or all but the built-in one."""
    refuse_text("columns", columns)
    if columns is None:
        return spec.schema.own_fields
    for name in columns:
        if not isinstance(name, str):
            raise InvalidInputError(
                f"columns: {name!r} is not the name of a column; give names, for example "
                f"[{spec.schema.names[0]!r}]"
            )
    return tuple(spec.schema.field(name) for name in columns)


# SQL has no argument for the columns of a feed, but can rename
_RENAME = "rename it with alter, or ALTER TABLE ... RENAME COLUMN"


def fields_beside(
    own: Collection[str], spec: TableSpec, columns: Sequence[str] | None, noun: str
) -> tuple[Field, ...]:
    """Return the named columns, or all, for a result that also has `own` columns.

    Raises InvalidInputError if a key column or a returned column has the name of an own column.
    Names that differ only in case are equal, because Spark ignores case.
    """
    fields = chosen_fields(spec, columns)
    for field in spec.keys:
        if is_named(field, own):
            raise InvalidInputError(
                f"the key column {field.name} has the name of a column of {noun}, so that this "
                f"table cannot have {noun}; {_RENAME}"
            )
    for field in fields:
        if is_named(field, own):
            raise InvalidInputError(
                f"column {field.name} of the table has the name of a column of {noun}; {_RENAME}, "
                f"or name the columns that you want by columns=, without {field.name}"
            )
    return fields


def is_named(field: Field, names: Collection[str]) -> bool:
    """Return whether a field has one of the names, in any case."""
    return field.name.casefold() in {name.casefold() for name in names}
