"""The Z-order curve: ranks of any type, the paper's example, and cuts into files."""

import math
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from opal_lake.data.z_value import (
    TIE_BITS,
    bits_of,
    interleave,
    plan_curve,
    plan_cuts,
    plan_knots,
    ranks,
    spread_ranks,
    tie_shift,
    z_fields,
)
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError

INTEGERS = list(range(-500, 500))
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), list(range(-128, 128))),
    "long": (pa.int64(), [*INTEGERS, -(2**63), 2**63 - 1]),
    "double": (pa.float64(), [*map(float, INTEGERS), -math.inf, -0.5, 1e300, math.inf, math.nan]),
    "decimal": (
        pa.decimal128(38, 2),
        [Decimal(value).scaleb(-2) for value in [*INTEGERS, 10**37, -(10**37)]],
    ),
    "string": (
        pa.string(),
        [f"{'the same for long ' * 5}{value:05d}" for value in range(500)]
        + ["", "a", "z", "é", "\U0001f600"],
    ),
    "binary": (pa.binary(), [bytes([value]) * 3 for value in range(256)]),
    "boolean": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [date.fromordinal(700_000 + value) for value in range(500)]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [datetime(2026, 1, 1, hour, minute) for hour in range(24) for minute in range(60)],
    ),
    "timestamp_ntz": (
        pa.timestamp("us"),
        [datetime(2026, 1, 1, hour, minute) for hour in range(24) for minute in range(60)],
    ),
}


def sorted_as_spark(values: list[Any]) -> list[Any]:
    return sorted(
        values,
        key=lambda value: (
            isinstance(value, float) and math.isnan(value),
            value.encode() if isinstance(value, str) else value,
        ),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [3, 10])
def test_ranks_of_every_type_rise_with_the_values_and_nulls_come_first(
    kind: str, bits: int
) -> None:
    arrow, values = KINDS[kind]
    ordered = pa.array([None, *sorted_as_spark(values)], arrow)
    sample = ordered.take(pa.array(np.random.default_rng(0).permutation(len(ordered))))
    knots = plan_knots(sample, bits)
    ranked = ranks(ordered, knots)
    assert ranked[0] == 0
    assert ranked[1] == 1
    assert np.all(np.diff(ranked) >= 0)
    assert len(set(ranked.tolist())) >= min(len(values) + 1, 1 << bits) * 0.9
    assert ranked.max() < 1 << bits


def test_the_least_value_takes_no_knot_however_frequent_it_is() -> None:
    sample = pa.array([0] * 9_000 + list(range(1, 1001)))
    knots = plan_knots(sample, 4)
    # The last of 16 parts of equal size begins at 376. The other parts begin within the zeros.
    assert knots.to_pylist() == [376]
    assert plan_knots(pa.array([7] * 100), 10).to_pylist() == []


def test_the_least_value_is_a_knot_only_if_there_are_nulls() -> None:
    assert plan_knots(pa.array([7, 8]), 10).to_pylist() == [8]
    assert plan_knots(pa.array([7, 8, None]), 10).to_pylist() == [7, 8]


def test_a_frequent_value_that_is_not_the_least_takes_one_knot() -> None:
    sample = pa.array([*range(500), *[500] * 9_000, *range(501, 1001)])
    knots = plan_knots(sample, 4)
    assert knots.to_pylist() == [500]


def test_a_sample_without_values_has_no_knots() -> None:
    assert plan_knots(pa.array([], pa.string()), 10).to_pylist() == []
    assert plan_knots(pa.array([None, None], pa.string()), 10).to_pylist() == []


def test_zeros_of_both_signs_are_one_value() -> None:
    knots = plan_knots(pa.array([-1.0, -0.0, 0.0, 1.0]), 10)
    assert ranks(pa.array([-0.0, 0.0]), knots).tolist() == [1, 1]


def test_bits_alternate_and_ranks_fill_from_the_top() -> None:
    bits = bits_of(2)
    top = 1 << (2 * bits - 1 + TIE_BITS)
    assert spread_ranks(1, 0, 2).tolist() == [0, top]
    assert spread_ranks(1, 1, 2).tolist() == [0, top >> 1]
    assert spread_ranks(3, 0, 2).tolist() == [0, top >> 2, top, top | top >> 2]
    few, many = pa.array([0, 1] * 512), pa.array(range(1024))
    z = interleave([many, few], [plan_knots(many, bits), plan_knots(few, bits)])
    halves = z >> (2 * bits - 2 + TIE_BITS)
    assert np.bincount(halves).tolist() == [256] * 4, (
        "a column of two values counts as much as one of a thousand"
    )


