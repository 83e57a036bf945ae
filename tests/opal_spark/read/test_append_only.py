"""Spark reads tables without keys, and refuses what needs keys."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.storage import open_storage
from opal_spark import OpalTable
from tests.opal_lake.append_only import append, create, process, rows

pytestmark = pytest.mark.spark

REFUSED: list[Callable[[OpalTable], object]] = [
    lambda table: table.ingest(table.read()),
    lambda table: table.read(event_time="2026-01-01T00:00:00Z"),
    lambda table: table.changes(1),
    lambda table: table.history_view(),
]


def test_rows_of_a_table_without_keys_are_read_and_not_changed(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = create(open_storage(str(tmp_path / "t")))
    append(made, [("home", 1), ("home", 1)])
    process(made)
    append(made, [("later", 2)])
    table = OpalTable.for_path(spark, str(tmp_path / "t"))
    expected = [row["page"] for row in rows([("home", 1), ("home", 1)]).to_pylist()]
    assert [row.page for row in table.read().collect()] == expected
    by_name = spark.read.format("opal").load(str(tmp_path / "t"))
    assert by_name.count() == 2
    for refused in REFUSED:
        with pytest.raises(InvalidInputError, match="needs a table with keys"):
            refused(table)
    before = table.snapshot_at().version
    assert table.compact().version in (None, before)
    assert table.check() == []
