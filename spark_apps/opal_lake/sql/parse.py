"""SQL text to one of the statements of `statements`.

What is outside the list becomes `Other`: whether Spark may run it is the caller's decision.
"""

from collections.abc import Callable
from typing import Any, Literal

from opal_lake.errors import InvalidInputError
from opal_lake.sql.cursor import Cursor, starts_query
from opal_lake.sql.definitions import alter_table, create_table
from opal_lake.sql.hints import NAMESPACES, hint_for
from opal_lake.sql.lexer import END, WORD, Token, error_at, tokens, words
from opal_lake.sql.references import START, scan
from opal_lake.sql.statements import (
    Argument,
    Assignment,
    Call,
    Delete,
    DescribeHistory,
    DescribeTable,
    DropTable,
    InsertInto,
    InsertOverwrite,
    InsertReplaceWhere,
    Merge,
    MergeClause,
    Other,
    PartitionValue,
    Query,
    Reference,
    Restore,
    ShowCreateTable,
    ShowNamespaces,
    ShowProperties,
    ShowTables,
    Slice,
    Statement,
    TableName,
    Target,
    Update,
)

_CHANGES_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_QUERY_STOPS = frozenset({"SELECT", "VALUES", "TABLE", "FROM", "WITH", "MAP", "REDUCE", "("})
_A_QUERY = "a query, which begins with SELECT, VALUES, TABLE, FROM, WITH or ("
# What DESCRIBE takes that is not a table
_DESCRIBED = words("FUNCTION DATABASE SCHEMA NAMESPACE CATALOG PROCEDURE DETAIL QUERY")
# Words before the name of a table, whatever the statement
_BEFORE_A_TABLE = words("TABLE INTO VIEW EXISTS OPTIMIZE VACUUM OVERWRITE")
# Statements that contain a query which may begin with FROM
_AROUND_QUERIES = words("EXPLAIN DESCRIBE DESC CREATE CACHE FROM WITH")


def parse(text: str, within: Slice | None = None) -> Statement:
    """Return the statement of a text, or of a piece of it as `split_script` returns.

    Raises InvalidInputError with the line and column in the whole text.
    """
    start = within.offset if within else 0
    stop = within.end if within else len(text)
    statement_tokens = tokens(text, start, stop, join_rows=True)
    while len(statement_tokens) > 1 and statement_tokens[-2].value == ";":
        del statement_tokens[-2]
    if len(statement_tokens) == 1:
        raise error_at(text, start, "the text has no statement")
    cursor = Cursor(text, statement_tokens)
    is_script = _is_script(cursor)
    second = next((token for token in statement_tokens if token.value == ";"), None)
    if second is not None and not is_script:
        message = "another statement follows this semicolon; run one statement at a time"
        raise error_at(text, second.start, message)
    read = None if is_script else _READERS.get(cursor.word)
    if read is None:
        return _other(cursor)
    statement = read(cursor)
    if statement is None:
        cursor.index = 0
        return _other(cursor)
    if cursor.token.kind != END:
        raise cursor.error("the end of the statement")
    return statement


def split_script(text: str) -> tuple[Slice, ...]:
    """Return the statements of a text, which semicolons separate.

    Semicolons in strings, names and comments do not count.
    """
    pieces = []
    first: Token | None = None
    last: Token | None = None
    for token in tokens(text, join_rows=True):
        if token.value == ";" or token.kind == END:
            if first is not None and last is not None:
                pieces.append(Slice(text=text[first.start : last.end], offset=first.start))
            first = last = None
            continue
        if first is None:
            first = token
            if token.value == "BEGIN":
                message = "a script of BEGIN ... END cannot be split into statements"
                raise error_at(text, token.start, message)
        last = token
    return tuple(pieces)


def _is_script(cursor: Cursor) -> bool:
    """Return whether a text is a script of Spark: BEGIN ... END, perhaps with a label."""
    return cursor.word == "BEGIN" or (
        cursor.is_name() and cursor.after().value == ":" and cursor.after(2).value == "BEGIN"
    )


def _whole(cursor: Cursor) -> Slice:
    return cursor.slice(0, len(cursor.tokens) - 1)


