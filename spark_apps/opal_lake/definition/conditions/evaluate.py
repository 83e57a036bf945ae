"""Conditions over Arrow, with the meaning of `opal_spark.engine.conditions`.

A value comes with its failures: a mask of the rows that divide by zero. A row does not fail if its
answer does not need the value, for example if the left side of AND is false.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.definition.conditions.exact_numbers import nearest_doubles, remainders
from opal_lake.definition.conditions.kinds import DOUBLE, NESTED, Kind
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
)
from opal_lake.definition.schema import Atomic, arrow_type, atomic_name, type_name
from opal_lake.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answer of each row (true, false or null), and a mask of failed rows."""

    values: pa.BooleanArray
    failed: pa.BooleanArray | None


def evaluate_value(value: Typed, batch: pa.RecordBatch) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return the value of an expression for each row, and a mask of failed rows."""
    values = _Evaluation(batch).of(value)
    return _array(values.array, batch.num_rows), values.failed


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of a node, and a mask of failed rows.

    The values are an array, or the scalar of a constant. The mask has no nulls; it is None if no
    row failed.
    """

    array: Any
    failed: Any = None


def evaluate(condition: Typed, batch: pa.RecordBatch) -> Answers:
    """Return the answers for the rows of a batch that has the columns by their names."""
    values = _Evaluation(batch).of(condition)
    array = values.array
    if isinstance(array, pa.Scalar):
        array = pa.repeat(array, batch.num_rows)
    return Answers(values=array, failed=values.failed)


def arrow_of(kind: Kind) -> pa.DataType:
    """Return the Arrow type of a kind."""
    return arrow_type(Atomic(name=kind.atomic))


