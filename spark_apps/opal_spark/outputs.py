"""How tasks tell the driver what they wrote: one JSON text a task."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from zipimport import zipimporter

import pyarrow as pa
from pyspark.sql import DataFrame

from opal_spark.session import arrow_batches

OUTPUT = "output string"
FIXED_WIDTH_ROWS = 10_000
_SPARKS_ARCHIVES = ("pyspark.zip", "py4j-", "spark-core_")


def collect_outputs(
    rows: DataFrame, task: Callable[[Iterable[pa.RecordBatch]], Any], rows_a_batch: int | None, names: Sequence[str] = ()
) -> list[Any]:
    """Run a task over each partition and bring back its JSON values. Without `rows_a_batch` Spark cuts batches by rows and by bytes.

    `names` are what the task calls the columns, where `rows` has plain names for them already.
    """
    called = list(names) or rows.columns

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        named = (batch.rename_columns(called) for batch in batches)
        yield pa.RecordBatch.from_pydict({"output": [json.dumps(task(named))]})
        forget_archives()

    plain = rows if names else plainly_named(rows)
    with arrow_batches(rows.sparkSession, rows_a_batch):
        return [json.loads(row.output) for row in plain.mapInArrow(run, OUTPUT).collect()]


def plainly_named(rows: DataFrame) -> DataFrame:
    """`_0`, `_1` and so on: mapInArrow fails on names with dots or backticks."""
    return rows.toDF(*[f"_{place}" for place in range(len(rows.columns))])


def forget_archives() -> None:
    """Spare the next task of this worker 0.2 s.

    Spark lets every task begin with `importlib.invalidate_caches()`, and before Python 3.12 each archive on the path is read anew there.
    An importer that is not remembered is not asked; the next import that looks for one makes it. Only Spark's own archives, which are
    large, and the same for as long as a worker lives: others may have been replaced.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter) and os.path.basename(importer.archive).startswith(_SPARKS_ARCHIVES):
            sys.path_importer_cache.pop(path, None)
