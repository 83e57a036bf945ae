"""The tasks of a table's operations, on Spark.

`opal_spark.spark_engine` adds the reads, whose rows are DataFrames.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.data.segment import DataFile
from opal_lake.engine.executor import HASH, EntryTask, Ordering, Stage, T, Task, W
from opal_lake.log.snapshot import Snapshot
from opal_spark.engine.by_key import (
    guess_slots,
    on_entries,
    plan_slots,
    source_by_key,
    stored_by_key,
)
from opal_spark.engine.failures import spark_errors
from opal_spark.engine.session import parallelism, rough_rows
from opal_spark.engine.tasks import (
    FIXED_WIDTH_ROWS,
    collect_outputs,
    rows_a_batch,
    run_stages,
    run_works,
)
from opal_spark.engine.verify import verify_files
from opal_spark.engine.zorder import in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkTasks:
    """The executors of a session as a runner of tasks.

    Each method that takes tasks is one action of Spark. The `rows` of a source are a DataFrame with
    the table's columns.
    """

    spark: SparkSession

    def run(self, task: Callable[[W, str], T], works: Sequence[W]) -> list[T]:
        return run_works(self.spark, task, works)

    def slots(self, entries: int, rows: DataFrame | None = None) -> int:
        cores = parallelism(self.spark)
        if rows is None:
            return plan_slots(entries, cores)
        with spark_errors():  # Spark computes constant values while it plans
            row_count = rough_rows(rows)
        return guess_slots(row_count, entries, cores)

    def by_partition(self, rows: DataFrame, base: Snapshot, task: Task[T]) -> list[T]:
        return collect_outputs(rows, task, rows_a_batch(rows.schema, base))

    def by_key_hash(self, rows: DataFrame, base: Snapshot, slots: int, task: Task[T]) -> list[T]:
        partitions = source_by_key(rows, base.spec, slots)
        batch_rows = rows_a_batch(rows.schema, base)
        return collect_outputs(partitions, task, batch_rows, [*rows.columns, HASH])

    def stored_by_key_hash(
        self,
        base: Snapshot,
        files: Sequence[DataFile],
        slots: int,
        task: EntryTask[T],
        *,
        only: Collection[int] | None = None,
    ) -> list[T]:
        verify_files(self.spark, base, files)
        rows = stored_by_key(self.spark, base, files, slots, only)
        chosen = None if only is None else frozenset(only)
        entry_task = partial(on_entries, task=task, spec=base.spec, chosen=chosen)
        results_by_slot = collect_outputs(rows, entry_task, FIXED_WIDTH_ROWS)
        return list(chain.from_iterable(results_by_slot))

    def in_order(self, ordering: Ordering, task: Task[T]) -> list[list[T]]:
        verify_files(self.spark, ordering.base, [*chain.from_iterable(ordering.bins)])
        return in_order(self.spark, ordering, task)

    def by_stages(self, stages: Sequence[Stage], slots: int) -> list[Any]:
        return run_stages(self.spark, stages, slots)
