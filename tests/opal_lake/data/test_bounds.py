import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opal_lake.data.bounds import (
    Bounds,
    bounds_from_json,
    bounds_of,
    bounds_to_json,
    next_text,
    plan_high,
    plan_low,
)
from opal_lake.data.columns import to_physical
from opal_lake.decoding import decoding
from opal_lake.errors import FormatError
from tests.opal_lake.shapes import ZONED, every_type, spec_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=70)


def bounds(
    values: list[Any], kind: pa.DataType, file_format: str = "parquet"
) -> tuple[Any, Any, int]:
    table = pa.table(
        {
            "k": pa.nulls(len(values), pa.string()),
            "d": pa.nulls(len(values), pa.int64()),
            "x": pa.array(values, kind),
        }
    )
    spec = spec_of(table, file_format)
    bounds = bounds_of(to_physical(table, spec), spec)[3]
    assert bounds_from_json(
        json.loads(json.dumps(bounds_to_json({3: bounds}), allow_nan=False))
    ) == {3: bounds}
    return bounds.low, bounds.high, bounds.nulls


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize(
    "kind,values,low,high",
    [
        (pa.bool_(), [True, None, False], False, True),
        (pa.int8(), [3, -128, None], -128, 3),
        (pa.int64(), [-(1 << 63), (1 << 63) - 1], -(1 << 63), (1 << 63) - 1),
        (pa.float32(), [1.5, -2.5], -2.5, 1.5),
        (
            pa.decimal128(38, 10),
            [Decimal("1E-10"), Decimal(-12345678901234567890)],
            "-12345678901234567890.0000000000",
            "0.0000000001",
        ),
        (pa.string(), ["b", "a", "é", "z"], "a", "é"),
        (pa.binary(), [b"\xff", b""], "", "ff"),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], -719162, 2932896),
        (
            ZONED,
            [datetime(1970, 1, 2, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)],
            -62135596800000000,
            86_400_000_000,
        ),
        (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59, 999_999)], -1, -1),
    ],
)
def test_bounds_are_the_least_and_the_greatest(
    file_format: str, kind: pa.DataType, values: list[Any], low: Any, high: Any
) -> None:
    assert bounds(values, kind, file_format) == (low, high, values.count(None))


def test_column_of_nulls_has_no_bounds() -> None:
    assert bounds([None, None], pa.string()) == (None, None, 2)
    assert bounds([], pa.int64()) == (None, None, 0)


@pytest.mark.parametrize(
    "values,low,high",
    [
        ([1.0, math.nan], 1.0, None),
        ([math.nan], None, None),
        ([math.inf, -math.inf], None, None),
        ([math.inf], 1.7976931348623157e308, None),
        ([-math.inf, 2.0], None, 2.0),
    ],
)
def test_nan_and_infinity_are_unknown(
    values: list[float], low: float | None, high: float | None
) -> None:
    assert bounds(values, pa.float64())[:2] == (low, high)


def test_both_zeros_are_within_bounds() -> None:
    for values in ([0.0], [-0.0], [0.0, -0.0]):
        low, high, _ = bounds(values, pa.float64())
        assert (math.copysign(1, low), math.copysign(1, high)) == (-1, 1)


def test_bounds_of_long_texts_are_cut() -> None:
    assert bounds(["a" * 40], pa.string()) == ("a" * 32, "a" * 31 + "b", 0)
    assert bounds(["\U0010ffff" * 40], pa.string()) == ("\U0010ffff" * 32, None, 0)
    assert bounds([b"\xff" * 40], pa.binary()) == ("ff" * 32, None, 0)
    assert bounds([b"a" + b"\xff" * 40], pa.binary()) == ("61" + "ff" * 31, "62", 0)


@given(TEXT)
def test_bounds_enclose_the_whole_text(text: str) -> None:
    low, high = plan_low(text), plan_high(text)
    assert isinstance(low, str)
    assert low.encode() <= text.encode()
    assert high is None or (isinstance(high, str) and text.encode() <= high.encode())


@given(st.binary(max_size=70))
def test_bounds_enclose_the_whole_binary(value: bytes) -> None:
    low, high = plan_low(value), plan_high(value)
    assert isinstance(low, str)
    assert bytes.fromhex(low) <= value
    assert high is None or (isinstance(high, str) and value <= bytes.fromhex(high))


@given(TEXT.filter(bool), TEXT)
def test_next_text_is_after_all_with_the_prefix(prefix: str, ending: str) -> None:
    following = next_text(prefix)
    assert following is None or following.encode() > (prefix + ending).encode()


def test_next_text_skips_surrogates() -> None:
    assert next_text("\ud7ff") == "\ue000"
    assert next_text("a\U0010ffff") == "b"
    assert next_text("") is None


def test_nested_columns_have_no_bounds() -> None:
    table = every_type()
    spec = spec_of(table, "parquet")
    atomic_ids: set[int] = set()
    for column in table.schema:
        if not pa.types.is_nested(column.type):
            atomic_ids.add(spec.schema.field(column.name).id)
    assert set(bounds_of(to_physical(table, spec), spec)) == atomic_ids


def test_damaged_json_of_bounds_is_refused() -> None:
    bounds = {7: Bounds(low="1.50", high=None, nulls=3)}
    assert bounds_to_json(bounds) == {"7": ["1.50", None, 3]}
    for damaged in ({"x": [1, 2, 3]}, {"7": [1, 2]}, {"7": None}):
        with pytest.raises(ValueError, match="field id"):
            bounds_from_json(damaged)
        with (
            pytest.raises(FormatError, match=r"a/file cannot be decoded.*field id"),
            decoding("a/file", "a commit"),
        ):
            bounds_from_json(damaged)
