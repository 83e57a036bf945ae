"""SHOW CREATE TABLE of random tables makes equal ones."""

from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opal_spark
from opal_lake.definition.conditions.printer import text_of
from opal_lake.definition.conditions.tree import Column, Literal
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.storage import open_storage
from opal_lake.table import create_on, table_on

pytestmark = pytest.mark.spark

ATOMIC = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us"),
    pa.decimal128(38, 9),
    pa.decimal128(5, 0),
]
NAMES = st.text(st.sampled_from("abXÄß9_ .,`'\"\\%\t\u4e2d-"), min_size=1, max_size=8).filter(
    lambda name: name == name.strip() and not name.lower().startswith("_")
)
TEXTS = st.text(st.sampled_from("aé'\"\\%_\n\t\r `${}u0041nZ"), max_size=10)


def columns_of(kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    pairs = st.tuples(NAMES, kinds)
    return st.lists(pairs, min_size=1, max_size=4, unique_by=lambda pair: pair[0].casefold())


TYPES = st.recursive(
    st.sampled_from(ATOMIC),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        columns_of(inner).map(pa.struct),
    ),
    max_leaves=4,
)


@st.composite
def specs(draw: st.DrawFn) -> TableSpec:
    columns = draw(columns_of(TYPES))
    taken = {name.casefold() for name, _ in columns}
    keys = draw(st.lists(NAMES, min_size=1, max_size=2, unique_by=str.casefold))
    keys = [key for key in keys if key.casefold() not in taken] or ["key 0"]
    orders = ["at,1", "`seq`"] if draw(st.booleans()) else []
    schema = [*columns, *((key, pa.int64()) for key in keys), *((at, pa.int64()) for at in orders)]
    schema = draw(st.permutations(schema))
    deletes = None
    constraints: dict[str, str] = {}
    texts = [name for name, kind in columns if kind == pa.string()]
    if texts and draw(st.booleans()):
        column = Column(path=(texts[0],))
        deletes = f"{text_of(column)} = {text_of(Literal(value=draw(TEXTS)))}"
        constraints["check"] = f"{text_of(column)} <> {text_of(Literal(value=draw(TEXTS)))}"
    layout = TableLayout(
        keys=keys,
        delta=orders[0] if orders else "_commit",
        tie_break=orders[1:],
        deletes=deletes,
        constraints=constraints,
        partition_by=draw(st.sampled_from([[], keys[:1]])),
        file_format=draw(st.sampled_from(["parquet", "orc"])),
        properties=draw(
            st.sampled_from([{}, {"target_mb": 3}, {"event_table": "it's\\ a", "window": "1d"}])
        ),
    )
    return plan_spec(pa.schema(schema), layout)


numbers = count()


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(spec=specs())
def test_text_of_a_table_makes_an_equal_table(spark: Any, spec: TableSpec) -> None:
    number = next(numbers)
    first, second = (f"memory://show-create-{number}-{side}" for side in "ab")
    create_on(open_storage(first), spec)
    [(text,)] = opal_spark.sql(spark, f"SHOW CREATE TABLE opal.`{first}`").collect()
    opal_spark.sql(spark, text.replace(first, second))
    assert table_on(open_storage(second)).snapshot_at().spec == spec, text
