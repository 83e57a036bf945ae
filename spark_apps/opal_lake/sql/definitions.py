"""CREATE TABLE and ALTER TABLE."""

from collections.abc import Callable
from typing import Any, Literal

from opal_lake.errors import InvalidInputError
from opal_lake.sql.cursor import Cursor, starts_query
from opal_lake.sql.lexer import END, NUMBER, words
from opal_lake.sql.statements import (
    AddColumns,
    AddConstraint,
    AlterColumns,
    AlterTable,
    Check,
    ColumnChange,
    ColumnDefinition,
    CreateTable,
    DropColumns,
    DropConstraint,
    Names,
    Position,
    PrimaryKey,
    Reference,
    RenameColumn,
    RenameTable,
    SetProperties,
    Slice,
    UnsetProperties,
)

QueryReader = Callable[[Cursor], tuple[Slice, tuple[Reference, ...]]]

# What may follow the default of a column
_AFTER_DEFAULT = words(
    "NOT COMMENT GENERATED DEFAULT PRIMARY CONSTRAINT CHECK UNIQUE REFERENCES FIRST AFTER"
)
_COLUMN_ACTIONS = words("TYPE COMMENT FIRST AFTER SET DROP")
_UNSUPPORTED_CONSTRAINTS = frozenset({"UNIQUE", "FOREIGN", "REFERENCES"})


# CREATE TABLE


def create_table(cursor: Cursor, read_query: QueryReader) -> CreateTable | None:
    """Read CREATE TABLE or REPLACE TABLE; None if it is not one of an Opal table."""
    mode = _mode(cursor)
    provider = _provider(cursor)
    if mode is None or (provider is not None and provider.lower() != "opal"):
        return None
    try:
        return _create_table(cursor, mode, read_query)
    except InvalidInputError:
        if provider is None:
            # Another catalog may know more than this parser
            return None
        raise


def _mode(cursor: Cursor) -> Literal["create", "create_or_replace", "replace"] | None:
    if cursor.accept("CREATE", "TABLE"):
        return "create"
    if cursor.accept("CREATE", "OR", "REPLACE", "TABLE"):
        return "create_or_replace"
    return "replace" if cursor.accept("REPLACE", "TABLE") else None


def _provider(cursor: Cursor) -> str | None:
    """Return what follows USING, outside brackets and before the query."""
    index = cursor.index
    while cursor.tokens[index].kind != END:
        token = cursor.tokens[index]
        if token.value == "USING":
            following = cursor.tokens[index + 1]
            return cursor.text[following.start : following.end]
        if token.value == "AS" or (token.value == "SELECT" and starts_query(cursor.tokens, index)):
            return None
        index = cursor.closers.get(index, index) + 1
    return None


def _create_table(
    cursor: Cursor,
    mode: Literal["create", "create_or_replace", "replace"],
    read_query: QueryReader,
) -> CreateTable | None:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    if if_not_exists and mode != "create":
        raise cursor.refusal("OR REPLACE and IF NOT EXISTS exclude each other; choose one")
    table = cursor.table_name()
    if cursor.word == "LIKE":
        return None
    elements = _Elements()
    is_list = cursor.word == "(" and not starts_query(cursor.tokens, cursor.index + 1)
    if is_list and cursor.after().value != "(":
        _read_elements(cursor, elements)
    clauses = _clauses(cursor)
    cursor.accept("AS")
    query: Slice | None = None
    references: tuple[Reference, ...] = ()
    if cursor.token.kind != END:
        query, references = _query(cursor, read_query)
    _check_elements(cursor, elements, query)
    return CreateTable(
        text=cursor.slice(0, len(cursor.tokens) - 1),
        references=references,
        table=table,
        mode=mode,
        if_not_exists=if_not_exists,
        columns=tuple(elements.columns),
        primary_key=elements.primary_key,
        checks=tuple(elements.checks),
        query=query,
        **clauses,
    )


def _query(cursor: Cursor, read_query: QueryReader) -> tuple[Slice | None, tuple[Reference, ...]]:
    if cursor.word != "(" and not starts_query(cursor.tokens, cursor.index):
        raise cursor.error(
            "USING, PARTITIONED BY, LOCATION, COMMENT, TBLPROPERTIES, AS or the end of the"
            " statement"
        )
    return read_query(cursor)


