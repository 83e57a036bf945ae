"""MetaGen on Spark: pending rows to their hash range, the rule in each task, one commit."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from opal_lake import layout
from opal_lake.inline import HASH
from opal_lake.job import JobResult
from opal_lake.key_hash import hashes_from_bytes
from opal_lake.key_store.entries import Entries, no_entries
from opal_lake.metagen import entries_of_rows, rule_columns
from opal_lake.metagen_job import MetaGenPlan, commit_metagen
from opal_lake.ruled import Ruled, slot_writer
from opal_lake.schema import Atomic
from opal_lake.segment import DataFile
from opal_lake.slot import Slot, SlotWriter, output_from_json, output_to_json, process_slot
from opal_lake.snapshot import Snapshot
from opal_lake.storage.behind import puts_behind
from opal_lake.table import Table
from opal_lake.table_spec import TableSpec
from opal_spark.columns import spark_schema
from opal_spark.key_hash import hash_slot, key_hash
from opal_spark.outputs import FIXED_WIDTH_ROWS, collect_outputs
from opal_spark.scan import scan_files
from opal_spark.session import parallelism
from opal_spark.verify import verify_files

SLOT_ROWS = 1 << 20
SMALL_SLOT_ROWS = 1 << 16
MOST_SLOTS = 1 << 16


def metagen(spark: SparkSession, table: Table, token: str | None) -> JobResult:
    """Make all pending rows visible."""
    plan = table.start_metagen(token)
    if isinstance(plan, JobResult):
        return plan
    base = plan.base
    writer = slot_writer(base, plan.number, table.cache)
    if not plan.files:
        return commit_metagen(table.log, plan, Ruled(writer=writer, outputs=()), token)
    verify_files(spark, table, base, plan.files)
    slots = plan_slots(plan.rows + writer.merged_entries, parallelism(spark))
    task = partial(_process, spec=base.spec, writer=writer, slots=slots)
    outputs = collect_outputs(_by_hash(spark, plan, slots), task, FIXED_WIDTH_ROWS)
    ruled = Ruled(writer=writer, outputs=tuple(output_from_json(output) for output in outputs), slots=slots)
    return commit_metagen(table.log, plan, ruled, token)


def plan_slots(rows: int, cores: int) -> int:
    """How many hash ranges: a power of two that follows the batch, so that the cost does, with work for all cores."""
    wanted = max(rows / SLOT_ROWS, min(cores, rows / SMALL_SLOT_ROWS), 1)
    return int(min(1 << (int(wanted - 1e-9).bit_length() if wanted > 1 else 0), MOST_SLOTS))


def _by_hash(spark: SparkSession, plan: MetaGenPlan, slots: int) -> DataFrame:
    return hashed_rows(spark, plan.base, plan.files).repartitionById(slots, hash_slot(HASH, slots))


def hashed_rows(spark: SparkSession, base: Snapshot, files: Sequence[DataFile]) -> DataFrame:
    """What the rule looks at, with the hash in the place of the key."""
    spec = base.spec
    rows = scan_files(spark, base.storage, files, spark_schema(spec, physical=True), spec.file_format)
    keys = [field.physical for field in spec.keys]
    types = [field.type for field in spec.keys if isinstance(field.type, Atomic)]
    ordering = {field.physical for field in (spec.delta, *spec.tie_break)}
    columns = [name for name in rule_columns(spec) if name not in keys or name in ordering]
    return rows.select(key_hash(keys, types, spec.file_format).alias(HASH), *columns)


def entries_of_batches(batches: Iterable[pa.RecordBatch], spec: TableSpec) -> Entries:
    """The same as unsorted entries, in a task."""
    held = list(batches)
    if not held:
        return no_entries(len(spec.tie_break))
    rows = pa.Table.from_batches(held)
    return entries_of_rows(rows, spec, hashes_from_bytes(rows[HASH]))


def _process(batches: Iterable[pa.RecordBatch], *, spec: TableSpec, writer: SlotWriter, slots: int) -> Any:
    slot = this_slot(writer.number, slots)
    new = entries_of_batches(batches, spec)
    with puts_behind(writer.storage) as storage:
        return output_to_json(process_slot(new, replace(writer, storage=storage), slot))


def this_slot(number: int, slots: int) -> Slot:
    """The slot of the task that runs here: `repartitionById` gives each slot a task of its number."""
    context = TaskContext.get()
    assert context is not None
    place = context.partitionId()
    return Slot(number=place, count=slots, stem=layout.job_file_name(number, place, str(context.taskAttemptId())))
