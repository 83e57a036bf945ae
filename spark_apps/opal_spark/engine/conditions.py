"""Conditions as Spark columns, with the meaning of `opal_lake.definition.conditions.evaluate`.

No setting of the session changes the meaning: all types are explicit, no text is cast to another
type, no time has a zone, and a division is guarded by ourselves. Only public functions are used.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from operator import and_, or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.definition.conditions.condition import SOME_ROW, Condition
from opal_lake.definition.conditions.kinds import DOUBLE, STRING, Kind
from opal_lake.definition.conditions.like import Pattern
from opal_lake.definition.conditions.nodes import (
    Among,
    Apply,
    Compute,
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
    may_fail,
    parts_of,
)
from opal_lake.definition.generated import GeneratedColumn
from opal_spark.engine.columns import quoted, spark_field_type

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US = 86_400_000_000
_LOWER, _UPPER = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NEGATED_DIGITS = 34


def holds(condition: Condition) -> Column:
    """Return the column that is true where a condition is, and otherwise false.

    In a row for which the condition divides by zero, the query fails with the condition's message.
    """
    return F.coalesce(answers(condition), F.lit(False))


def answers(condition: Condition) -> Column:
    """Return the column that is true, false or null as the condition is.

    Failures are tested before the value and apart from it: Spark would not evaluate a divisor if
    the other side of a comparison is null.
    """
    translation = _Translation()
    value = translation.of(condition.typed)
    failed = translation.failed(condition.typed)
    if failed is None:
        return value
    message = F.lit(condition.failure_in(SOME_ROW))
    failure = F.raise_error(message).cast(T.BooleanType())
    return F.when(failed, failure).otherwise(value)


def generated_value(column: GeneratedColumn) -> Column:
    """Return the given value of a generated column, or for null the computed one."""
    # The expression never divides by what may be zero, and is NULL nowhere
    typed = column.expression.typed
    assert typed is not None
    computed = _Translation().of(typed).cast(spark_field_type(column.field))
    return F.coalesce(F.col(quoted(column.field.name)), computed)


def filtered(rows: DataFrame, condition: Condition) -> DataFrame:
    """Return the rows for which the condition is true."""
    return rows.where(answers(condition))


class _Translation:
    """The translation of a condition's nodes to Spark columns.

    `of` gives a node's value, which is null for a division by zero. `failed` reports the division.
    """

    def of(self, node: Typed) -> Column:
        match node:
            case Read():
                column = F.col(".".join(quoted(name) for name in node.path))
                # A cast to the same type is free; a text of another collation needs the cast
                if node.kind == STRING:
                    column = column.cast(T.StringType())
                return column
            case Constant():
                return constant(node)
            case Widen():
                return self.of(node.value).cast(spark_type(node.kind))
            case Every() | Some():
                join = and_ if isinstance(node, Every) else or_
                return _joined(join, [self.of(part) for part in node.parts])
            case Test():
                return _TESTS[node.op](self.of(node.left), self.of(node.right))
            case Compute():
                return self._compute(node)
            case Apply():
                return _applied(node, [self.of(argument) for argument in node.arguments])
        return self._answer(node)

    def failed(self, node: Typed) -> Column | None:
        """Return the column that is true in rows for which the node divides by zero.

        None if the node cannot divide by zero.
        """
        if not may_fail(node):
            return None
        match node:
            case Every() | Some():
                is_open = _is_not_false if isinstance(node, Every) else _is_not_true
                return self._failed_in_order(node.parts, is_open)
            case Apply(name="coalesce"):
                return self._failed_in_order(node.arguments, Column.isNull)
        failures = [self.failed(part) for part in parts_of(node)]
        possible_failures = [failure for failure in failures if failure is not None]
        if isinstance(node, Compute) and node.op in ("/", "%"):
            zero = F.lit(0).cast(spark_type(node.right.kind))
            is_zero = self.of(node.right) == zero
            possible_failures.append(F.coalesce(is_zero, F.lit(False)))
        return _joined(or_, possible_failures)

    def _failed_in_order(
        self, parts: Sequence[Typed], is_open: Callable[[Column], Column]
    ) -> Column | None:
        """Return the column that is true in rows for which an evaluated part fails.

        A part is evaluated only if all parts before it leave the answer open. Parts that never
        fail are joined to one condition, so the column's depth grows with the divisions, not with
        the parts.
        """
        # From the last part to the first: `later_failed` is the failure of the parts after this
        # one, `open_parts` are the conditions under which these parts are evaluated
        later_failed: Column | None = None
        open_parts: list[Column] = []
        for part in reversed(parts):
            part_failed = self.failed(part)
            if later_failed is not None:
                open_parts.insert(0, is_open(self.of(part)))
            if part_failed is None:
                continue
            if later_failed is not None:
                part_failed = part_failed | (_joined(and_, open_parts) & later_failed)
            later_failed = part_failed
            open_parts = []
        if later_failed is None or not open_parts:
            return later_failed
        return _joined(and_, open_parts) & later_failed

    def _answer(self, node: Typed) -> Column:
        match node:
            case Among():
                return _among(self.of(node.value), node)
            case Matches():
                return _matches(self.of(node.value), node.pattern)
            case Missing():
                return self.of(node.value).isNull()
            case Truth():
                return self.of(node.value).eqNullSafe(F.lit(node.truth))
            case Opposite():
                return ~self.of(node.value)
        raise AssertionError(node)

    def _compute(self, node: Compute) -> Column:
        left, right = self.of(node.left), self.of(node.right)
        if node.op in ("/", "%"):
            # Null for a divisor of zero
            zero = F.lit(0).cast(spark_type(node.right.kind))
            right = F.when(right != zero, right)
        result = _OPERATIONS[node.op](left, right)
        return result.cast(spark_type(node.kind))


def _is_not_false(truth: Column) -> Column:
    return F.coalesce(truth, F.lit(True))


def _is_not_true(truth: Column) -> Column:
    return ~F.coalesce(truth, F.lit(False))


def _joined(join: Callable[[Column, Column], Column], columns: Sequence[Column]) -> Column:
    """Join columns in their order, as a balanced tree: Spark's stack bounds the depth."""
    if len(columns) == 1:
        return columns[0]
    half = len(columns) // 2
    return join(_joined(join, columns[:half]), _joined(join, columns[half:]))