class _Elements:
    """The columns and constraints between the brackets of a CREATE TABLE."""

    def __init__(self) -> None:
        self.columns: list[ColumnDefinition] = []
        self.checks: list[Check] = []
        self.primary_key: PrimaryKey | None = None


def _check_elements(cursor: Cursor, elements: _Elements, query: Slice | None) -> None:
    names = [column.name[0].lower() for column in elements.columns]
    for column in elements.columns:
        if names.count(column.name[0].lower()) > 1:
            raise cursor.refusal(f"the column {column.name[0]} is there twice", column.slice.offset)
    if query is not None and elements.columns:
        offset = elements.columns[0].slice.offset
        raise cursor.refusal(
            "CREATE TABLE ... AS takes its columns from the query; remove the list of columns",
            offset,
        )


def _read_elements(cursor: Cursor, elements: _Elements) -> None:
    cursor.expect("(")
    _read_element(cursor, elements)
    while cursor.accept(","):
        _read_element(cursor, elements)
    cursor.expect(")")


def _read_element(cursor: Cursor, elements: _Elements) -> None:
    if _is_constraint(cursor):
        _add_constraint(cursor, elements, _constraint(cursor))
        return
    elements.columns.append(_column(cursor, elements))


def _is_constraint(cursor: Cursor) -> bool:
    """Return whether a constraint begins here, and not a column of such a name."""
    if cursor.at("PRIMARY", "KEY") or cursor.at("FOREIGN", "KEY"):
        return True
    if cursor.at("CHECK", "(") or cursor.at("UNIQUE", "("):
        return True
    kinds = ("CHECK", "PRIMARY", "FOREIGN", "UNIQUE")
    return cursor.word == "CONSTRAINT" and cursor.after(2).value in kinds


def _add_constraint(cursor: Cursor, elements: _Elements, added: Check | PrimaryKey) -> None:
    if isinstance(added, Check):
        elements.checks.append(added)
        return
    if elements.primary_key is not None:
        raise cursor.refusal("a table has one PRIMARY KEY; name all its columns in one")
    elements.primary_key = added


def _constraint(cursor: Cursor, column: str | None = None) -> Check | PrimaryKey:
    """Read `[CONSTRAINT n] CHECK (..)` or `[CONSTRAINT n] PRIMARY KEY (..)`.

    At a column, PRIMARY KEY has no list of columns.
    """
    name = cursor.identifier("the name of a constraint") if cursor.accept("CONSTRAINT") else None
    if cursor.word in _UNSUPPORTED_CONSTRAINTS:
        raise cursor.refusal(
            f"{cursor.word} constraints are not supported, only CHECK and PRIMARY KEY"
        )
    made: Check | PrimaryKey
    if cursor.accept("CHECK"):
        made = Check(condition=cursor.parenthesised(), name=name)
    elif cursor.accept("PRIMARY", "KEY"):
        columns = (column,) if column is not None else cursor.name_list()
        made = PrimaryKey(columns=columns, name=name)
    else:
        raise cursor.error("CHECK or PRIMARY KEY")
    cursor.accept("ENFORCED")
    return made


def _column(cursor: Cursor, elements: _Elements | None) -> ColumnDefinition:
    """Read a column: of CREATE TABLE if `elements` are given, else of ADD COLUMN."""
    first = cursor.index
    name: Names
    name = cursor.names("a column") if elements is None else (cursor.identifier("a column"),)
    data_type = cursor.data_type()
    options: dict[str, Any] = {}
    while True:
        keyword = cursor.token
        if elements is not None and _is_column_constraint(cursor):
            _add_constraint(cursor, elements, _constraint(cursor, name[0]))
            continue
        option = _column_option(cursor, in_create=elements is not None)
        if option is None:
            break
        key, value = option
        if key in options:
            raise cursor.refusal(f"the column {name[-1]} says this twice", keyword.start)
        options[key] = value
    return ColumnDefinition(name=name, type=data_type, slice=cursor.slice_from(first), **options)


def _is_column_constraint(cursor: Cursor) -> bool:
    return cursor.word in ("PRIMARY", "CHECK", "CONSTRAINT", *_UNSUPPORTED_CONSTRAINTS)


