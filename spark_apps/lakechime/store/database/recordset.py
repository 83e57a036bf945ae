"""Many rows as one parameter of a statement: a JSON text that the database decodes.

Any number of rows takes one statement and one round trip.
"""

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
    """Return the rows of a parameter of `rows_text` as a table of a statement.

    `types` are its columns. Its name is that of the parameter.
    """
    text = bindparam(parameter, type_=String)
    if dialect == "postgresql":
        function = func.json_to_recordset(cast(text, JSON))
        columns = [column(name, kind) for name, kind in types.items()]
        return function.table_valued(*columns, name=parameter).render_derived(with_types=True)
    each = func.json_each(text).table_valued(column("value", Text), name=f"{parameter}_each")
    members: list[Any] = []
    for name, kind in types.items():
        member = func.json_extract(each.c.value, f"$.{name}", type_=kind)
        members.append(member.label(name))
    return select(*members).subquery(parameter)


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps(list(rows), separators=(",", ":"))


def insert_into(connection: Connection, table: Table) -> Any:
    """Return an INSERT with ON CONFLICT, which SQLAlchemy has for each dialect."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
