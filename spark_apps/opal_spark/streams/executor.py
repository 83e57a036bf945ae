"""The executor of a micro-batch from Kafka."""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from opal_lake.engine.executor import HASH, T, Task
from opal_lake.log.snapshot import Snapshot
from opal_spark.engine.by_key import plan_slots, source_by_key
from opal_spark.engine.failures import spark_errors
from opal_spark.engine.session import parallelism
from opal_spark.engine.tasks import collect_outputs
from opal_spark.spark_engine import SparkEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchExecutor(SparkEngine):
    """Offsets tell how many rows come, of which Spark knows nothing: a small micro-batch is one task, and one file.

    Errors are ours before the writer sees them, so that it waits for what passes. Batches for Python are cut by bytes, too: nobody knows
    how large a message is.
    """

    messages: int

    def slots(self, entries: int, rows: DataFrame | None = None) -> int:
        return plan_slots(entries + (0 if rows is None else self.messages), parallelism(self.spark))

    def by_key_hash(self, rows: DataFrame, base: Snapshot, slots: int, task: Task[T]) -> list[T]:
        with spark_errors():
            return collect_outputs(
                source_by_key(rows, base.spec, slots), task, None, [*rows.columns, HASH]
            )
