"""A rebuild of the key store on Spark: all processed rows to their hash range, a run and its record in each task, one commit."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.inline import HASH
from opal_lake.job import JobResult
from opal_lake.rebuild import RebuildPlan, RebuildTask, commit_rebuild, plan_rebuild, rebuild_slot
from opal_lake.slot import output_from_json, output_to_json
from opal_lake.table import Table
from opal_lake.table_spec import TableSpec
from opal_spark.key_hash import hash_slot
from opal_spark.metagen import entries_of_batches, hashed_rows, plan_slots
from opal_spark.outputs import FIXED_WIDTH_ROWS, collect_outputs
from opal_spark.session import parallelism
from opal_spark.verify import verify_files

_SLOT, _LEFT = "_opal_slot", "_opal_left"


def rebuild_key_store(spark: SparkSession, table: Table, token: str | None) -> JobResult:
    """Make the key store anew from the data files."""
    plan = plan_rebuild(table.log, token, lambda rows: plan_slots(rows, parallelism(spark)))
    if isinstance(plan, JobResult):
        return plan
    outputs = []
    if plan.left:
        verify_files(spark, table, plan.base, plan.files)
        task = partial(_rebuild, spec=plan.base.spec, task=plan.task(table.cache), left=frozenset(plan.left))
        outputs = collect_outputs(_by_hash(spark, plan), task, FIXED_WIDTH_ROWS)
    return commit_rebuild(table.log, plan, [output_from_json(output) for output in outputs if output], token)


def _by_hash(spark: SparkSession, plan: RebuildPlan) -> DataFrame:
    """What the rule looks at, of the slots that are left, each in a partition of its own."""
    placed = hashed_rows(spark, plan.base, plan.files).withColumn(_SLOT, hash_slot(HASH, plan.slots))
    if plan.done:
        left = spark.createDataFrame(pa.table({_LEFT: pa.array(plan.left, pa.int32())}))
        placed = placed.join(F.broadcast(left), F.col(_SLOT) == F.col(_LEFT), "left_semi")
    return placed.repartitionById(plan.slots, F.col(_SLOT)).drop(_SLOT)


def _rebuild(batches: Iterable[pa.RecordBatch], *, spec: TableSpec, task: RebuildTask, left: frozenset[int]) -> Any:
    context = TaskContext.get()
    assert context is not None
    slot = context.partitionId()
    if slot not in left:
        return None
    entries = entries_of_batches(batches, spec)
    return output_to_json(rebuild_slot(entries, task, slot, str(context.taskAttemptId())))
