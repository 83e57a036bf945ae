"""Rows by ranges of the key hash, each range a partition: a source's rows with all their columns, stored rows as the rule sees them."""

from collections.abc import Collection, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.data.segment import DataFile
from opal_lake.definition.key_hash import hashes_from_bytes
from opal_lake.definition.schema import Atomic
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import HASH, Attempt, Batches, EntryTask, T
from opal_lake.key_store.entries import Entries, no_entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_spark.engine.columns import spark_schema
from opal_spark.engine.key_hash import hash_slot, key_hash, key_hash_sql
from opal_spark.engine.scan import scan_files
from opal_spark.engine.tasks import plainly_named

SLOT_ROWS = 1 << 20
SMALL_SLOT_ROWS = 1 << 16
MOST_SLOTS = 1 << 16
ROUGH_SLOTS = 64  # at most, or four a core: Spark's guess of a source's rows may be wildly high
_SLOT, _CHOSEN = "_opal_slot", "_opal_chosen"


def plan_slots(rows: int, cores: int) -> int:
    """How many hash ranges: a power of two that follows the batch, so that the cost does, with work for all cores."""
    slots = max(rows / SLOT_ROWS, min(cores, rows / SMALL_SLOT_ROWS), 1)
    return int(min(1 << (int(slots - 1e-9).bit_length() if slots > 1 else 0), MOST_SLOTS))


def guess_slots(rows: int | None, merged: int, cores: int) -> int:
    """As for a known number of rows; two slots a core where nothing is known."""
    least = plan_slots(merged, cores)
    if rows is None:
        return max(least, 1 << (2 * cores - 1).bit_length())
    most = 1 << (max(ROUGH_SLOTS, 4 * cores) - 1).bit_length()
    return max(least, min(most, plan_slots(rows + merged, cores)))


def source_by_key(rows: DataFrame, spec: TableSpec, slots: int) -> DataFrame:
    """The rows with plain names, and the hash as the last column."""
    names = rows.columns
    keys = [f"_{names.index(field.name)}" for field in spec.keys]
    types = [field.type for field in spec.keys if isinstance(field.type, Atomic)]
    # rows without a key are refused by the task that gets them
    hashed = f"coalesce({key_hash_sql(keys, types, 'parquet')}, unhex(repeat('0', 32))) AS {HASH}"
    return (
        plainly_named(rows).selectExpr("*", hashed).repartitionById(slots, hash_slot(HASH, slots))
    )


def stored_by_key(
    spark: SparkSession,
    base: Snapshot,
    files: Sequence[DataFile],
    slots: int,
    only: Collection[int] | None,
) -> DataFrame:
    """The columns that the rule needs, with the hash instead of the key; only of the chosen slots, if some are chosen."""
    rows = _hashed_rows(spark, base, files)
    if only is None or len(only) == slots:
        return rows.repartitionById(slots, hash_slot(HASH, slots))
    chosen = spark.createDataFrame(pa.table({_CHOSEN: pa.array(sorted(only), pa.int32())}))
    placed = rows.withColumn(_SLOT, hash_slot(HASH, slots)).join(
        F.broadcast(chosen), F.col(_SLOT) == F.col(_CHOSEN), "left_semi"
    )
    return placed.repartitionById(slots, F.col(_SLOT)).drop(_SLOT)


def _hashed_rows(spark: SparkSession, base: Snapshot, files: Sequence[DataFile]) -> DataFrame:
    spec = base.spec
    rows = scan_files(
        spark, base.storage, files, spark_schema(spec, physical=True), spec.file_format
    )
    keys = [field.physical for field in spec.keys]
    types = [field.type for field in spec.keys if isinstance(field.type, Atomic)]
    ordering = {field.physical for field in (spec.delta, *spec.tie_break)}
    columns = [name for name in rule_columns(spec) if name not in keys or name in ordering]
    return rows.select(key_hash(keys, types, spec.file_format).alias(HASH), *columns)


def on_entries(
    batches: Batches,
    attempt: Attempt,
    *,
    task: EntryTask[T],
    spec: TableSpec,
    chosen: frozenset[int] | None,
) -> list[T]:
    """A task over stored rows. It returns nothing for a slot that was not chosen: its partition is empty."""
    return (
        [task(entries_of_batches(batches, spec), attempt)]
        if chosen is None or attempt.part in chosen
        else []
    )


def entries_of_batches(batches: Batches, spec: TableSpec) -> Entries:
    """Stored rows as unsorted entries, in a task."""
    held = list(batches)
    if not held:
        return no_entries(len(spec.tie_break))
    rows = pa.Table.from_batches(held)
    return entries_of_rows(rows, spec, hashes_from_bytes(rows[HASH]))