def _references(cursor: Cursor, first: int) -> tuple[Reference, ...]:
    """Return what is read by the expressions and subqueries from a token on."""
    return tuple(scan(cursor, first, len(cursor.tokens) - 1))


def _query_to_end(cursor: Cursor) -> tuple[Slice, tuple[Reference, ...]]:
    """Read a query that ends the statement."""
    if cursor.word != "(" and not starts_query(cursor.tokens, cursor.index):
        raise cursor.error(_A_QUERY)
    first = cursor.index
    references = scan(cursor, first, len(cursor.tokens) - 1, mode=START)
    cursor.index = len(cursor.tokens) - 1
    return cursor.slice_from(first), tuple(references)


# Queries


def _query(cursor: Cursor) -> Statement | None:
    if cursor.word == "WITH" and _word_after_with(cursor) in _CHANGES_ROWS:
        return None
    if cursor.word == "FROM" and _has_insert(cursor):
        return None
    if cursor.word != "(" and not starts_query(cursor.tokens, cursor.index):
        return None
    references = scan(cursor, 0, len(cursor.tokens) - 1, mode=START)
    cursor.index = len(cursor.tokens) - 1
    return Query(text=_whole(cursor), references=tuple(references))


def _word_after_with(cursor: Cursor) -> str:
    """Return the word after the names of a WITH at the beginning of the statement."""
    index = 1
    while cursor.tokens[index].kind != END:
        token = cursor.tokens[index]
        if token.value == "(":
            index = cursor.closers[index]
            following = cursor.tokens[index + 1]
            if following.kind == WORD and following.value in _QUERY_STOPS | _CHANGES_ROWS:
                return following.value
        index += 1
    return ""


def _has_insert(cursor: Cursor) -> bool:
    """Return whether a FROM ... is followed by INSERT INTO: one read, several inserts."""
    index = 0
    while cursor.tokens[index].kind != END:
        token = cursor.tokens[index]
        following = cursor.tokens[index + 1].value
        if token.value == "INSERT" and following in ("INTO", "OVERWRITE"):
            return True
        index = cursor.closers.get(index, index) + 1
    return False


# Rows


def _insert(cursor: Cursor) -> Statement | None:
    cursor.expect("INSERT")
    is_overwrite = cursor.word == "OVERWRITE"
    is_directory = cursor.at("OVERWRITE", "DIRECTORY") or cursor.at("OVERWRITE", "LOCAL")
    if is_directory or not (is_overwrite or cursor.word == "INTO"):
        if is_directory or cursor.word == "WITH":
            return None
        raise cursor.error("INTO or OVERWRITE")
    cursor.index += 1
    _skip_table_word(cursor)
    table = cursor.table_name()
    if cursor.at("WITH", "(") or cursor.at("REPLACE", "ON") or cursor.at("REPLACE", "USING"):
        return None
    if not is_overwrite and cursor.accept("REPLACE"):
        return _insert_replace_where(cursor, table)
    partition = _partition(cursor)
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    by_name = cursor.accept("BY", "NAME")
    columns = None if by_name else _insert_columns(cursor)
    _refuse_default_rows(cursor)
    query, references = _query_to_end(cursor)
    kind = InsertOverwrite if is_overwrite else InsertInto
    return kind(
        text=_whole(cursor),
        references=references,
        table=table,
        query=query,
        partition=partition,
        if_not_exists=if_not_exists,
        columns=columns,
        by_name=by_name,
    )


def _skip_table_word(cursor: Cursor) -> None:
    if cursor.word == "TABLE" and cursor.is_name(cursor.after()):
        cursor.index += 1


def _insert_columns(cursor: Cursor) -> tuple[str, ...] | None:
    is_query = cursor.after().value == "(" or starts_query(cursor.tokens, cursor.index + 1)
    if cursor.word != "(" or is_query:
        return None
    return cursor.name_list()


def _partition(cursor: Cursor) -> tuple[PartitionValue, ...]:
    if not cursor.at("PARTITION", "("):
        return ()
    cursor.index += 2
    values = [_partition_value(cursor)]
    while cursor.accept(","):
        values.append(_partition_value(cursor))
    cursor.expect(")")
    return tuple(values)


