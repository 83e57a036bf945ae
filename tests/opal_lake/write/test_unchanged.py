"""Equal rows that change their partition are written in layers, of which there is a limit."""

import pyarrow as pa
import pytest

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from opal_lake.write.ingest_job import ingest
from opal_lake.write.unchanged import MAX_LAYERS

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.int64()), ("status", pa.string()), ("big", pa.string())]
)


@pytest.fixture
def table() -> Table:
    storage = MemoryStorage()
    layout = TableLayout(keys=["id"], delta="at", partition_by=["status"])
    create_on(storage, plan_spec(SCHEMA, layout))
    return table_on(storage)


def alternating(table: Table, count: int) -> JobResult:
    """Ingest equal rows that alternate between partitions; all but one lack a value."""
    numbers = range(count)
    rows = pa.table(
        {
            "id": [7] * count,
            "at": [5] * count,
            "status": ["ab"[number % 2] for number in numbers],
            "big": [None if number else "x" for number in numbers],
            "_opal_unchanged": ['["big"]' if number else None for number in numbers],
        },
        schema=SCHEMA.append(pa.field("_opal_unchanged", pa.string())),
    )
    return ingest(table, lambda spec, number: rows, Ingest([], metadata="inline"))


def test_as_many_layers_as_allowed_keep_the_last_row(table: Table) -> None:
    alternating(table, MAX_LAYERS)
    assert table.read().select(SCHEMA.names).to_pylist() == [
        {"id": 7, "at": 5, "status": "b", "big": "x"}
    ]


def test_equal_rows_of_a_generated_partition_keep_the_last_row() -> None:
    storage = MemoryStorage()
    schema = SCHEMA.append(pa.field("upper", pa.string()))
    layout = TableLayout(
        keys=["id"], delta="at", partition_by=["upper"], generated={"upper": "upper(status)"}
    )
    create_on(storage, plan_spec(schema, layout))
    rows = pa.table(
        {
            "id": [7, 7, 7],
            "at": [5, 5, 5],
            "status": ["b", "a", "b"],
            "big": ["x", None, None],
            "upper": pa.nulls(3, pa.string()),
            "_opal_unchanged": [None, '["big"]', '["big"]'],
        },
        schema=schema.append(pa.field("_opal_unchanged", pa.string())),
    )
    table = table_on(storage)
    ingest(table, lambda spec, number: rows, Ingest([], metadata="inline"))
    (row,) = table.read().to_pylist()
    assert (row["status"], row["big"]) == ("b", "x")


def test_one_layer_more_is_an_error_that_names_the_delta_and_the_tie_break(table: Table) -> None:
    says = (
        r'equal in their delta \(\{"id": 7, "at": 5\}\), change between partitions of '
        rf"\['status'\] {MAX_LAYERS} times .* Create the table with a tie-break column"
    )
    with pytest.raises(InvalidInputError, match=says):
        alternating(table, MAX_LAYERS + 1)
    assert table.snapshot_at().version == 0
    assert table.read().num_rows == 0
