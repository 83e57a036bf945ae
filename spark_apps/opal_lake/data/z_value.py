"""The position of a row on the Z-order curve: the bits of its columns' ranks, interleaved.

The rank of a value is the number of knots that are not greater than it; null has rank 0. So every
type that compares has ranks. Knots are quantiles of a sample: equal parts of the curve hold equally
many rows, whatever the distribution. Ranks fill their bits from the top, so that a column of few
values counts as much as one of many. The lowest TIE_BITS of a position only separate rows of equal
ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.definition.schema import Atomic, Field
from opal_lake.definition.table_spec import TableSpec, refuse_text
from opal_lake.errors import InvalidInputError

MAX_COLUMNS = 8
TIE_BITS = 8
CELL_SHARE = 1.42  # of a file's rows: a cell with more is halved
_TOP_BIT = 62
# Bits of the rank of a single column, of one column among several, and of all columns together.
# Each bit is a step of a search in code that Java has to compile.
_MAX_BITS_ALONE, _MAX_BITS, _MAX_BITS_TOGETHER = 14, 10, 32
_Integers = npt.NDArray[np.int64]


def z_fields(spec: TableSpec, names: Sequence[str]) -> tuple[Field, ...]:
    """Return the columns to cluster by; raise InvalidInputError if they cannot be."""
    refuse_text("columns", names)
    if not 1 <= len(names) <= MAX_COLUMNS:
        raise InvalidInputError(
            f"Z-order takes 1 to {MAX_COLUMNS} columns, not {len(names)}; "
            "choose those that queries filter by most"
        )
    fields = tuple(spec.schema.field(name) for name in names)
    for field in fields:
        if not isinstance(field.type, Atomic):
            raise InvalidInputError(
                f"column {field.name!r} is nested and has no order; choose a column without parts"
            )
    if len({field.id for field in fields}) < len(fields):
        given = ", ".join(map(repr, names))
        raise InvalidInputError(f"columns {given} name a column twice; name each column once")
    return fields


def bits_of(columns: int) -> int:
    """Return the bits of each column's rank."""
    if columns == 1:
        return _MAX_BITS_ALONE
    return min(_MAX_BITS, _MAX_BITS_TOGETHER // columns)


def plan_knots(sample: pa.Array, bits: int) -> pa.Array:
    """Return up to 2^bits - 1 ascending values that divide a sample into equal parts."""
    valid = sample.drop_null()
    # By distinct value, ascending: its first position in the sample, and how often it occurs
    _, first, counts = np.unique(comparable(valid), return_index=True, return_counts=True)
    least_knot = np.arange(0)
    if sample.null_count and len(first):
        # The least value is a knot only if it separates values from nulls.
        least_knot = np.arange(1)
    further_knots = np.arange(1, len(first))
    max_further = (1 << bits) - 1 - len(least_knot)
    if len(further_knots) > max_further:
        rows_before = np.arange(1, max_further + 1) * len(valid) // (max_further + 1)
        rows_up_to_value = np.cumsum(counts)
        quantiles = np.unique(np.searchsorted(rows_up_to_value, rows_before, side="right"))
        further_knots = quantiles[quantiles > 0]
    chosen = np.concatenate([least_knot, further_knots])
    return valid.take(pa.array(first[chosen], pa.int64()))


def comparable(values: pa.Array) -> npt.NDArray[Any]:
    """Return values without nulls in a form that numpy orders as Spark does.

    NaN is the greatest number, and texts are ordered by their bytes.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        return _objects(values.to_pylist())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _objects(values.cast(pa.binary()).to_pylist())
    if pa.types.is_boolean(kind):
        return np.asarray(values.cast(pa.int8()))
    if pa.types.is_date(kind):
        return np.asarray(values.cast(pa.int32()))
    if pa.types.is_timestamp(kind):
        return np.asarray(values.cast(pa.int64()))
    return np.asarray(values)


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    """Return an array of Python objects: numpy itself would pad bytes to one width."""
    objects = np.empty(len(values), np.object_)
    objects[:] = values
    return objects


def ranks(values: pa.Array, knots: pa.Array) -> _Integers:
    """Return for each value the number of knots that are not greater; 0 for null."""
    result = np.zeros(len(values), np.int64)
    is_valid = np.asarray(values.is_valid())
    valid = comparable(values.drop_null())
    result[is_valid] = np.searchsorted(comparable(knots), valid, side="right")
    return result


def spread_ranks(knots: int, position: int, columns: int) -> _Integers:
    """Return, by rank, the bits of z that a rank of the column at `position` sets."""
    bits = bits_of(columns)
    # The rank's highest bit becomes the highest one of the column.
    lifted = np.arange(knots + 1, dtype=np.int64) << (bits - knots.bit_length())
    spread = np.zeros_like(lifted)
    for bit in range(bits):
        z_bit = TIE_BITS + bit * columns + columns - 1 - position
        spread |= (lifted >> bit & 1) << z_bit
    return spread


def interleave(columns: Sequence[pa.Array], knots: Sequence[pa.Array]) -> _Integers:
    """Return the z value of each row, whose lowest TIE_BITS are zero."""
    z = np.zeros(len(columns[0]), np.int64)
    for position, (values, own_knots) in enumerate(zip(columns, knots, strict=True)):
        spread = spread_ranks(len(own_knots), position, len(columns))
        z |= spread[ranks(values, own_knots)]
    return z


def tie_shift(rows: int) -> int:
    """Return by how many bits to shift offsets below `rows` to fit into TIE_BITS.

    Shifted offsets keep rows of equal ranks roughly in the order of their arrival.
    """
    offset_bits = max(rows - 1, 0).bit_length()
    return max(0, offset_bits - TIE_BITS)


def plan_cuts(z: _Integers, files: float) -> _Integers:
    """Return the z values at which files begin, without that of the first file.

    A file has whole cells of the curve, so that files overlap as little as possible. A cell that is
    too large for a file is halved, and small neighbours share a file. For smooth data, files differ
    in size by up to a factor of two.
    """
    ordered = np.sort(z)
    rows_a_file = len(ordered) / max(files, 1e-9)
    starts: list[int] = []
    rows_of_last = 0
    for start, rows in _cells(ordered, rows_a_file * CELL_SHARE):
        if starts and rows_of_last + rows <= rows_a_file:
            rows_of_last += rows
        else:
            starts.append(start)
            rows_of_last = rows
    return np.array(starts[1:], np.int64)


def _cells(ordered: _Integers, max_rows: float) -> Iterator[tuple[int, int]]:
    """Yield the least z and the number of rows of each cell with rows, in order.

    `ordered` has the z values of all rows, ascending. A cell of one z value may have more than
    `max_rows`.
    """
    # The first row of a cell, the row after its last one, its least z, and the next bit to halve by
    waiting = [(0, len(ordered), 0, _TOP_BIT)]
    while waiting:
        first, past, start, bit = waiting.pop()
        if past - first <= max_rows or bit < 0:
            yield start, past - first
            continue
        middle = start | 1 << bit
        at = int(np.searchsorted(ordered, middle))
        # The lower half is pushed last, so that it is popped first.
        if at < past:
            waiting.append((at, past, middle, bit - 1))
        if first < at:
            waiting.append((first, at, start, bit - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The Z-order curve of some rows: each column's knots, and the cuts into parts."""

    knots: tuple[pa.Array, ...]
    cuts: _Integers

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self.cuts) + 1


def plan_curve(columns: Sequence[pa.Array], ties: _Integers, files: float) -> Curve:
    """Plan the curve for a number of files, from a sample of rows.

    `ties` has the lowest TIE_BITS of each row's z.
    """
    bits = bits_of(len(columns))
    knots = tuple(plan_knots(values, bits) for values in columns)
    z = interleave(columns, knots) | ties
    return Curve(knots=knots, cuts=plan_cuts(z, files))