def _partition_value(cursor: Cursor) -> PartitionValue:
    column = cursor.identifier("a column")
    if cursor.accept("=") or cursor.accept("=="):
        return PartitionValue(column=column, value=cursor.expression(what="a value"))
    return PartitionValue(column=column, value=None)


def _refuse_default_rows(cursor: Cursor) -> None:
    """Refuse DEFAULT as a value of VALUES, where Spark would look for a column."""
    first, last = cursor.token.start, cursor.tokens[-1].start
    if cursor.word != "VALUES" or "DEFAULT" not in cursor.text[first:last].upper():
        return
    # A statement's own tokens join the rows of VALUES, which may be many
    values = tokens(cursor.text, first, last)
    for before, token, after in zip(values, values[1:], values[2:], strict=False):
        is_alone = before.value in ("VALUES", "(", ",") and after.value in ("", ")", ",")
        if token.value == "DEFAULT" and is_alone:
            raise cursor.refusal(
                "DEFAULT is not supported as a value; leave the column out of the list of columns, "
                "INSERT INTO t (a, b) VALUES .., and it gets its default",
                token.start,
            )


def _refuse_default(cursor: Cursor, value: Slice) -> None:
    """Refuse DEFAULT as the new value of a column."""
    if value.text.upper() == "DEFAULT":
        raise cursor.refusal(
            "DEFAULT is not supported as a value; write the value itself, or a column of this name "
            "in backticks",
            value.offset,
        )


def _insert_replace_where(cursor: Cursor, table: TableName) -> InsertReplaceWhere:
    cursor.expect("WHERE")
    first = cursor.index
    where = cursor.expression(_QUERY_STOPS, "a condition")
    after_where = cursor.index
    in_where = scan(cursor, first, after_where)
    cursor.index = after_where
    _refuse_default_rows(cursor)
    query, in_query = _query_to_end(cursor)
    return InsertReplaceWhere(
        text=_whole(cursor),
        references=(*in_where, *in_query),
        table=table,
        where=where,
        query=query,
    )


def _update(cursor: Cursor) -> Update:
    cursor.expect("UPDATE")
    target = _target(cursor, "SET", "a column")
    first = cursor.index
    cursor.expect("SET")
    assignments = _assignments(cursor, {"WHERE"})
    where = _where(cursor)
    return Update(
        text=_whole(cursor),
        references=_references(cursor, first),
        target=target,
        assignments=assignments,
        where=where,
    )


def _target(cursor: Cursor, keyword: str, what: str) -> Target:
    """Read the table that a statement changes, up to a keyword before something."""
    table = cursor.table_name()
    if cursor.word == keyword and cursor.after().kind == END:
        # Spark reads this keyword as an alias: DELETE FROM t WHERE deletes every row
        raise cursor.error(what, cursor.after())
    if cursor.travel() is not None:
        raise cursor.refusal("an older version of a table cannot be changed", table.slice.end)
    return Target(table=table, alias=cursor.target_alias())


def _assignments(cursor: Cursor, stops: set[str]) -> tuple[Assignment, ...]:
    assignments = [_assignment(cursor, stops)]
    while cursor.accept(","):
        assignments.append(_assignment(cursor, stops))
    return tuple(assignments)


def _assignment(cursor: Cursor, stops: set[str]) -> Assignment:
    first = cursor.index
    column = cursor.names("a column")
    if not cursor.accept("=="):
        cursor.expect("=")
    value = cursor.expression(stops)
    _refuse_default(cursor, value)
    return Assignment(column=column, value=value, slice=cursor.slice_from(first))


def _where(cursor: Cursor) -> Slice | None:
    if not cursor.accept("WHERE"):
        return None
    return cursor.expression(what="a condition")


def _delete(cursor: Cursor) -> Delete:
    cursor.expect("DELETE", "FROM")
    target = _target(cursor, "WHERE", "a condition")
    first = cursor.index
    where = _where(cursor)
    return Delete(
        text=_whole(cursor),
        references=_references(cursor, first),
        target=target,
        where=where,
    )


