"""SQL filters, as far as the bounds of files can answer them; Spark applies the whole filter in any case.

Whatever is not understood exactly is Unknown and prunes nothing: texts that Spark and sqlglot might read differently (backslashes, double
quotes), and literals that Spark would convert before it compares.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from opal_lake.data.prune import (
    And,
    IsNull,
    Operator,
    Or,
    Predicate,
    Unknown,
    among,
    begins_with,
    compare,
)
from opal_lake.errors import InvalidInputError
from opal_lake.spec.schema import Field
from opal_lake.spec.table_spec import TableSpec
from opal_spark.read.literal import LiteralReader

_COMPARISONS: dict[type[exp.Expr], Operator] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_NEGATED: dict[Operator, Operator] = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
_MIRRORED: dict[Operator, Operator] = {
    "=": "=",
    "!=": "!=",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
_IN = re.compile(r"\bIN\b", re.IGNORECASE)
_WILDCARDS = frozenset("%_")
_NO_COLUMNS = frozenset(
    {"current_time", "localtimestamp", "user", "current_user", "session_user"}
)  # functions that need no parentheses


def parse_predicate(sql: str, spec: TableSpec, *, session_zone: str) -> Predicate:
    """The part of the filter that file bounds can answer. Times without a zone are in the session's zone."""
    node = _parse(sql)
    try:
        if node is not None:
            return _Builder(
                spec=spec, literals=LiteralReader(sql=sql, session_zone=session_zone)
            ).build(node, negated=False)
    except RecursionError:  # as in _parse
        pass
    return Unknown()


def check_columns(sql: str, spec: TableSpec) -> None:
    """Checks a filter without Spark: fails for invalid SQL and for unknown columns, except those of a subquery."""
    try:
        node = _parsed(sql)
    except RecursionError:  # as in _parse
        return
    except SqlglotError as error:
        raise InvalidInputError(
            f"the filter {sql!r} is no condition in SQL{_where(error)}; write one as amount > 5"
        ) from error
    known = {name.casefold() for name in spec.schema.names} | _NO_COLUMNS
    for column in node.find_all(exp.Column) if node else ():
        name = column.parts[0].name
        if name.casefold() not in known and column.find_ancestor(exp.Query) is None:
            spec.schema.field(name)  # says that there is none


def _where(error: SqlglotError) -> str:
    """The place that the parser names, without its own names for what it misses."""
    found: Mapping[str, Any] = next(iter(getattr(error, "errors", ())), {})
    return (
        f": line {found['line']}, column {found['col']}"
        if found.get("line") and found.get("col")
        else ""
    )


def may_list_null(sql: str) -> bool:
    """Whether a list of IN might hold a null: unless all that is in it are literals."""
    if _IN.search(sql) is None:
        return False
    node = _parse(sql)
    return node is None or any(
        not _is_literal(member)
        for membership in node.find_all(exp.In)
        for member in membership.expressions
    )


def _is_literal(node: exp.Expr) -> bool:
    match node:
        case exp.Neg() | exp.Paren():
            return _is_literal(node.this)
        case exp.Cast(this=exp.Literal(is_string=False)):  # 5L
            return True
    return isinstance(node, exp.Literal | exp.Boolean | exp.HexString)


def _parse(sql: str) -> exp.Expr | None:
    """None for a filter that only Spark can parse, or report as invalid."""
    try:
        return _parsed(sql)
    except (SqlglotError, RecursionError):  # nested too deeply for us; Spark may still manage
        return None


