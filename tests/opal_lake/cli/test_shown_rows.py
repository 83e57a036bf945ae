"""Rows as commands and job results show them."""

from decimal import Decimal

import pyarrow as pa

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import create_on


def test_decimal_deltas_are_described_without_an_exponent() -> None:
    schema = pa.schema([("k", pa.int64()), ("d", pa.decimal128(18, 10))])
    table = create_on(MemoryStorage(), plan_spec(schema, TableLayout(keys=["k"], delta="d")))
    rows = pa.table({"k": [1, 2], "d": [Decimal(0), Decimal("12.5")]}, schema=schema)
    table.ingest(rows, metadata="inline")
    (file,) = table.files()
    assert (file["delta_low"], file["delta_high"]) == ("0.0000000000", "12.5000000000")
    (condition,) = table.explain("d > 0.0000000001")["conditions"]
    assert condition["condition"] == "d > 0.0000000001"
