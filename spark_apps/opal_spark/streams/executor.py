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
    """The engine of a micro-batch, with the number of its messages.

    A small micro-batch is one task, and so one file. Spark's errors become OpalErrors before the
    writer sees them, so that the writer waits after a transient error. Batches for Python are
    limited by bytes, too, because the size of messages is unknown.
    """

    messages: int

    def slots(self, entries: int, rows: DataFrame | None = None) -> int:
        """Return the number of tasks for entries of the key store and the messages."""
        if rows is not None:
            entries += self.messages
        return plan_slots(entries, parallelism(self.spark))

    def by_key_hash(self, rows: DataFrame, base: Snapshot, slots: int, task: Task[T]) -> list[T]:
        """Run a task for each range of the key hash."""
        with spark_errors():
            by_key = source_by_key(rows, base.spec, slots)
            return collect_outputs(by_key, task, None, [*rows.columns, HASH])
