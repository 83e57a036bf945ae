"""The 64-bit order of delta columns: the order of the values, and the same values back.

Nothing is guessed of what users give.
"""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opal_lake.definition.ordering import encode_order, from_order, to_order
from opal_lake.definition.schema import Atomic, arrow_type
from opal_lake.errors import FormatError, InvalidInputError

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(-128, 127),
    "short": st.integers(-(1 << 15), (1 << 15) - 1),
    "integer": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(18,0)": st.integers(-(10**18) + 1, 10**18 - 1).map(Decimal),
    "decimal(18,18)": st.decimals("-0.999", "0.999", places=18),
    "decimal(9,2)": st.decimals(-9_999_999, 9_999_999, places=2),
}
COLUMNS = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(st.none() | VALUES[name], max_size=8))
)
NOON = datetime(2026, 1, 31, 12)
NOON_MICROS = 1_769_860_800_000_000


def kind(name: str) -> Atomic:
    return Atomic(name=name)


def column(name: str, values: list[Any]) -> pa.Array:
    return pa.array(values, arrow_type(kind(name)))


@given(COLUMNS)
def test_values_are_decoded_from_their_order_form_and_keep_their_order(
    drawn: tuple[str, list[Any]],
) -> None:
    name, values = drawn
    order, valid = to_order(column(name, values), kind(name))
    assert order.dtype == np.int64
    assert valid.tolist() == [value is not None for value in values]
    assert [
        from_order(int(number), kind(name)) if is_valid else None
        for number, is_valid in zip(order, valid, strict=True)
    ] == values
    present = [value for value in values if value is not None]
    assert [from_order(number, kind(name)) for number in sorted(order[valid].tolist())] == sorted(
        present
    )
    assert not order[~valid].any()


def text_of(value: Any) -> str:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value)


@given(COLUMNS)
def test_value_and_its_text_are_encoded_alike(drawn: tuple[str, list[Any]]) -> None:
    name, values = drawn
    for value, number in zip(
        values, to_order(column(name, values), kind(name))[0].tolist(), strict=True
    ):
        if value is not None:
            assert encode_order(value, kind(name), name="at") == number
            text = text_of(value)
            if not (name == "timestamp_ntz" and len(text) <= 10):
                assert encode_order(text, kind(name), name="at") == number


@pytest.mark.parametrize("name", sorted(VALUES))
def test_slices_and_chunks_are_encoded_like_whole_arrays(name: str) -> None:
    kinds = {"date": date(2026, 1, 5), "timestamp": NOON.replace(tzinfo=UTC), "timestamp_ntz": NOON}
    value = kinds.get(name, Decimal("0.5") if name == "decimal(18,18)" else 5)
    whole = column(name, [value, None, value, value, None])
    order, valid = to_order(whole, kind(name))
    for piece in (whole.slice(1, 3), pa.chunked_array([whole.slice(1, 1), whole.slice(2, 2)])):
        numbers, numbers_valid = to_order(piece, kind(name))
        assert numbers.tolist() == order[1:4].tolist()
        assert numbers_valid.tolist() == valid[1:4].tolist()
    assert to_order(pa.chunked_array([], whole.type), kind(name))[0].tolist() == []


@pytest.mark.parametrize(
    "name,physical",
    [("date", pa.int32()), ("timestamp", pa.int64()), ("timestamp_ntz", pa.int64())],
)
def test_integers_of_orc_files_are_encoded_unchanged(name: str, physical: pa.DataType) -> None:
    order, valid = to_order(pa.array([5, None], physical), kind(name))
    assert order.tolist() == [5, 0]
    assert valid.tolist() == [True, False]


@pytest.mark.parametrize("unit,value", [("s", 7), ("ms", 7_000), ("ns", 7_000_000_000)])
def test_other_units_become_microseconds(unit: str, value: int) -> None:
    assert to_order(pa.array([value], pa.timestamp(unit)), kind("timestamp_ntz"))[0].tolist() == [
        7_000_000
    ]


def test_nanoseconds_are_not_rounded() -> None:
    with pytest.raises(InvalidInputError, match="truncate them first"):
        to_order(pa.array([1], pa.timestamp("ns")), kind("timestamp_ntz"))


@pytest.mark.parametrize(
    "array,name",
    [
        (pa.array(["1"]), "long"),
        (pa.array([1.0]), "long"),
        (pa.array([1]), "decimal(9,2)"),
        (pa.array([NOON]), "timestamp"),
        (pa.array([NOON], pa.timestamp("us", "UTC")), "timestamp_ntz"),
        (pa.array([date(2026, 1, 1)]), "timestamp"),
        (pa.array([Decimal(1)]), "long"),
    ],
)
def test_values_of_another_type_are_refused(array: pa.Array, name: str) -> None:
    with pytest.raises(InvalidInputError, match="do not fit a column of type"):
        to_order(array, kind(name))