def _column_option(cursor: Cursor, *, in_create: bool) -> tuple[str, Any] | None:
    """Read an option of a column; return the field of ColumnDefinition and its value."""
    if cursor.accept("NOT", "NULL") or cursor.accept("!", "NULL"):
        return "not_null", True
    if cursor.accept("DEFAULT"):
        return "default", cursor.expression(_AFTER_DEFAULT, "a default")
    if cursor.accept("COMMENT"):
        return "comment", cursor.string("a comment in quotes")
    if in_create and cursor.accept("GENERATED"):
        cursor.expect("ALWAYS", "AS")
        if cursor.word == "IDENTITY":
            raise cursor.refusal("identity columns are not supported; use a key of the source")
        return "generated_as", cursor.parenthesised()
    if in_create:
        return None
    position = _position(cursor)
    return None if position is None else ("position", position)


def _position(cursor: Cursor) -> Position | None:
    if cursor.accept("FIRST"):
        return Position()
    if cursor.accept("AFTER"):
        return Position(after=cursor.identifier("a column"))
    return None


def _clauses(cursor: Cursor) -> dict[str, Any]:
    clauses: dict[str, Any] = {}
    while True:
        keyword = cursor.token
        clause = _clause(cursor)
        if clause is None:
            return clauses
        key, value = clause
        if key in clauses:
            raise cursor.refusal(f"{keyword.value} is there twice", keyword.start)
        clauses[key] = value


def _clause(cursor: Cursor) -> tuple[str, Any] | None:
    """Read a clause after the columns; return the field of CreateTable and its value."""
    if cursor.accept("USING"):
        return "provider", ".".join(cursor.names("opal"))
    if cursor.accept("PARTITIONED", "BY"):
        if cursor.word != "(":
            raise cursor.error("(")
        opener = cursor.index
        cursor.index = cursor.closers[opener] + 1
        return "partitioned_by", cursor.separated(opener)
    if cursor.accept("LOCATION"):
        return "location", cursor.string("a path in quotes")
    if cursor.accept("COMMENT"):
        return "comment", cursor.string("a comment in quotes")
    if cursor.accept("TBLPROPERTIES"):
        return "properties", _properties(cursor)
    return None


def _properties(cursor: Cursor) -> dict[str, str]:
    """Read `('key' = 'value', ..)`."""
    properties: dict[str, str] = {}
    cursor.expect("(")
    while True:
        start = cursor.token.start
        key = _property_key(cursor)
        if key in properties:
            raise cursor.refusal(f"the property {key!r} is there twice", start)
        if not cursor.accept("="):
            cursor.accept("==")
        properties[key] = _property_value(cursor)
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return properties


def _property_key(cursor: Cursor) -> str:
    if cursor.is_name():
        return ".".join(cursor.names("the key of a property"))
    return cursor.string("the key of a property")


def _property_value(cursor: Cursor) -> str:
    token = cursor.token
    if token.kind == NUMBER:
        cursor.index += 1
        return cursor.text[token.start : token.end]
    if token.value in ("TRUE", "FALSE"):
        cursor.index += 1
        return token.value.lower()
    return cursor.string("the value of a property: a string, a number, true or false")


# ALTER TABLE


def alter_table(cursor: Cursor) -> AlterTable | None:
    """Read ALTER TABLE; None if its action is not one of this list."""
    if not cursor.accept("ALTER", "TABLE"):
        return None
    base = {"text": cursor.slice(0, len(cursor.tokens) - 1), "table": cursor.table_name()}
    read = _ACTIONS.get(cursor.word)
    return None if read is None else read(cursor, base)


def _add(cursor: Cursor, base: dict[str, Any]) -> AlterTable | None:
    cursor.expect("ADD")
    if _is_constraint(cursor):
        return AddConstraint(constraint=_constraint(cursor), **base)
    if not (cursor.accept("COLUMN") or cursor.accept("COLUMNS")):
        return None
    in_brackets = cursor.accept("(")
    columns = [_column(cursor, None)]
    while cursor.accept(","):
        columns.append(_column(cursor, None))
    if in_brackets:
        cursor.expect(")")
    return AddColumns(columns=tuple(columns), **base)


def _drop(cursor: Cursor, base: dict[str, Any]) -> AlterTable | None:
    cursor.expect("DROP")
    if cursor.accept("CONSTRAINT"):
        if_exists = cursor.accept("IF", "EXISTS")
        name = cursor.identifier("the name of a constraint")
        return DropConstraint(name=name, if_exists=if_exists, **base)
    if not (cursor.accept("COLUMN") or cursor.accept("COLUMNS")):
        return None
    if_exists = cursor.accept("IF", "EXISTS")
    in_brackets = cursor.accept("(")
    columns = [cursor.names("a column")]
    while cursor.accept(","):
        columns.append(cursor.names("a column"))
    if in_brackets:
        cursor.expect(")")
    return DropColumns(columns=tuple(columns), if_exists=if_exists, **base)


