"""Filters of reads without Spark: rows for which a condition is true, from few files."""

from typing import Any

import pyarrow as pa
import pytest

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.read.read import plan_read
from opal_lake.read.where import where_condition, where_predicate
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.int64()), ("city", pa.string()), ("gone", pa.bool_())]
)
LAYOUT = TableLayout(
    keys=["id"], delta="at", deletes="gone", properties={"segment_rows": 2, "read_verify": "none"}
)


def rows(*records: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, record, strict=True)) for record in records], schema=SCHEMA
    )


@pytest.fixture
def table() -> Table:
    """Versions 1 to 3: four rows, one of them moved, one of them deleted."""
    made = create_on(MemoryStorage(), plan_spec(SCHEMA, LAYOUT))
    made.ingest(
        rows(*[(number, 1, city, None) for number, city in enumerate(["a", "b", None, "d"])]),
        metadata="inline",
        partition_key="mon",
    )
    made.ingest(rows((1, 2, "ß", False)), metadata="inline", partition_key="tue")
    made.ingest(rows((3, 3, None, True)), metadata="inline", partition_key="tue")
    return made


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def test_a_read_has_the_rows_for_which_the_condition_is_true(table: Table) -> None:
    assert ids(table.read(where="city = 'ß' OR id = 0")) == [0, 1]
    assert ids(table.read(where="NOT city = 'a'")) == [1]
    assert ids(table.read(where="city IS NULL")) == [2]
    assert ids(table.read(version=1, where="id >= 2")) == [2, 3]
    assert ids(table.read(event_time=1, where="city > 'a'")) == [1, 3]
    assert ids(table.read(where="id > 100")) == []
    assert ids(table.read(partition_key="mon", net=True, where="city <> 'a'")) == [1, 3]
    assert ids(table.read(after=1, where="at = 2")) == [1]


def test_columns_of_the_condition_need_not_be_shown(table: Table) -> None:
    shown = table.read(columns=["city", "id"], where="at = 2")
    assert shown.to_pylist() == [{"city": "ß", "id": 1}]
    assert table.read(columns=["city"], where="at = 5").column_names == ["city"]
    assert table.read(
        columns=["city"], partition_key="mon", net=True, where="id = 0"
    ).to_pylist() == [{"city": "a"}]


def test_rows_of_keys_are_filtered(table: Table) -> None:
    keys = [{"id": number} for number in (2, 1, 0, 7)]
    assert table.get(keys, where="city IS NULL OR id < 1")["id"].to_pylist() == [2, 0]
    assert table.get(keys, columns=["at"], where="city = 'ß'").to_pylist() == [{"at": 2}]
    assert table.get(keys, version=1, where="city = 'ß'").num_rows == 0


def test_files_without_matching_rows_are_skipped(table: Table) -> None:
    snapshot = table.snapshot_at()
    condition = where_condition("id = 0 AND city LIKE 'a%'", snapshot.spec)
    plan = plan_read(snapshot, None, where_predicate(condition))
    assert len(plan.files) == 1
    assert len(plan_read(snapshot, None).files) > 1


def test_condition_may_use_columns_of_the_history_view(table: Table) -> None:
    assert ids(table.history_view(where="valid_until = 3 AND deleted")) == [3]
    assert ids(table.history_view(where="is_current AND city IS NOT NULL")) == [0, 1]
    shown = table.history_view(keys=[{"id": 1}], columns=["city"], where="valid_from < 2")
    assert shown.column_names == ["city", "valid_from", "valid_until", "is_current", "deleted"]
    assert shown["city"].to_pylist() == ["b"]


@pytest.mark.parametrize("axis", ["commit", "event_time"])
def test_condition_may_use_columns_of_the_feed(table: Table, axis: str) -> None:
    after = table.changes(2, where="_change_type LIKE 'update%' AND _commit_version = 2", axis=axis)
    assert after["_change_type"].to_pylist() == ["update_preimage", "update_postimage"]
    assert ids(table.changes(1, where="city = 'd' AND _change_type = 'insert'", axis=axis)) == [3]
    shown = table.changes(1, columns=["id"], where="city = 'ß'", axis=axis)
    assert shown["id"].to_pylist() == [1]
    assert "city" not in shown.column_names


def test_error_of_a_condition_names_the_filter(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="where 'town = 1' has a fault at column 1"):
        table.read(where="town = 1")
    with pytest.raises(InvalidInputError, match="no column '_change_type'"):
        table.read(where="_change_type = 'insert'")
    with pytest.raises(InvalidInputError, match="'10 / id > 1' divides by zero in some row"):
        table.read(where="10 / id > 1")
