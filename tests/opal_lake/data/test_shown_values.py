"""Arrow values become values of Python and of JSON; those that neither has become text."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.data.rejects import json_texts
from opal_lake.data.shown_values import json_rows, values_of

YEAR_10000_US = 253_402_300_800_000_000
YEAR_10000_DAYS = 2_932_897


@pytest.mark.parametrize(
    "numbers, kind, expected",
    [
        (
            [YEAR_10000_US, 0],
            pa.timestamp("us", tz="UTC"),
            ["10000-01-01T00:00:00+00:00", datetime(1970, 1, 1, tzinfo=UTC)],
        ),
        ([YEAR_10000_US + 1], pa.timestamp("us"), ["10000-01-01T00:00:00.000001"]),
        ([2**63 - 1], pa.timestamp("us"), ["294247-01-10T04:00:54.775807"]),
        ([-62_135_596_800_000_001], pa.timestamp("us"), ["0000-12-31T23:59:59.999999"]),
        ([-(2**63)], pa.timestamp("us"), ["-290308-12-21T19:59:05.224192"]),
        ([YEAR_10000_DAYS, 1, None], pa.date32(), ["10000-01-01", date(1970, 1, 2), None]),
    ],
)
def test_times_out_of_pythons_years_are_texts_with_their_year(
    numbers: list[int | None], kind: pa.DataType, expected: list[object]
) -> None:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    column = pa.array(numbers, width).cast(kind)
    assert values_of(column) == expected
    offsets = pa.array(range(len(column) + 1), pa.int32())
    texts = pa.array(["k"] * len(column))
    assert values_of(pa.ListArray.from_arrays(offsets, column)) == [[value] for value in expected]
    assert values_of(pa.StructArray.from_arrays([texts, column], ["s", "t"])) == [
        {"s": "k", "t": value} for value in expected
    ]
    assert values_of(pa.MapArray.from_arrays(offsets, texts, column)) == [
        [("k", value)] for value in expected
    ]


def test_bytes_of_a_text_that_are_not_utf8_are_replaced() -> None:
    text = pa.array([b"a\xffb", b"ok"]).view(pa.string())
    assert values_of(text) == ["a\ufffdb", "ok"]


MAP = pa.map_(pa.string(), pa.int64())
PAIR = pa.struct([("x", pa.int64()), ("y", pa.int64())])
TINY = [Decimal("0E-10"), Decimal("-1E-9"), Decimal("12.5")]
TEXTS = ["0.0000000000", "-0.0000000010", "12.5000000000"]


def test_decimals_have_all_their_digits_and_no_exponent() -> None:
    kind = pa.decimal128(20, 10)
    lists = pa.array([[number] for number in TINY], pa.list_(kind))
    rows = pa.table({"d": pa.array(TINY, kind), "in": lists})
    shown = json_rows(rows)
    assert [row["d"] for row in shown] == TEXTS
    assert [row["in"] for row in shown] == [[text] for text in TEXTS]
    assert json_texts(rows.select(["d"])) == [f'{{"d": "{text}"}}' for text in TEXTS]


@pytest.mark.parametrize(
    "kind,values,shown",
    [
        (MAP, [[], [("a", 1)], None], [{}, {"a": 1}, None]),
        (pa.list_(MAP), [[[]], [], None], [[{}], [], None]),
        (pa.map_(pa.int64(), MAP), [[(7, [])]], [{"7": {}}]),
        (pa.struct([("m", MAP)]), [{"m": []}, {"m": None}, None], [{"m": {}}, {"m": None}, None]),
        (pa.list_(PAIR), [[], [{"x": 1, "y": 2}]], [[], [{"x": 1, "y": 2}]]),
        (pa.list_(MAP, 1), [[[("a", 1)]], None], [[{"a": 1}], None]),
        (pa.list_view(pa.int64()), [[1], []], [[1], []]),
        (pa.map_(pa.int64(), pa.string()), [[(1, "a"), (1, "b")]], [[[1, "a"], [1, "b"]]]),
    ],
)
def test_the_type_decides_whether_json_has_a_list_or_an_object(
    kind: pa.DataType, values: list[Any], shown: list[Any]
) -> None:
    rows = pa.table({"column": pa.array(values, kind)})
    assert [row["column"] for row in json_rows(rows)] == shown


def test_members_that_python_cannot_hold_are_shown_in_lists_of_each_kind() -> None:
    texts = pa.array([b"a\xff"]).view(pa.string())
    lists = [
        pa.FixedSizeListArray.from_arrays(texts, 1),
        pa.ListViewArray.from_arrays(pa.array([0], pa.int32()), pa.array([1], pa.int32()), texts),
    ]
    for column in lists:
        assert json_rows(pa.table({"c": column})) == [{"c": ["a\ufffd"]}]


def test_lists_of_a_dictionary_are_lists_in_json() -> None:
    lists = pa.array([[1, 2], []], pa.list_(pa.int64()))
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0]), lists)
    assert [row["c"] for row in json_rows(pa.table({"c": column}))] == [[], [1, 2]]