def _rename(cursor: Cursor, base: dict[str, Any]) -> AlterTable | None:
    cursor.expect("RENAME")
    if cursor.accept("TO"):
        return RenameTable(new_name=cursor.table_name("the new name"), **base)
    if not cursor.accept("COLUMN"):
        return None
    column = cursor.names("a column")
    cursor.expect("TO")
    return RenameColumn(column=column, new_name=cursor.identifier("the new name"), **base)


def _set(cursor: Cursor, base: dict[str, Any]) -> AlterTable | None:
    if not cursor.accept("SET", "TBLPROPERTIES"):
        return None
    return SetProperties(properties=_properties(cursor), **base)


def _unset(cursor: Cursor, base: dict[str, Any]) -> AlterTable | None:
    if not cursor.accept("UNSET", "TBLPROPERTIES"):
        return None
    if_exists = cursor.accept("IF", "EXISTS")
    cursor.expect("(")
    keys = [_property_key(cursor)]
    while cursor.accept(","):
        keys.append(_property_key(cursor))
    cursor.expect(")")
    return UnsetProperties(keys=tuple(keys), if_exists=if_exists, **base)


def _alter(cursor: Cursor, base: dict[str, Any]) -> AlterTable | None:
    is_change = cursor.word == "CHANGE"
    cursor.index += 1
    if cursor.word == "COLUMN" and cursor.is_name(cursor.after()):
        cursor.index += 1
    changes = [_column_change(cursor, is_change=is_change)]
    while cursor.accept(","):
        changes.append(_column_change(cursor, is_change=is_change))
    return AlterColumns(changes=tuple(changes), **base)


def _column_change(cursor: Cursor, *, is_change: bool) -> ColumnChange:
    first = cursor.index
    column = cursor.names("a column")
    if cursor.word in _COLUMN_ACTIONS:
        details = _column_action(cursor)
    elif is_change and cursor.is_name():
        details = _hive_change(cursor, column)
    else:
        raise cursor.error("TYPE, COMMENT, FIRST, AFTER, SET or DROP")
    return ColumnChange(column=column, slice=cursor.slice_from(first), **details)


def _column_action(cursor: Cursor) -> dict[str, Any]:
    if cursor.accept("TYPE"):
        return {"type": cursor.data_type()}
    if cursor.accept("COMMENT"):
        return {"comment": cursor.string("a comment in quotes")}
    position = _position(cursor)
    if position is not None:
        return {"position": position}
    is_set = cursor.accept("SET")
    if not is_set:
        cursor.expect("DROP")
    if cursor.accept("NOT", "NULL") or cursor.accept("!", "NULL"):
        return {"not_null": is_set}
    if not cursor.accept("DEFAULT"):
        raise cursor.error("NOT NULL or DEFAULT")
    if is_set:
        return {"default": cursor.expression(what="a default")}
    return {"drop_default": True}


def _hive_change(cursor: Cursor, column: Names) -> dict[str, Any]:
    """Read `CHANGE COLUMN a a INT COMMENT '..' FIRST`, which names the column twice."""
    start = cursor.token.start
    again = cursor.names("a column")
    if tuple(part.lower() for part in again) != tuple(part.lower() for part in column):
        raise cursor.refusal(
            "CHANGE COLUMN cannot rename a column; write RENAME COLUMN "
            f"{'.'.join(column)} TO {again[-1]}",
            start,
        )
    details: dict[str, Any] = {"type": cursor.data_type()}
    if cursor.accept("NOT", "NULL"):
        details["not_null"] = True
    if cursor.accept("COMMENT"):
        details["comment"] = cursor.string("a comment in quotes")
    position = _position(cursor)
    if position is not None:
        details["position"] = position
    return details


_ACTIONS: dict[str, Callable[[Cursor, dict[str, Any]], AlterTable | None]] = {
    "ADD": _add,
    "ALTER": _alter,
    "CHANGE": _alter,
    "DROP": _drop,
    "RENAME": _rename,
    "SET": _set,
    "UNSET": _unset,
}
