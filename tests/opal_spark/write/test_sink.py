"""A sink applies each micro-batch once, even if it runs again."""

from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from tests.kit.check import check_table
from tests.opal_lake.shop import latest
from tests.opal_spark.build import content, create, frame
from tests.opal_spark.twin import arrow_of

pytestmark = pytest.mark.spark


def test_a_micro_batch_that_comes_again_is_applied_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "t")
    sink, other = table.sink(application="orders"), table.sink(application="returns")
    batches = [[("a", 1, 1), ("b", 1, 1)], [("a", 2, None), ("c", 2, 5)]]
    sink(frame(spark, batches[0]), 0)
    sink(frame(spark, batches[0]), 0)
    sink(frame(spark, []), 1)
    sink(frame(spark, batches[1]), 2)
    assert table.snapshot_at().version == 3
    assert content(table.read()) == latest(batches)
    other(frame(spark, [("d", 1, 1)]), 0)
    assert len(arrow_of(table).read()) == 3, "each query has its own micro-batches"
    assert check_table(table) == []


def test_bad_rows_of_a_micro_batch_fail_it_or_are_put_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "t")
    rows = frame(spark, [("a", 1, 1), (None, 1, 1)])  # type: ignore[list-item]  # a bad row
    with pytest.raises(InvalidInputError, match="1 row cannot go into the table"):
        table.sink(application="q")(rows, 0)
    table.sink(application="q", on_bad_rows="quarantine", metadata="batch")(rows, 0)
    table.metagen()
    assert content(table.read()) == [("a", 1, 1)]


def test_a_sink_has_a_name_and_can_be_sent_to_a_server(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t")
    sent = cloudpickle.loads(cloudpickle.dumps(table.sink(application="q")))  # type: ignore[no-untyped-call]  # PySpark's copy has no types
    sent(frame(spark, [("a", 1, 1)]), 0)
    assert content(table.read()) == [("a", 1, 1)]
    with pytest.raises(InvalidInputError, match="application is empty; give each streaming query"):
        table.sink(application="")
