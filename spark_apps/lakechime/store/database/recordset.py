"""Many rows as one parameter: a JSON text that the database takes apart. One statement and one round trip, however many rows there are."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    String,
    Table,
    Text,
    bindparam,
    cast,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.sql.expression import FromClause, column
from sqlalchemy.types import TypeEngine

Types = Mapping[str, TypeEngine[Any]]
LONG, TEXT, FLAG = BigInteger(), Text(), Boolean()


def recordset(dialect: str, parameter: str, types: Types) -> FromClause:
    """The rows of a parameter that `rows_text` made; the parameter's name is also that of the rows."""
    if dialect == "postgresql":
        function = func.json_to_recordset(cast(bindparam(parameter, type_=String), JSON))
        return function.table_valued(
            *(column(name, kind) for name, kind in types.items()), name=parameter
        ).render_derived(with_types=True)
    each = func.json_each(bindparam(parameter, type_=String)).table_valued(
        column("value", Text), name=f"{parameter}_each"
    )
    return select(
        *(
            func.json_extract(each.c.value, f"$.{name}", type_=kind).label(name)
            for name, kind in types.items()
        )
    ).subquery(parameter)


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps(list(rows), separators=(",", ":"))


def insert_into(connection: Connection, table: Table) -> Any:
    """Both databases know ON CONFLICT, each by a construct of its own."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