# MERGE


def _merge(cursor: Cursor) -> Merge:
    cursor.expect("MERGE")
    evolves = cursor.accept("WITH", "SCHEMA", "EVOLUTION")
    cursor.expect("INTO")
    target = _target(cursor, "USING", "a table or a query in parentheses")
    cursor.expect("USING")
    first = cursor.index
    source_table, source_query, alias = _merge_source(cursor)
    after_source = cursor.index
    cursor.expect("ON")
    on = cursor.expression({"WHEN"}, "a condition")
    clauses = []
    while cursor.word == "WHEN":
        clauses.append(_merge_clause(cursor))
    if not clauses:
        raise cursor.error("WHEN MATCHED or WHEN NOT MATCHED")
    if cursor.token.kind != END:
        raise cursor.error("WHEN or the end of the statement")
    _check_conditions(cursor, clauses)
    references = _references(cursor, first if source_query else after_source)
    if source_table is not None:
        references = (source_table, *references)
    return Merge(
        text=_whole(cursor),
        references=references,
        target=target,
        on=on,
        clauses=tuple(clauses),
        source_table=source_table,
        source_query=source_query,
        source_alias=alias,
        with_schema_evolution=evolves,
    )


def _merge_source(cursor: Cursor) -> tuple[Reference | None, Slice | None, str | None]:
    if cursor.word == "(":
        query = cursor.parenthesised()
        return None, query, cursor.target_alias()
    reference = cursor.reference()
    if reference.alias is not None and cursor.tokens[cursor.index - 1].value == ")":
        raise cursor.refusal(
            f"the alias {reference.alias} cannot have a list of columns here", reference.alias_at
        )
    return reference, None, reference.alias


def _merge_clause(cursor: Cursor) -> MergeClause:
    first = cursor.index
    cursor.expect("WHEN")
    kind = _merge_kind(cursor)
    condition = cursor.expression({"THEN"}, "a condition") if cursor.accept("AND") else None
    cursor.expect("THEN")
    actions = "INSERT" if kind == "not_matched" else "UPDATE or DELETE"
    if cursor.word not in actions.split(" or "):
        raise cursor.error(actions)
    details: dict[str, Any] = _MERGE_ACTIONS[cursor.word](cursor)
    if details["action"] == "update_all" and kind == "not_matched_by_source":
        raise cursor.refusal(
            "UPDATE * has no source row in WHEN NOT MATCHED BY SOURCE; set columns by name",
            cursor.tokens[first].start,
        )
    return MergeClause(kind=kind, condition=condition, slice=cursor.slice_from(first), **details)


def _merge_kind(cursor: Cursor) -> Literal["matched", "not_matched", "not_matched_by_source"]:
    is_not = cursor.accept("NOT") or cursor.accept("!")
    cursor.expect("MATCHED")
    if not is_not:
        return "matched"
    if cursor.accept("BY", "SOURCE"):
        return "not_matched_by_source"
    cursor.accept("BY", "TARGET")
    return "not_matched"


def _merge_update(cursor: Cursor) -> dict[str, Any]:
    cursor.expect("UPDATE")
    if cursor.accept("*") or cursor.accept("SET", "*"):
        return {"action": "update_all"}
    cursor.expect("SET")
    return {"action": "update", "assignments": _assignments(cursor, {"WHEN"})}


def _merge_delete(cursor: Cursor) -> dict[str, Any]:
    cursor.expect("DELETE")
    return {"action": "delete"}


def _merge_insert(cursor: Cursor) -> dict[str, Any]:
    cursor.expect("INSERT")
    if cursor.accept("*"):
        return {"action": "insert_all"}
    cursor.expect("(")
    columns = [cursor.names("a column")]
    while cursor.accept(","):
        columns.append(cursor.names("a column"))
    cursor.expect(")", "VALUES")
    if cursor.word != "(":
        raise cursor.error("(")
    opener = cursor.index
    values = cursor.separated(opener)
    if len(values) != len(columns):
        raise cursor.refusal(f"INSERT names {len(columns)} columns, but has {len(values)} values")
    for value in values:
        _refuse_default(cursor, value)
    cursor.index = cursor.closers[opener] + 1
    return {"action": "insert", "columns": tuple(columns), "values": values}