def spark_type(kind: Kind) -> T.DataType:
    """Return Spark's type of a kind."""
    if kind.name == "decimal":
        return T.DecimalType(kind.precision, kind.scale)
    return _TYPES[kind.name]


def constant(node: Constant) -> Column:
    """Return a literal of a constant's type and value, in any session."""
    match node.value:
        case bool():
            return F.lit(node.value)
        case str():
            return F.lit(node.value)
        case bytes():
            return F.unhex(F.lit(node.value.hex()))
        case float():
            return F.lit(node.value)
        case datetime():
            return _time(node.value)
        case date():
            days = node.value.toordinal() - _EPOCH.toordinal()
            return F.date_from_unix_date(F.lit(days))
        case int() if node.kind.is_integer:
            return F.lit(node.value).cast(spark_type(node.kind))
        case int() | Decimal():
            digits = format(Decimal(node.value), "f")
            return F.lit(digits).cast(spark_type(node.kind))
    raise AssertionError(node)


def _time(value: datetime) -> Column:
    if value.tzinfo is None:
        text = value.isoformat(sep=" ", timespec="microseconds")
        return F.lit(text).cast(T.TimestampNTZType())
    since = value - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return F.timestamp_micros(F.lit(micros).cast(T.LongType()))


def _among(value: Column, node: Among) -> Column:
    kind = node.value.kind
    # Plain values if possible: with thousands of members, a Column for each costs a millisecond
    values: list[Any] = [member.value for member in node.members]
    if kind == DOUBLE:
        # Spark's sets distinguish -0.0 from 0.0: adding 0.0 makes both the positive one
        return (value + F.lit(0.0)).isin([number + 0.0 for number in values])
    if kind == STRING or kind.is_integer:
        return value.isin(values)
    return value.isin([constant(member) for member in node.members])


def _matches(value: Column, pattern: Pattern) -> Column:
    text = partial(Constant, kind=STRING)
    if pattern.exact is not None:
        return value == constant(text(value=pattern.exact))
    if pattern.is_prefix_alone:
        return value.startswith(constant(text(value=pattern.prefix)))
    return value.rlike(pattern.regex(backtracks=True))


def _applied(node: Apply, arguments: list[Column]) -> Column:
    if node.name == "date":
        return _day(arguments[0], node.arguments[0].kind)
    if node.name in ("abs", "negative") and node.kind.precision > _NEGATED_DIGITS:
        return _signed(node, arguments[0])
    return _FUNCTIONS[node.name](*arguments)


def _signed(node: Apply, number: Column) -> Column:
    # Spark negates decimals in 34 digits, and silently rounds longer ones. So change the text.
    digits = number.cast(T.StringType())
    if node.name == "abs":
        return F.regexp_replace(digits, "^-", "").cast(spark_type(node.kind))
    negated = F.regexp_replace(F.concat(F.lit("-"), digits), "^--", "")
    return negated.cast(spark_type(node.kind))


def _day(time: Column, kind: Kind) -> Column:
    """Return the day of a time, in UTC for a time with a zone."""
    if kind.name == "timestamp_ntz":
        return time.cast(T.DateType())
    # A cast of a time with a zone would give the day in the session's zone
    micros, day_us = F.unix_micros(time), F.lit(_DAY_US)
    # `div` rounds towards zero: for a time before 1970 within a day that is one day too late
    is_rounded_up = F.when(micros % day_us < 0, F.lit(1)).otherwise(F.lit(0))
    days = F.call_function("div", micros, day_us) - is_rounded_up
    return F.date_from_unix_date(days.cast("int"))


_TESTS: Mapping[str, Callable[[Column, Column], Column]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "<=>": lambda left, right: left.eqNullSafe(right),
}
_OPERATIONS: Mapping[str, Callable[[Column, Column], Column]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "%": lambda left, right: left % right,
}
_FUNCTIONS: Mapping[str, Callable[..., Column]] = {
    "abs": F.abs,
    "coalesce": F.coalesce,
    "concat": F.concat,
    "isnan": F.isnan,
    "length": F.length,
    "lower": lambda text: F.translate(text, _UPPER, _LOWER),
    "negative": lambda number: -number,
    "substring": lambda text, first, count=None: F.substr(text, first, count),
    "trim": F.trim,
    "upper": lambda text: F.translate(text, _LOWER, _UPPER),
}
_TYPES: Mapping[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "byte": T.ByteType(),
    "short": T.ShortType(),
    "integer": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
}