@pytest.mark.parametrize(
    "value,name,expected",
    [
        (NOON, "timestamp_ntz", NOON_MICROS),
        ("2026-01-31T12:00:00.123456", "timestamp_ntz", NOON_MICROS + 123_456),
        ("2026-01-31T12:00:00.123456000", "timestamp_ntz", NOON_MICROS + 123_456),
        ("2026-01-31 12:00:00Z", "timestamp", NOON_MICROS),
        ("2026-01-31T20:00:00+08:00", "timestamp", NOON_MICROS),
        (
            NOON.replace(tzinfo=timezone(timedelta(hours=-8))),
            "timestamp",
            NOON_MICROS + 8 * 3_600_000_000,
        ),
        (
            datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
            "timestamp",
            -62_135_596_800_000_000 - 14 * 3_600_000_000,
        ),
        (np.int32(7), "long", 7),
        (" 7".strip(), "byte", 7),
        ("-7", "decimal(9,2)", -700),
        (Decimal("1.50"), "decimal(9,1)", 15),
        (Decimal("1E2"), "long", 100),
        ((1 << 63) - 1, "long", (1 << 63) - 1),
    ],
)
def test_event_time_of_a_user_is_encoded_exactly(value: Any, name: str, expected: int) -> None:
    assert encode_order(value, kind(name), name="at") == expected


@pytest.mark.parametrize(
    "value,name,message",
    [
        (None, "long", "an int or its digits"),
        (True, "long", "is not a valid BIGINT"),
        (True, "timestamp", "datetime with a zone"),
        (1.5, "decimal(9,2)", "Decimal"),
        ("5.0", "long", "plain digits"),
        (" 5", "long", "plain digits"),
        ("1_000", "long", "plain digits"),
        ("٥", "long", "plain digits"),
        ("NaN", "decimal(9,2)", "plain digits"),
        (Decimal("Infinity"), "decimal(9,2)", "plain digits"),
        (Decimal("0.005"), "decimal(9,2)", "finer than the column, which has 2 decimal places"),
        (Decimal("1E-999999"), "long", "finer"),
        (Decimal("0.5"), "long", "finer"),
        (1 << 63, "long", "outside 64 bits"),
        (
            -(1 << 63) - 1,
            "integer",
            "outside 64 bits; give a value between -9223372036854775808 and 9223372036854775807",
        ),
        (Decimal("1E+999999"), "long", "outside 64 bits"),
        (10**18, "decimal(18,2)", "outside 64 bits"),
        (date(2026, 1, 1), "long", "not a number"),
        (NOON, "date", r"value\.date\(\)"),
        ("2026-01-31T12:00", "date", "such as '2026-01-31'"),
        (5, "date", "such as '2026-01-31'"),
        (date(2026, 1, 1), "timestamp", "2026-01-31T12:00:00\\+00:00"),
        ("yesterday", "timestamp", "'yesterday' is not a timestamp; write a datetime with a zone"),
        ("2026-01-01", "timestamp", "no time of day"),
        ("2026-01-01", "timestamp_ntz", "no time of day"),
        (NOON, "timestamp", "has no zone"),
        ("2026-01-31T12:00:00", "timestamp", "has no zone"),
        (NOON.replace(tzinfo=UTC), "timestamp_ntz", "has a zone"),
        ("2026-01-31T12:00:00Z", "timestamp_ntz", "has a zone"),
        ("2026-01-31T12:00:00.1234567", "timestamp_ntz", "finer than a microsecond"),
        ("2026-01-31T12:00:00.0000000010Z", "timestamp", "finer than a microsecond"),
        ("yesterday at noon", "timestamp", "2026-01-31T12:00:00\\+00:00"),
        (NOON_MICROS, "timestamp", "is not a timestamp"),
        ("a", "string", "no order of 64 bits"),
    ],
)
def test_a_value_that_is_not_exactly_one_of_the_column_is_refused(
    value: Any, name: str, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message) as refused:
        encode_order(value, kind(name), name="modified at")
    assert str(refused.value).startswith("modified at: ")


def test_subclasses_of_datetime_are_encoded_exactly() -> None:
    pandas = pytest.importorskip("pandas")
    assert (
        encode_order(pandas.Timestamp("2026-01-31T12:00:00.000001Z"), kind("timestamp"), name="at")
        == NOON_MICROS + 1
    )
    with pytest.raises(InvalidInputError, match="finer than a microsecond"):
        encode_order(
            pandas.Timestamp("2026-01-31T12:00:00.000000001Z"), kind("timestamp"), name="at"
        )


def test_pendulum_times_are_encoded_exactly() -> None:
    pendulum = pytest.importorskip("pendulum")
    assert (
        encode_order(
            pendulum.datetime(2026, 1, 31, 20, microsecond=1, tz="Asia/Taipei"),
            kind("timestamp"),
            name="at",
        )
        == NOON_MICROS + 1
    )
    assert (
        encode_order(pendulum.naive(2026, 1, 31, 12), kind("timestamp_ntz"), name="at")
        == NOON_MICROS
    )


def test_error_names_a_value_outside_the_years_of_python() -> None:
    for name in ("date", "timestamp", "timestamp_ntz"):
        for number in (-(1 << 63), (1 << 63) - 1):
            with pytest.raises(InvalidInputError, match="outside the years 1 to 9999"):
                from_order(number, kind(name))
    with pytest.raises(FormatError, match="no order of 64 bits"):
        from_order(0, kind("string"))
