"""Pieces of work over Spark's tasks, one each; what a piece is and does is the lake's own business."""

import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from opal_lake.compaction import Spread
from opal_spark.outputs import collect_outputs

_SCHEMA = pa.schema([pa.field("place", pa.int32(), False), pa.field("work", pa.binary(), False)])


def spread_over(spark: SparkSession) -> Spread:
    """In the order of the works, whatever order they are done in."""

    def spread(task: Callable[[Any, str], Any], works: Sequence[Any]) -> list[Any]:
        if not works:
            return []
        table = pa.table([pa.array(range(len(works)), pa.int32()), pa.array(map(pickle.dumps, works), pa.binary())], schema=_SCHEMA)
        rows = spark.createDataFrame(table).repartitionById(len(works), F.col("place"))
        found = dict(pair for pairs in collect_outputs(rows, partial(_done, task=task), None) for pair in pairs)
        return [found[place] for place in range(len(works))]

    return spread


def _done(batches: Iterable[pa.RecordBatch], *, task: Callable[[Any, str], Any]) -> list[tuple[int, Any]]:
    context = TaskContext.get()
    assert context is not None
    attempt = str(context.taskAttemptId())
    rows = (row for batch in batches for row in batch.to_pylist())
    return [(row["place"], task(pickle.loads(row["work"]), attempt)) for row in rows]  # the driver's own
