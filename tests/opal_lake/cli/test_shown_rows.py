"""Rows as commands and job results show them."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.cli.shown_rows import json_rows
from opal_lake.data.rejects import row_text
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import create_on

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
    assert [row_text(row) for row in rows.select(["d"]).to_pylist()] == [
        f'{{"d": "{text}"}}' for text in TEXTS
    ]


@pytest.mark.parametrize(
    "kind,values,shown",
    [
        (MAP, [[], [("a", 1)], None], [{}, {"a": 1}, None]),
        (pa.list_(MAP), [[[]], [], None], [[{}], [], None]),
        (pa.map_(pa.int64(), MAP), [[(7, [])]], [{"7": {}}]),
        (pa.struct([("m", MAP)]), [{"m": []}, {"m": None}, None], [{"m": {}}, {"m": None}, None]),
        (pa.list_(PAIR), [[], [{"x": 1, "y": 2}]], [[], [{"x": 1, "y": 2}]]),
    ],
)
def test_the_type_decides_whether_json_has_a_list_or_an_object(
    kind: pa.DataType, values: list[Any], shown: list[Any]
) -> None:
    rows = pa.table({"column": pa.array(values, kind)})
    assert [row["column"] for row in json_rows(rows)] == shown


def test_decimal_deltas_are_described_without_an_exponent() -> None:
    schema = pa.schema([("k", pa.int64()), ("d", pa.decimal128(18, 10))])
    table = create_on(MemoryStorage(), plan_spec(schema, TableLayout(keys=["k"], delta="d")))
    rows = pa.table({"k": [1, 2], "d": [Decimal(0), Decimal("12.5")]}, schema=schema)
    table.ingest(rows, metadata="inline")
    (file,) = table.files()
    assert (file["delta_low"], file["delta_high"]) == ("0.0000000000", "12.5000000000")
    (condition,) = table.explain("d > 0.0000000001")["conditions"]
    assert condition["condition"] == "d > 0.0000000001"