@pytest.mark.parametrize("columns", range(1, 9))
def test_z_values_are_positive_and_leave_room_for_ties(columns: int) -> None:
    values = [pa.array(np.arange(1 << 14))] * columns
    z = interleave(values, [plan_knots(column, bits_of(columns)) for column in values])
    assert z.min() == 0
    assert np.all(np.diff(z) >= 0)
    assert z.max() < 1 << 63
    assert not np.any(z & ((1 << TIE_BITS) - 1))


def test_ties_keep_the_order_of_arrival() -> None:
    for rows in (0, 1, 2, 256, 257, 1 << 22):
        assert max(rows - 1, 0) >> tie_shift(rows) < 1 << TIE_BITS
    assert tie_shift(256) == 0
    assert tie_shift(257) == 1


def files_met(
    files: npt.NDArray[np.int64],
    columns: Sequence[npt.NDArray[Any]],
    box: dict[int, tuple[float, float]],
) -> int:
    """Return how many files have bounds that meet a box."""
    met = 0
    for number in np.unique(files):
        met += all(
            columns[c][files == number].max() >= low and columns[c][files == number].min() <= high
            for c, (low, high) in box.items()
        )
    return met


def test_z_order_reads_fewer_files_than_a_linear_order_in_the_example_of_the_paper() -> None:
    """8 x 8 points in 16 files: half as many files are read as after a linear sort."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(8), np.arange(8), indexing="ij"))
    columns = [pa.array(x), pa.array(y)]
    curve = plan_curve(columns, np.zeros(64, np.int64), files=16)
    files = np.searchsorted(curve.cuts, interleave(columns, curve.knots), side="right")
    linear = (x * 8 + y) // 4
    assert np.bincount(files).tolist() == [4] * 16
    assert files_met(linear, [x, y], {1: (4, 5)}) == 8
    assert files_met(files, [x, y], {1: (4, 5)}) == 4
    assert files_met(linear, [x, y], {0: (2, 3), 1: (4, 5)}) == 2
    assert files_met(files, [x, y], {0: (2, 3), 1: (4, 5)}) == 1


@pytest.mark.parametrize("seed", range(3))
def test_files_of_whole_cells_are_read_less_than_files_of_equal_size(seed: int) -> None:
    dice = np.random.default_rng(seed)
    points = [dice.random(40_000), dice.normal(size=40_000)]
    columns = [pa.array(axis) for axis in points]
    curve = plan_curve(columns, np.zeros(40_000, np.int64), files=50)
    z = interleave(columns, curve.knots)
    equal = np.sort(z)[np.arange(1, curve.parts) * len(z) // curve.parts]
    boxes = [{dimension: (low, low + 0.02)} for dimension in (0, 1) for low in dice.random(20)]

    def files_read(cuts: npt.NDArray[np.int64]) -> int:
        files = np.searchsorted(cuts, z, side="right")
        return sum(files_met(files, points, box) for box in boxes)

    whole, cut = files_read(curve.cuts), files_read(equal)
    assert whole < 0.8 * cut, (whole, cut)


@pytest.mark.parametrize("files", [1, 3, 10, 64.5])
def test_files_have_about_the_requested_size(files: float) -> None:
    z = np.random.default_rng(0).integers(0, 1 << 28, 100_000)
    sizes = np.bincount(np.searchsorted(plan_cuts(z, files), z, side="right"))
    assert sizes.max() <= 1.5 * len(z) / files
    assert sizes.min() >= 0.4 * len(z) / files


def test_rows_of_a_frequent_value_are_parted_by_their_ties() -> None:
    z = np.full(1000, 5 << TIE_BITS) | np.arange(1000) % (1 << TIE_BITS)
    assert len(plan_cuts(z, 8)) == 7
    assert plan_cuts(np.full(1000, 5 << TIE_BITS), 8).tolist() == [], (
        "what no bit parts stays together: the writer begins new files"
    )
    assert plan_cuts(np.zeros(0, np.int64), 8).tolist() == []


def test_columns_that_cannot_be_clustered_by_are_refused() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("tags", pa.list_(pa.string()))])
    spec = plan_spec(schema, TableLayout(keys=["id"], delta="at"))
    assert [field.id for field in z_fields(spec, ["at", "ID"])] == [2, 1]
    for names, fault in (
        ([], "1 to 8 columns, not 0"),
        (["id"] * 9, "1 to 8 columns, not 9"),
        ("id", "give a list"),
        (["none"], "no column 'none'"),
        (["tags"], "'tags' is nested"),
        (["id", "Id"], "name a column twice"),
    ):
        with pytest.raises(InvalidInputError, match=fault):
            z_fields(spec, names)