def _parsed(sql: str) -> exp.Expr | None:
    nodes = sqlglot.Dialect.get_or_raise("spark").parse_into(exp.Condition, sql)
    return nodes[0] if len(nodes) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Turns syntax into predicates. `negated` asks for the predicate of NOT node, which is where the tree's missing Not goes."""

    spec: TableSpec
    literals: LiteralReader

    def build(self, node: exp.Expr, *, negated: bool) -> Predicate:
        match node:
            case exp.Paren():
                return self.build(node.this, negated=negated)
            case exp.Not():
                return self.build(node.this, negated=not negated)
            case exp.And() | exp.Or():
                parts = tuple(self.build(part, negated=negated) for part in node.flatten())
                return And(parts=parts) if isinstance(node, exp.And) != negated else Or(parts=parts)
            case exp.Boolean():
                return And(parts=()) if node.this != negated else Or(parts=())
            case exp.Column():
                field = self._column(node)
                return compare(field, "=", not negated) if field else Unknown()
        return self._build_test(node, negated=negated)

    def _build_test(self, node: exp.Expr, *, negated: bool) -> Predicate:
        match node:
            case exp.Between() if _has_only(node, "this", "low", "high"):
                return self._between(node, negated=negated)
            case exp.In() if _has_only(node, "this", "expressions"):
                return self._among(node, negated=negated)
            case exp.Is() if isinstance(node.expression, exp.Null):
                return self._is_null(node.this, negated=negated)
            case exp.NullSafeEQ():
                return self._null_safe(node, negated=negated)
            case exp.NullSafeNEQ():
                return self._null_safe(node, negated=not negated)
            case exp.Like() if _has_only(node, "this", "expression", "negate"):
                return self._like(node, negated=negated != bool(node.args.get("negate")))
            case exp.StartsWith():
                return self._begins_with(node.this, node.expression, negated=negated)
        op = _COMPARISONS.get(type(node))
        return (
            Unknown()
            if op is None
            else self._compare(node.this, _NEGATED[op] if negated else op, node.args["expression"])
        )

    def _compare(self, left: exp.Expr, op: Operator, right: exp.Expr) -> Predicate:
        if not isinstance(left, exp.Column):
            left, op, right = right, _MIRRORED[op], left
        field = self._column(left)
        value = self.literals.read(right, field) if field else None
        return Unknown() if field is None or value is None else compare(field, op, value)

    def _between(self, node: exp.Between, *, negated: bool) -> Predicate:
        low = self._compare(node.this, "<" if negated else ">=", node.args["low"])
        high = self._compare(node.this, ">" if negated else "<=", node.args["high"])
        return Or(parts=(low, high)) if negated else And(parts=(low, high))

    def _among(self, node: exp.In, *, negated: bool) -> Predicate:
        field = self._column(node.this)
        if field is None:
            return Unknown()
        # A null in the list makes no row match: with IN it adds nothing, with NOT IN it leaves nothing, for which Unknown is wide enough.
        given = [
            member for member in node.expressions if negated or not isinstance(member, exp.Null)
        ]
        values = [
            value
            for member in given
            if (value := self.literals.read(member, field, in_list=True)) is not None
        ]
        if len(values) < len(given):
            return Unknown()
        return (
            And(parts=tuple(compare(field, "!=", value) for value in values))
            if negated
            else among(field, values)
        )

    def _is_null(self, node: exp.Expr, *, negated: bool) -> Predicate:
        field = self._column(node)
        return IsNull(field_id=field.id, negated=negated) if field else Unknown()

    def _null_safe(self, node: exp.Expr, *, negated: bool) -> Predicate:
        left, right = node.this, node.args["expression"]
        column, other = (left, right) if isinstance(left, exp.Column) else (right, left)
        if isinstance(other, exp.Null):
            return self._is_null(column, negated=negated)
        equal = self._compare(column, "!=" if negated else "=", other)
        return Or(parts=(equal, self._is_null(column, negated=False))) if negated else equal

    def _like(self, node: exp.Like, *, negated: bool) -> Predicate:
        field, pattern = self._column(node.this), self.literals.read_text(node.expression)
        if field is None or pattern is None:
            return Unknown()
        if not _WILDCARDS & set(pattern):
            return self._compare(node.this, "!=" if negated else "=", node.expression)
        prefix = pattern.removesuffix("%")
        return (
            Unknown() if _WILDCARDS & set(prefix) else begins_with(field, prefix, negated=negated)
        )

    def _begins_with(self, column: exp.Expr, text: exp.Expr, *, negated: bool) -> Predicate:
        field, prefix = self._column(column), self.literals.read_text(text)
        return (
            Unknown()
            if field is None or prefix is None
            else begins_with(field, prefix, negated=negated)
        )

    def _column(self, node: exp.Expr) -> Field | None:
        if not (
            isinstance(node, exp.Column)
            and isinstance(node.this, exp.Identifier)
            and _has_only(node, "this")
        ):
            return None
        try:
            return self.spec.schema.field(node.name)
        except InvalidInputError:  # Spark says so itself
            return None


def _has_only(node: exp.Expr, *names: str) -> bool:
    """Arguments that we do not know change the meaning, as SYMMETRIC does of BETWEEN."""
    return all(name in names or not value for name, value in node.args.items())