_MERGE_ACTIONS = {"UPDATE": _merge_update, "DELETE": _merge_delete, "INSERT": _merge_insert}


def _check_conditions(cursor: Cursor, clauses: list[MergeClause]) -> None:
    """Refuse a clause after an unconditional one of its kind: it would never apply."""
    unconditional: set[str] = set()
    for clause in clauses:
        if clause.kind in unconditional:
            raise cursor.refusal(
                "an earlier clause of this kind has no condition, so this one never applies;"
                " give the earlier one a condition, or remove this one",
                clause.slice.offset,
            )
        if clause.condition is None:
            unconditional.add(clause.kind)


# Tables


def _drop(cursor: Cursor) -> DropTable | None:
    if not cursor.accept("DROP", "TABLE"):
        return None
    if_exists = cursor.accept("IF", "EXISTS")
    table = cursor.table_name()
    purge = cursor.accept("PURGE")
    return DropTable(text=_whole(cursor), table=table, if_exists=if_exists, purge=purge)


def _show(cursor: Cursor) -> Statement | None:
    text = _whole(cursor)
    if cursor.accept("SHOW", "CREATE", "TABLE"):
        table = cursor.table_name()
        return None if cursor.word == "AS" else ShowCreateTable(text=text, table=table)
    if cursor.accept("SHOW", "TBLPROPERTIES"):
        table = cursor.table_name()
        key = None
        if cursor.accept("("):
            key = ".".join(cursor.names()) if cursor.is_name() else cursor.string("a property")
            cursor.expect(")")
        return ShowProperties(text=text, table=table, key=key)
    if cursor.accept("SHOW", "TABLES"):
        namespace, like = _listed(cursor)
        return ShowTables(text=text, namespace=namespace, like=like)
    if any(cursor.accept("SHOW", word) for word in ("NAMESPACES", "SCHEMAS", "DATABASES")):
        namespace, like = _listed(cursor)
        return ShowNamespaces(text=text, namespace=namespace, like=like)
    return None


def _listed(cursor: Cursor) -> tuple[TableName | None, str | None]:
    """Read the namespace to list and the pattern of names: `IN lake.shop LIKE 'a*'`."""
    namespace = None
    if cursor.accept("IN") or cursor.accept("FROM"):
        namespace = cursor.table_name("the name of a namespace")
    has_pattern = cursor.accept("LIKE") or cursor.token.kind != END
    like = cursor.string("a pattern in quotes") if has_pattern else None
    return namespace, like


def _describe(cursor: Cursor) -> Statement | None:
    text = _whole(cursor)
    cursor.index += 1
    if cursor.word == "HISTORY" and cursor.is_name(cursor.after()):
        cursor.index += 1
        table = cursor.table_name()
        limit = cursor.whole_number("a number of rows") if cursor.accept("LIMIT") else None
        return DescribeHistory(text=text, table=table, limit=limit)
    is_other = cursor.word in _DESCRIBED and cursor.is_name(cursor.after())
    if is_other or cursor.word == "(" or _is_query_after_describe(cursor):
        return None
    _skip_table_word(cursor)
    extended = False
    if cursor.word in ("EXTENDED", "FORMATTED") and cursor.is_name(cursor.after()):
        extended = True
        cursor.index += 1
    table = cursor.table_name()
    if cursor.word in ("PARTITION", "AS"):
        return None
    column = cursor.names("a column") if cursor.is_name() else None
    return DescribeTable(text=text, table=table, extended=extended, column=column)


def _is_query_after_describe(cursor: Cursor) -> bool:
    return cursor.word != "TABLE" and starts_query(cursor.tokens, cursor.index)


def _restore(cursor: Cursor) -> Restore:
    cursor.expect("RESTORE")
    _skip_table_word(cursor)
    table = cursor.table_name()
    cursor.accept("TO")
    travel = cursor.as_of()
    return Restore(text=_whole(cursor), table=table, travel=travel)


