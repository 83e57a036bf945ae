"""Where a row lies on the Z-order curve: the bits of its columns' ranks in turn, as one number.

A rank counts the knots that are not greater than the value, so that any type that compares has one; nulls come first. Knots are quantiles
of a sample: a part of the curve holds as many rows whatever the distribution. Ranks fill their bits from the top, so that a column of few
values counts as much as one of many. Below the ranks there is room for some bits that only part rows of one rank.
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

MOST_COLUMNS = 8
TIE_BITS = 8
CELL_SHARE = 1.42  # of a file's rows: the most that a cell has which is not halved
_TOP_BIT = 62
_MOST_BITS_ALONE, _MOST_BITS, _MOST_BITS_TOGETHER = (
    14,
    10,
    32,
)  # a bit is a step of a search in code that Java has to compile
_Integers = npt.NDArray[np.int64]


def z_fields(spec: TableSpec, names: Sequence[str]) -> tuple[Field, ...]:
    """The columns to cluster by, if they can be."""
    refuse_text("columns", names)
    if not 1 <= len(names) <= MOST_COLUMNS:
        raise InvalidInputError(
            f"Z-order takes 1 to {MOST_COLUMNS} columns, not {len(names)}; choose those that queries filter by most"
        )
    fields = tuple(spec.schema.field(name) for name in names)
    for field in fields:
        if not isinstance(field.type, Atomic):
            raise InvalidInputError(
                f"column {field.name!r} is nested and has no order; choose a column without parts"
            )
    if len({field.id for field in fields}) < len(fields):
        raise InvalidInputError(
            f"columns {', '.join(map(repr, names))}: one of them is named twice; give each once"
        )
    return fields


def bits_of(columns: int) -> int:
    """How many bits the rank of each column has."""
    return _MOST_BITS_ALONE if columns == 1 else min(_MOST_BITS, _MOST_BITS_TOGETHER // columns)


def plan_knots(sample: pa.Array, bits: int) -> pa.Array:
    """At most 2^bits - 1 values, ascending and each once, that part the sample evenly; the least one only to part it from nulls."""
    valid = sample.drop_null()
    _, first, counts = np.unique(comparable(valid), return_index=True, return_counts=True)
    places, least = (
        np.arange(1, len(first)),
        np.arange(min(len(first), 1) if sample.null_count else 0),
    )
    most = (1 << bits) - 1 - len(least)
    if len(places) > most:
        rows = np.arange(1, most + 1) * len(valid) // (most + 1)
        places = np.unique(np.searchsorted(np.cumsum(counts), rows, side="right"))
    return valid.take(pa.array(first[np.concatenate([least, places[places > 0]])], pa.int64()))


def comparable(values: pa.Array) -> npt.NDArray[Any]:
    """Values without nulls as numpy orders them, which is Spark's order: NaN is the greatest, texts go by their bytes."""
    kind = values.type
    if pa.types.is_decimal(kind):
        return _objects(values.to_pylist())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _objects(values.cast(pa.binary()).to_pylist())
    if pa.types.is_boolean(kind):
        return np.asarray(values.cast(pa.int8()))
    if pa.types.is_date(kind):
        return np.asarray(values.cast(pa.int32()))
    return np.asarray(values.cast(pa.int64()) if pa.types.is_timestamp(kind) else values)


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    objects = np.empty(len(values), np.object_)
    objects[:] = values
    return objects


def ranks(values: pa.Array, knots: pa.Array) -> _Integers:
    """How many knots each value is not less than; 0 for null."""
    result = np.zeros(len(values), np.int64)
    result[np.asarray(values.is_valid())] = np.searchsorted(
        comparable(knots), comparable(values.drop_null()), side="right"
    )
    return result


def spread_ranks(knots: int, position: int, columns: int) -> _Integers:
    """What each rank of the column at a position adds to z."""
    bits = bits_of(columns)
    lifted = np.arange(knots + 1, dtype=np.int64) << (bits - knots.bit_length())
    spread = np.zeros_like(lifted)
    for bit in range(bits):
        spread |= (lifted >> bit & 1) << (TIE_BITS + bit * columns + columns - 1 - position)
    return spread


def interleave(columns: Sequence[pa.Array], knots: Sequence[pa.Array]) -> _Integers:
    """The z value of each row, its lowest TIE_BITS zero."""
    z = np.zeros(len(columns[0]), np.int64)
    for position, (values, own) in enumerate(zip(columns, knots, strict=True)):
        z |= spread_ranks(len(own), position, len(columns))[ranks(values, own)]
    return z


def tie_shift(rows: int) -> int:
    """By how much offsets below `rows` are shifted to fit into TIE_BITS: rows of one rank keep their order of arrival, roughly."""
    return max(0, max(rows - 1, 0).bit_length() - TIE_BITS)


def plan_cuts(z: _Integers, files: float) -> _Integers:
    """The z values at which a new file begins: whole cells of the curve, so that files overlap least, of about equal size.

    A cell is halved while it is too large for a file; so files differ in size, by twice for smooth data, and what is small is put together.
    """
    ordered = np.sort(z)
    step = len(ordered) / max(files, 1e-9)
    parts: list[tuple[int, int]] = []
    for start, size in _cells(ordered, step * CELL_SHARE):
        if parts and parts[-1][1] + size <= step:
            parts[-1] = (parts[-1][0], parts[-1][1] + size)
        else:
            parts.append((start, size))
    return np.array([start for start, _ in parts[1:]], np.int64)


def _cells(ordered: _Integers, most: float) -> Iterator[tuple[int, int]]:
    """Least z and number of rows of each cell with rows, in order; one that no bit can part may have more rows."""
    waiting = [(0, len(ordered), 0, _TOP_BIT)]
    while waiting:
        first, last, start, bit = waiting.pop()
        if last - first <= most or bit < 0:
            yield start, last - first
            continue
        middle = start | 1 << bit
        at = int(np.searchsorted(ordered, middle))
        halves = ((at, last, middle, bit - 1), (first, at, start, bit - 1))
        waiting += [half for half in halves if half[0] < half[1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The Z-order curve of some rows: the knots of each column, and where it is cut into parts."""

    knots: tuple[pa.Array, ...]
    cuts: _Integers

    @property
    def parts(self) -> int:
        return len(self.cuts) + 1


def plan_curve(columns: Sequence[pa.Array], ties: _Integers, files: float) -> Curve:
    """The curve of a sample, for so many files. `ties` has the lowest TIE_BITS of each row's z."""
    knots = tuple(plan_knots(values, bits_of(len(columns))) for values in columns)
    return Curve(knots=knots, cuts=plan_cuts(interleave(columns, knots) | ties, files))
