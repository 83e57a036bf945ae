"""Inline ingest on Spark: one shuffle by key hash, one stage whose tasks write rows and apply the rule to them, one commit."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from opal_lake.ingest import IngestTask
from opal_lake.ingest_job import IngestRun, commit_ingest
from opal_lake.inline import HASH, inline_rows, output_from_json, output_to_json
from opal_lake.job import JobResult
from opal_lake.ruled import Ruled, slot_writer
from opal_lake.schema import Atomic
from opal_lake.slot import SlotWriter
from opal_lake.storage.behind import puts_behind
from opal_lake.table import Table
from opal_lake.table_spec import TableSpec
from opal_spark.ingest import fitting, rows_a_batch
from opal_spark.key_hash import hash_slot, key_hash_sql
from opal_spark.metagen import plan_slots, this_slot
from opal_spark.outputs import collect_outputs, plainly_named
from opal_spark.session import parallelism, rough_rows

ROUGH_SLOTS = 64  # at most, or four a core: Spark's guess of a source's rows may be wildly high


def ingest_inline(table: Table, rows: DataFrame, run: IngestRun) -> JobResult:
    """Rows become segments that are visible at once."""
    spec, spark = run.base.spec, rows.sparkSession
    writer = slot_writer(run.base, run.number, table.cache)
    fit = fitting(rows, spec, together=False)
    cores = parallelism(spark)
    slots = guess_slots(rough_rows(fit), writer.merged_entries, cores)
    task = partial(_write, spec=spec, writer=writer, slots=slots, quarantine=run.quarantine)
    shuffled, batch_rows = _by_hash(fit, spec, slots), rows_a_batch(fit.schema, run.base)
    found = [output_from_json(output) for output in collect_outputs(shuffled, task, batch_rows, [*fit.columns, HASH])]
    ruled = Ruled(writer=writer, outputs=tuple(output.ruled for output in found), slots=slots)
    return commit_ingest(table.log, run, [output.ingested for output in found], ruled)


def guess_slots(rows: int | None, merged: int, cores: int) -> int:
    """As for a known number of rows; two slots a core where nothing is known."""
    least = plan_slots(merged, cores)
    if rows is None:
        return max(least, 1 << (2 * cores - 1).bit_length())
    most = 1 << (max(ROUGH_SLOTS, 4 * cores) - 1).bit_length()
    return max(least, min(most, plan_slots(rows + merged, cores)))


def _by_hash(fit: DataFrame, spec: TableSpec, slots: int) -> DataFrame:
    names = fit.columns
    keys = [f"_{names.index(field.name)}" for field in spec.keys]
    types = [field.type for field in spec.keys if isinstance(field.type, Atomic)]
    # rows without a key are refused by the task that gets them
    hashed = f"coalesce({key_hash_sql(keys, types, 'parquet')}, unhex(repeat('0', 32))) AS {HASH}"
    return plainly_named(fit).selectExpr("*", hashed).repartitionById(slots, hash_slot(HASH, slots))


def _write(batches: Iterable[pa.RecordBatch], *, spec: TableSpec, writer: SlotWriter, slots: int, quarantine: bool) -> Any:
    slot = this_slot(writer.number, slots)
    attempt = slot.stem.rpartition("-")[2]
    with puts_behind(writer.storage) as storage:
        task = IngestTask(storage=storage, spec=spec, number=writer.number, task=slot.number, attempt=attempt, quarantine=quarantine)
        return output_to_json(inline_rows(batches, task, replace(writer, storage=storage), slot))