class _Evaluation:
    """The evaluation of nodes over one batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def of(self, node: Typed) -> _Values:
        match node:
            case Read():
                return _Values(_column(self._batch, node))
            case Constant():
                return _Values(pa.scalar(node.value, arrow_of(node.kind)))
            case Widen():
                inner = self.of(node.value)
                return _Values(_widened(inner.array, node.kind), inner.failed)
            case Every() | Some():
                return self._in_order(node)
            case Test():
                left, right = self.of(node.left), self.of(node.right)
                array = _test(node.op, left.array, right.array, node.left.kind)
                return _Values(array, _any(left.failed, right.failed))
            case Compute():
                return self._compute(node)
            case Apply():
                return self._apply(node)
        inner = self.of(node.value)
        array = _array(inner.array, self._batch.num_rows)
        return _Values(_answer(node, array), inner.failed)

    def _in_order(self, node: Every | Some) -> _Values:
        """Evaluate from the left: where a part decides, later ones cannot fail."""
        is_every = isinstance(node, Every)
        join = pc.and_kleene if is_every else pc.or_kleene
        so_far = self.of(node.parts[0])
        values, failed = so_far.array, so_far.failed
        for part in node.parts[1:]:
            more = self.of(part)
            if more.failed is not None:
                # False decides an AND, true an OR; null decides neither
                go_on = values if is_every else pc.invert(values)
                undecided = pc.fill_null(go_on, True)
                failed = _any(failed, pc.and_(more.failed, undecided))
            values = join(values, more.array)
        return _Values(values, failed)

    def _compute(self, node: Compute) -> _Values:
        left, right = self._operand(node, node.left), self._operand(node, node.right)
        failed = _any(left.failed, right.failed)
        if node.op not in ("/", "%"):
            array = _OPERATIONS[node.op](left.array, right.array, node.kind)
            return _Values(array, failed)
        divisor = _array(right.array, self._batch.num_rows)
        zero = Decimal(0) if pa.types.is_decimal(divisor.type) else 0
        is_zero = pc.fill_null(pc.equal(divisor, pa.scalar(zero, divisor.type)), False)
        # Arrow raises for the whole batch; these rows fail only where the answer needs them
        divisor = pc.if_else(is_zero, pa.scalar(None, divisor.type), divisor)
        dividend = _array(left.array, self._batch.num_rows)
        if node.op == "/":
            array = pc.divide(dividend, divisor)
        else:
            array = remainders(dividend, divisor, arrow_of(node.kind))
        return _Values(array, _any(failed, is_zero))

    def _operand(self, node: Compute, side: Typed) -> _Values:
        """Return an operand; the integers of a remainder are not widened to decimals.

        Remainders of integers are five times as fast.
        """
        if node.op == "%" and isinstance(side, Widen) and side.value.kind.is_integer:
            whole = self.of(side.value)
            return _Values(whole.array.cast(pa.int64()), whole.failed)
        return self.of(side)

    def _apply(self, node: Apply) -> _Values:
        arguments = [self.of(argument) for argument in node.arguments]
        if node.name == "coalesce":
            return _coalesced(arguments)
        failed = reduce(_any, (argument.failed for argument in arguments))
        arrays = [argument.array for argument in arguments]
        return _Values(_FUNCTIONS[node.name](*arrays), failed)


def _column(batch: pa.RecordBatch, read: Read) -> pa.Array:
    """Return a column in the type that the table has for it."""
    first, *members = read.path
    positions = batch.schema.get_all_field_indices(first)
    if len(positions) != 1:
        given = ", ".join(map(repr, batch.schema.names))
        raise InvalidInputError(
            f"the rows have {len(positions)} columns {first!r}, and a condition needs it; "
            f"they have {given}: give it once"
        )
    array = batch.column(positions[0])
    for name in members:
        # A column of nulls has no members; all of them are null
        if pa.types.is_null(array.type):
            break
        if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
            raise InvalidInputError(
                f"the rows have {type_name(array.type)} where the table has "
                f"{'.'.join(read.path)!r}, and a condition needs it; "
                "give the columns as the table has them"
            )
        array = pc.struct_field(array, name)
    return _typed(array, read)


def _typed(array: pa.Array, read: Read) -> pa.Array:
    if pa.types.is_null(array.type) and read.kind != NESTED:
        return pa.nulls(len(array), arrow_of(read.kind))
    if read.kind == NESTED or array.type == arrow_of(read.kind):
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    name = ".".join(read.path)
    is_nested = pa.types.is_nested(array.type)
    if is_nested or atomic_name(name, array.type) != read.kind.atomic:
        raise InvalidInputError(
            f"column {name!r} holds {type_name(array.type)} where the table has "
            f"{read.kind.shown}; cast it"
        )
    try:
        return array.cast(arrow_of(read.kind))
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"column {name!r} holds {type_name(array.type)} where the table has "
            f"{read.kind.shown}: {error}"
        ) from error


def _widened(array: Any, kind: Kind) -> Any:
    if kind != DOUBLE:
        return array.cast(arrow_of(kind))
    if pa.types.is_decimal(array.type):
        return nearest_doubles(array)
    return array.cast(pa.float64(), safe=False)


def _answer(node: Typed, array: Any) -> Any:
    """Return the answer of a test of one value, whose array is given."""
    match node:
        case Among():
            return _among(array, node)
        case Matches():
            return pc.match_substring_regex(array, node.pattern.regex(backtracks=False))
        case Missing():
            return pc.is_null(array)
        case Truth():
            return pc.fill_null(pc.equal(array, node.truth), False)
        case Opposite():
            return pc.invert(array)
    raise AssertionError(node)


def _among(array: pa.Array, node: Among) -> Any:
    members = pa.array([member.value for member in node.members], array.type)
    answers = pc.is_in(array, value_set=members)
    # `is_in` compares bits, by which the two zeros differ
    if pa.types.is_floating(array.type) and pc.any(pc.equal(members, 0.0)).as_py():
        is_zero = pc.fill_null(pc.equal(array, 0.0), False)
        answers = pc.or_(answers, is_zero)
    return pc.if_else(pc.is_null(array), pa.scalar(None, pa.bool_()), answers)


def _test(op: str, left: Any, right: Any, kind: Kind) -> Any:
    if op == "<=>":
        return _null_safe_equal(left, right, kind)
    if kind == DOUBLE:
        return _DOUBLE_TESTS[op](left, right)
    return _TESTS[op](left, right)


def _null_safe_equal(left: Any, right: Any, kind: Kind) -> Any:
    equal = pc.fill_null(_test("=", left, right, kind), False)
    return pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))


_TESTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def _double_equal(left: Any, right: Any) -> Any:
    """Return whether doubles are equal: NaN to NaN, and the zeros by IEEE 754."""
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _double_less(left: Any, right: Any) -> Any:
    """Return whether doubles are less; NaN is greater than all other values."""
    is_below_nan = pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left)))
    return pc.or_(pc.less(left, right), is_below_nan)


_DOUBLE_TESTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": _double_equal,
    "!=": lambda left, right: pc.invert(_double_equal(left, right)),
    "<": _double_less,
    "<=": lambda left, right: pc.invert(_double_less(right, left)),
    ">": lambda left, right: _double_less(right, left),
    ">=": lambda left, right: pc.invert(_double_less(left, right)),
}


def _product(left: Any, right: Any, kind: Kind) -> Any:
    """Return the product, in the kind of its digits."""
    if kind == DOUBLE:
        return pc.multiply(left, right)
    # Arrow gives a product of decimals one digit more, for which 38 may be too few
    wide_left = left.cast(pa.decimal256(left.type.precision, left.type.scale))
    wide_right = right.cast(pa.decimal256(right.type.precision, right.type.scale))
    product = pc.multiply(wide_left, wide_right)
    return product.cast(arrow_of(kind))


_OPERATIONS: Mapping[str, Callable[[Any, Any, Kind], Any]] = {
    "+": lambda left, right, kind: pc.add(left, right).cast(arrow_of(kind)),
    "-": lambda left, right, kind: pc.subtract(left, right).cast(arrow_of(kind)),
    "*": _product,
}


def _coalesced(arguments: list[_Values]) -> _Values:
    """Return the first values that are not null.

    A failure of an argument counts only if all arguments before it are null.
    """
    arrays = [argument.array for argument in arguments]
    failed, all_null = None, None
    for argument in arguments:
        counted = argument.failed
        if counted is not None and all_null is not None:
            counted = pc.and_(counted, all_null)
        failed = _any(failed, counted)
        is_null = pc.is_null(argument.array)
        all_null = is_null if all_null is None else pc.and_(all_null, is_null)
    return _Values(pc.coalesce(*arrays), failed)


def _joined(*texts: Any) -> Any:
    return pc.binary_join_element_wise(*texts, "", null_handling="emit_null")


def _part(text: Any, first: pa.Scalar, count: pa.Scalar | None = None) -> Any:
    # SQL counts characters from 1
    start = first.as_py() - 1
    if count is None:
        return pc.utf8_slice_codeunits(text, start)
    return pc.utf8_slice_codeunits(text, start, start + count.as_py())


def _day(times: Any) -> Any:
    """Return the day of timestamps: in UTC, or as written for timestamps without zone.

    Days before 1970 begin at midnight, too.
    """
    wall = pa.timestamp("us")
    if times.type != wall:
        # Through integers: a direct cast would convert the time to the zone of the type
        times = times.cast(pa.int64()).cast(wall)
    return pc.floor_temporal(times, unit="day").cast(pa.date32())


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": pc.abs,
    "concat": _joined,
    "date": _day,
    "isnan": lambda array: pc.fill_null(pc.is_nan(array), False),
    "length": pc.utf8_length,
    "lower": pc.ascii_lower,
    "negative": pc.negate,
    "substring": _part,
    "trim": lambda array: pc.utf8_trim(array, characters=" "),
    "upper": pc.ascii_upper,
}


def _array(value: Any, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


def _any(first: Any, second: Any) -> Any:
    """Return the rows that fail in one of two values; None stands for no row."""
    if first is None:
        return second
    if second is None:
        return first
    return pc.or_(first, second)
