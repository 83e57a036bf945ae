"""The scope of expressions in a statement: the columns of the table, and those of the source.

Rows of a statement have more columns, such as row ids. In a text `*` becomes the names of columns
before Spark sees it, and a name of the format is refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column

from opal_lake.definition.schema import RESERVED_PREFIX
from opal_lake.errors import InvalidInputError
from opal_lake.read.statement import Clause, StatementPlan
from opal_lake.sql.cursor import Cursor, starts_query
from opal_lake.sql.lexer import END, Token, identifier_value, tokens
from opal_spark.engine.columns import quoted
from opal_spark.read.statement_text import SqlText, in_format

# The columns of each side that an expression sees, by the name of the side
Sides = Mapping[str, Sequence[str]]

_STAR_ENDS = frozenset({",", ")", "EXCEPT"})
# How Spark shows a Column that stands for all columns
_STAR_OF_COLUMN = re.compile(r"unresolvedstar\(|(?:'|[(,.] ?)\*(?=[,)'.]|$)")


def with_scope(plan: StatementPlan, source: Sequence[str] | None) -> StatementPlan:
    """Return a plan whose texts read nothing but the columns of its sides.

    `source` are the columns of the source, None without one. Raises InvalidInputError for
    expressions that read other columns of the rows, such as row ids.
    """
    # The column of commit times is read only by its name
    target = {plan.target: [field.name for field in plan.spec.schema.own_fields]}
    others = {} if source is None else {plan.other: source}
    sides_of: dict[str, Sides] = {
        "matched": target | others,
        "not matched": others,
        "not matched by source": target,
    }
    clauses = [_clause_in(clause, sides_of[clause.when]) for clause in plan.clauses]
    scoped = replace(plan, clauses=clauses, on=_in_scope(plan.on, target | others))
    if plan.region is None:
        return scoped
    return replace(scoped, region=replace(plan.region, where=_in_scope(plan.region.where, target)))


def _clause_in(clause: Clause, sides: Sides) -> Clause:
    values = clause.values
    if values is not None:
        values = {name: _in_scope(value, sides) for name, value in values.items()}
    return replace(clause, where=_in_scope(clause.where, sides), values=values)


def _in_scope(given: Any, sides: Sides) -> Any:
    """Return a condition or value that sees the sides alone."""
    match given:
        case str():
            return text_in_scope(given, sides)
        case SqlText():
            # Braces of its text are doubled
            in_text: dict[str, Sequence[str]] = {}
            for side, names in sides.items():
                in_text[in_format(side)] = [in_format(name) for name in names]
            text = text_in_scope(given.text, in_text)
            return replace(given, text=text, plain=_in_scope(given.plain, sides))
        case Column():
            _check_column(given)
    return given


def _check_column(given: Column) -> None:
    shown = str(given)
    if RESERVED_PREFIX in shown.casefold():
        raise _reserved(shown)
    if _STAR_OF_COLUMN.search(shown) is not None:
        raise InvalidInputError(
            f"{shown} stands for all columns: a Column of a statement names each column; list "
            "them, or write the expression as a text"
        )


def text_in_scope(text: str, sides: Sides) -> str:
    """Return an expression with the names of columns in place of `*`.

    `t.*` stands for the columns of one side, and `* EXCEPT (a)` leaves columns out. In a subquery
    a `*` is of the subquery's tables, and stays.
    """
    if "*" not in text and RESERVED_PREFIX not in text.casefold():
        return text
    try:
        cursor = Cursor(text, tokens(text))
    except InvalidInputError:
        # Spark reports what is wrong with the text
        return text
    for token in cursor.tokens:
        name = identifier_value(text, token) if cursor.is_name(token) else ""
        if name.casefold().startswith(RESERVED_PREFIX):
            raise _reserved(name)
    parts: list[str] = []
    position = 0
    for first, star in _stars(cursor):
        names = _names_of(cursor, first, star, sides)
        if names is None:
            continue
        names_left, last = _without_excepted(cursor, star, names)
        parts += [text[position : cursor.tokens[first].start], ", ".join(names_left)]
        position = cursor.tokens[last].end
    return "".join([*parts, text[position:]])


def _reserved(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"an expression reads {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved for "
        "the format; name a column of the table"
    )


def _stars(cursor: Cursor) -> Iterator[tuple[int, int]]:
    """Yield the first and the last token of each `*` and `t.*` outside of subqueries."""
    all_tokens = cursor.tokens
    index = 0
    while all_tokens[index].kind != END:
        token = all_tokens[index]
        if token.value == "(" and starts_query(all_tokens, index + 1):
            index = cursor.closers[index]
        elif token.value == "*" and index and _ends_star(all_tokens[index + 1]):
            before = all_tokens[index - 1].value
            if before in ("(", ","):
                yield index, index
            elif before == "." and index >= 2 and _is_first_part(all_tokens, index - 2):
                yield index - 2, index
        index += 1


def _ends_star(token: Token) -> bool:
    return token.kind == END or token.value in _STAR_ENDS


def _is_first_part(all_tokens: Sequence[Token], index: int) -> bool:
    return index == 0 or all_tokens[index - 1].value != "."


def _names_of(cursor: Cursor, first: int, star: int, sides: Sides) -> dict[str, str] | None:
    """Return the columns of a star as SQL, each with its folded name.

    None if the part before the star is not a side, but a struct.
    """
    own = dict(sides)
    if first < star:
        named = identifier_value(cursor.text, cursor.tokens[first]).casefold()
        own = {side: names for side, names in sides.items() if side.casefold() == named}
        if not own:
            return None
    columns: dict[str, str] = {}
    for side, names in own.items():
        for name in names:
            column = f"{quoted(side)}.{quoted(name)}"
            columns[column] = name.casefold()
    return columns


def _without_excepted(cursor: Cursor, star: int, columns: dict[str, str]) -> tuple[list[str], int]:
    """Return the columns without those of an EXCEPT, and the last token of the star."""
    if cursor.tokens[star + 1].value != "EXCEPT" or cursor.tokens[star + 2].value != "(":
        return [*columns], star
    cursor.index = star + 2
    left_out = {name.casefold() for name in cursor.name_list("a column")}
    unknown = sorted(left_out - {*columns.values()})
    if unknown:
        raise InvalidInputError(
            f"EXCEPT names {unknown[0]!r}, which is not one of the columns; they are "
            f"{', '.join(columns)}"
        )
    return [column for column, name in columns.items() if name not in left_out], cursor.index - 1
