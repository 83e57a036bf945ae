"""The part of a condition that the bounds of files can answer; the rows are tested in any case.

A row matches when the condition is true for it. A test that bounds say nothing about is Unknown.
"""

from datetime import date, datetime, timedelta
from decimal import Decimal

from opal_lake.data.bounds import next_text
from opal_lake.data.prune import (
    And,
    Comparable,
    Compare,
    In,
    IsNull,
    Operator,
    Or,
    Predicate,
    Unknown,
)
from opal_lake.definition.conditions.kinds import BOOLEAN, Kind
from opal_lake.definition.conditions.like import Pattern
from opal_lake.definition.conditions.nodes import (
    Among,
    Constant,
    Every,
    Matches,
    Missing,
    Opposite,
    Read,
    Some,
    Test,
    Truth,
    Typed,
    Widen,
)
from opal_lake.definition.conditions.tree import Value

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_NEGATED: dict[str, Operator] = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
_MIRRORED: dict[str, Operator] = {
    "=": "=",
    "!=": "!=",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}


def predicate_of(condition: Typed) -> Predicate:
    """Return the part of a condition that bounds can answer, as a predicate."""
    return _predicate(condition, negated=False)


def _predicate(node: Typed, *, negated: bool) -> Predicate:
    """Return the predicate of a node or of its negation: predicates have no Not."""
    match node:
        case Opposite():
            return _predicate(node.value, negated=not negated)
        case Every() | Some():
            parts = tuple(_predicate(part, negated=negated) for part in node.parts)
            # De Morgan: a negated AND is an OR of negated parts, and vice versa.
            is_and = isinstance(node, Every) != negated
            return And(parts=parts) if is_and else Or(parts=parts)
        case Constant(kind=kind) if kind == BOOLEAN:
            is_true = bool(node.value) != negated
            return And(parts=()) if is_true else Or(parts=())
        case Read(kind=kind) if kind == BOOLEAN and node.field_id is not None:
            return Compare(field_id=node.field_id, op="=", value=not negated)
        case Truth():
            # A value that is not true may be null; bounds say nothing about nulls of a test.
            if negated:
                return Unknown()
            return _predicate(node.value, negated=not node.truth)
    return _test(node, negated=negated)


def _test(node: Typed, *, negated: bool) -> Predicate:
    """Return the predicate of a test of one column; Unknown for any other node."""
    match node:
        case Missing():
            field_id = _column(node.value)
            if field_id is not None:
                return IsNull(field_id=field_id, negated=negated)
        case Test():
            return _compared(node, negated=negated)
        case Among():
            return _among(node, negated=negated)
        case Matches():
            field_id = _column(node.value)
            if field_id is not None:
                return _like(field_id, node.pattern, negated)
    return Unknown()


def _column(node: Typed) -> int | None:
    """Return the field id of a column, or of a column that is widened without loss.

    Return None for any other node.
    """
    while isinstance(node, Widen):
        is_exact = node.kind.is_exact or node.value.kind.is_binary_fraction
        if not is_exact:
            return None
        node = node.value
    return node.field_id if isinstance(node, Read) else None


def _compared(node: Test, *, negated: bool) -> Predicate:
    """Return the predicate of a comparison of a column with a constant, or Unknown."""
    left, op, right = node.left, node.op, node.right
    if isinstance(left, Constant):
        left, right = right, left
        op = _MIRRORED.get(op, op)
    field_id = _column(left)
    if field_id is None or not isinstance(right, Constant):
        return Unknown()
    value = _bound(right.value, right.kind)
    if op == "<=>":
        if not negated:
            return Compare(field_id=field_id, op="=", value=value)
        differs = Compare(field_id=field_id, op="!=", value=value)
        return Or(parts=(differs, IsNull(field_id=field_id)))
    opposite = _NEGATED[op]
    # The opposite of the opposite is `op` itself, with the type of a predicate's operator
    operator = opposite if negated else _NEGATED[opposite]
    return Compare(field_id=field_id, op=operator, value=value)


def _among(node: Among, *, negated: bool) -> Predicate:
    field_id = _column(node.value)
    if field_id is None:
        return Unknown()
    values = tuple(_bound(member.value, member.kind) for member in node.members)
    if not negated:
        return In(field_id=field_id, values=values)
    parts = [Compare(field_id=field_id, op="!=", value=value) for value in values]
    return And(parts=tuple(parts))


def _like(field_id: int, pattern: Pattern, negated: bool) -> Predicate:
    """Return whether a text has the exact text or the prefix of a pattern."""
    if pattern.exact is not None:
        op: Operator = "!=" if negated else "="
        return Compare(field_id=field_id, op=op, value=pattern.exact)
    prefix = pattern.prefix
    if not prefix or (negated and not pattern.is_prefix_alone):
        return Unknown()
    first_after_prefix = next_text(prefix)
    if negated:
        is_before = Compare(field_id=field_id, op="<", value=prefix)
        if first_after_prefix is None:
            return is_before
        is_after = Compare(field_id=field_id, op=">=", value=first_after_prefix)
        return Or(parts=(is_before, is_after))
    is_from_prefix = Compare(field_id=field_id, op=">=", value=prefix)
    if first_after_prefix is None:
        return is_from_prefix
    is_not_after = Compare(field_id=field_id, op="<", value=first_after_prefix)
    return And(parts=(is_from_prefix, is_not_after))


def _bound(value: Value, kind: Kind) -> Comparable:
    """Return a value in the form that bounds of a column have."""
    match value:
        case bool() | str() | float():
            return value
        case bytes():
            return value.hex()
        case datetime():
            return (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
        case date():
            return value.toordinal() - _EPOCH.toordinal()
        case int() | Decimal():
            return int(value) if kind.is_integer else Decimal(value)
    raise AssertionError(value)