def _call(cursor: Cursor) -> Call:
    cursor.expect("CALL")
    procedure = cursor.table_name("the name of a procedure")
    first = cursor.index
    cursor.expect("(")
    arguments: list[Argument] = []
    while not cursor.accept(")"):
        if arguments:
            cursor.expect(",")
        arguments.append(_argument(cursor))
    return Call(
        text=_whole(cursor),
        references=_references(cursor, first),
        procedure=procedure,
        arguments=tuple(arguments),
    )


def _argument(cursor: Cursor) -> Argument:
    name = None
    if cursor.is_name() and cursor.after().value == "=>":
        name = cursor.identifier()
        cursor.index += 1
    return Argument(value=cursor.expression(what="a value"), name=name)


def _create(cursor: Cursor) -> Statement | None:
    return create_table(cursor, _query_to_end)


# Everything else


def _other(cursor: Cursor) -> Other:
    references: list[Reference] = []
    query = _first_query(cursor)
    stop = len(cursor.tokens) - 1
    if query is not None:
        references = scan(cursor, query, stop, mode=START)
    return Other(
        text=_whole(cursor),
        references=tuple(references),
        names=tuple(_names(cursor)),
        hint=hint_for(cursor),
        namespace=_namespace(cursor),
    )


def _first_query(cursor: Cursor) -> int | None:
    first = cursor.tokens[0].value
    begins = {"SELECT", "WITH", "VALUES"} | ({"FROM"} if first in _AROUND_QUERIES else set())
    index = 0
    while cursor.tokens[index].kind != END:
        if cursor.tokens[index].value in begins and starts_query(cursor.tokens, index):
            return index
        # A script has queries in any place; a query in brackets begins there
        if cursor.tokens[index].value == "(" and starts_query(cursor.tokens, index + 1):
            return index
        index = cursor.closers.get(index, index) + 1
    return None


def _namespace(cursor: Cursor) -> TableName | None:
    """Return the namespace that a USE names, or a SHOW after IN or FROM."""
    cursor.index = 0
    index = 1
    if cursor.word == "SHOW":
        while cursor.tokens[index].kind != END and cursor.tokens[index].value not in ("IN", "FROM"):
            index += 1
        index += 1
    elif cursor.word != "USE":
        return None
    elif cursor.after().value in NAMESPACES and cursor.is_name(cursor.after(2)):
        index = 2
    if index >= len(cursor.tokens) or not cursor.is_name(cursor.tokens[index]):
        return None
    cursor.index = index
    try:
        return cursor.table_name()
    except InvalidInputError:
        return None


def _names(cursor: Cursor) -> list[TableName]:
    """Return the names of several parts, and single ones after TABLE and the like."""
    names = []
    cursor.index = 0
    last = len(cursor.tokens) - 1
    while cursor.index < last:
        before = cursor.tokens[cursor.index - 1].value if cursor.index else ""
        if not cursor.is_name() or before == ".":
            cursor.index += 1
            continue
        is_single = cursor.after().value != "."
        if is_single and (before not in _BEFORE_A_TABLE or cursor.word in _BEFORE_A_TABLE | {"IF"}):
            cursor.index += 1
            continue
        try:
            names.append(cursor.table_name())
        except InvalidInputError:
            # `a.*` and `a.b.` are names of no table
            cursor.index += 1
    return names


_READERS: dict[str, Callable[[Cursor], Statement | None]] = {
    "ALTER": alter_table,
    "CALL": _call,
    "CREATE": _create,
    "DELETE": _delete,
    "DESC": _describe,
    "DESCRIBE": _describe,
    "DROP": _drop,
    "FROM": _query,
    "INSERT": _insert,
    "MAP": _query,
    "MERGE": _merge,
    "REDUCE": _query,
    "REPLACE": _create,
    "RESTORE": _restore,
    "SELECT": _query,
    "SHOW": _show,
    "TABLE": _query,
    "UPDATE": _update,
    "VALUES": _query,
    "WITH": _query,
    "(": _query,
}
