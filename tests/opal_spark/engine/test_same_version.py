"""A worker with another version of opal_lake refuses the work before it opens any of it."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import opal_lake
import opal_lake.duration
from opal_lake.engine.executor import Stage
from opal_lake.errors import InvalidInputError
from opal_spark.engine.failures import spark_errors
from opal_spark.spark_engine import SparkEngine
from tests.opal_spark.build import create, frame

pytestmark = pytest.mark.spark

SAID = (
    r"the driver has opal-lake 99\.9, but a Python worker of Spark has 0\.1\.0 "
    r"\(.*opal_lake\)\. Install the same version for both"
)
SLOTS = pa.schema([pa.field("slot", pa.int32(), False)])


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opal_lake, "__version__", "99.9")


def only_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Fail on a worker, whose opal_lake lacks this function."""

    def task(*_: Any) -> Any:
        raise AssertionError("it ran")

    task.__module__, task.__qualname__ = "opal_lake.duration", "newest_function"
    monkeypatch.setattr(opal_lake.duration, "newest_function", task, raising=False)
    return task


def test_run_refuses_workers_of_another_version_before_it_unpickles_the_task(
    spark: SparkSession, newer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError, match=SAID), spark_errors():
        SparkEngine(spark=spark).run(only_here(monkeypatch), [1, 2])


def test_by_stages_refuses_workers_of_another_version_before_it_unpickles_the_tasks(
    spark: SparkSession, newer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(
        works=[1], size=1, read=only_here(monkeypatch), schema=SLOTS, task=only_here(monkeypatch)
    )
    with pytest.raises(InvalidInputError, match=SAID), spark_errors():
        SparkEngine(spark=spark).by_stages([stage, stage], 1)


def test_an_ingest_is_refused_and_commits_nothing(
    spark: SparkSession, tmp_path: Path, newer: None
) -> None:
    table = create(spark, tmp_path / "t")
    with pytest.raises(InvalidInputError, match=SAID), spark_errors():
        table.ingest(frame(spark, [("a", 1, 1)], 1))
    assert table.snapshot_at().version == 0


def test_workers_of_the_same_version_return_results(spark: SparkSession) -> None:
    def read(works: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"slot": [work % 2 for work in works]}, SLOTS)

    def number(batches: Iterable[pa.RecordBatch]) -> int:
        return sum(batch.num_rows for batch in batches)

    def attempted(work: int, attempt: str) -> int:
        return work

    assert SparkEngine(spark=spark).by_stages(
        [Stage(works=[1, 2, 3], size=1, read=read, schema=SLOTS, task=number)], 2
    ) == [1, 2]
    assert SparkEngine(spark=spark).run(attempted, [3, 1]) == [3, 1]
