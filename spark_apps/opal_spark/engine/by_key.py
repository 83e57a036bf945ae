"""Rows by ranges of the key hash, each range a partition.

A source's rows keep all their columns; stored rows are reduced to what the rule needs.
"""

from collections.abc import Collection, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.data.segment import DataFile
from opal_lake.definition.key_hash import hashes_from_bytes
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import HASH, Attempt, Batches, EntryTask, T
from opal_lake.key_store.entries import Entries, no_entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_spark.engine.key_hash import hash_slot, key_hash, key_hash_sql
from opal_spark.engine.scan import scan_files
from opal_spark.engine.tasks import plainly_named

SLOT_ROWS = 1 << 20
# A smaller slot costs more to start than its rows cost to process
SMALL_SLOT_ROWS = 1 << 16
MAX_SLOTS = 1 << 16
# The limit, or four slots a core, if only Spark's guess of the rows is known, which may be far off
ROUGH_SLOTS = 64
_SLOT, _CHOSEN = "_opal_slot", "_opal_chosen"


def plan_slots(rows: int, cores: int) -> int:
    """Return the number of hash ranges for a batch of rows, a power of two.

    It grows with the rows, so a small batch is cheap; a larger batch has work for all cores.
    """
    slots_for_cores = min(cores, rows / SMALL_SLOT_ROWS)
    slots = max(rows / SLOT_ROWS, slots_for_cores)
    if slots <= 1:
        return 1
    # Rounded up to a power of two, but not from a power of two plus a rounding error
    power = int(slots - 1e-9).bit_length()
    return min(1 << power, MAX_SLOTS)


def guess_slots(rows: int | None, merged: int, cores: int) -> int:
    """Return the number of hash ranges for a guessed number of rows.

    `merged` is the known number of entries that the rows are merged with. Without a guess
    (`rows` is None) there are at least two slots a core.
    """
    min_slots = plan_slots(merged, cores)
    if rows is None:
        two_a_core = 1 << (2 * cores - 1).bit_length()
        return max(min_slots, two_a_core)
    max_slots = 1 << (max(ROUGH_SLOTS, 4 * cores) - 1).bit_length()
    guessed = plan_slots(rows + merged, cores)
    return max(min_slots, min(max_slots, guessed))


def source_by_key(rows: DataFrame, spec: TableSpec, slots: int) -> DataFrame:
    """Return the rows by hash range, with plain column names and the key hash.

    The columns are `_0`, `_1` and so on in the order of `rows`, then HASH.
    """
    names = rows.columns
    keys = [f"_{names.index(field.name)}" for field in spec.keys]
    key_hash_text = key_hash_sql(keys, spec.key_types, "parquet")
    # A row without a key has no hash: it gets zeros here, and the task refuses the row
    hashed = f"coalesce({key_hash_text}, unhex(repeat('0', 32))) AS {HASH}"
    with_hash = plainly_named(rows).selectExpr("*", hashed)
    return with_hash.repartitionById(slots, hash_slot(HASH, slots))


def stored_by_key(
    spark: SparkSession,
    base: Snapshot,
    files: Sequence[DataFile],
    slots: int,
    only: Collection[int] | None,
) -> DataFrame:
    """Return stored rows by hash range, with the columns that the rule needs.

    The key hash replaces the key. With `only`, rows of other slots are left out, and the partitions
    of these slots are empty.
    """
    rows = _hashed_rows(spark, base, files)
    if only is None or len(only) == slots:
        return rows.repartitionById(slots, hash_slot(HASH, slots))
    slot_numbers = pa.array(sorted(only), pa.int32())
    chosen = spark.createDataFrame(pa.table({_CHOSEN: slot_numbers}))
    with_slot = rows.withColumn(_SLOT, hash_slot(HASH, slots))
    is_chosen = F.col(_SLOT) == F.col(_CHOSEN)
    chosen_rows = with_slot.join(F.broadcast(chosen), is_chosen, "left_semi")
    return chosen_rows.repartitionById(slots, F.col(_SLOT)).drop(_SLOT)


def _hashed_rows(spark: SparkSession, base: Snapshot, files: Sequence[DataFile]) -> DataFrame:
    spec = base.spec
    rows = scan_files(spark, base.storage, files, spec)
    keys = [field.physical for field in spec.keys]
    # A key column that also orders the rows is needed next to the hash
    ordering = {field.physical for field in (spec.delta, *spec.tie_break)}
    columns = [name for name in rule_columns(spec) if name not in keys or name in ordering]
    hashed = key_hash(keys, spec.key_types, spec.file_format).alias(HASH)
    return rows.select(hashed, *columns)


def on_entries(
    batches: Batches,
    attempt: Attempt,
    *,
    task: EntryTask[T],
    spec: TableSpec,
    chosen: frozenset[int] | None,
) -> list[T]:
    """Run a task over the stored rows of a slot, within a Spark task.

    Return the task's result in a list, or an empty list for a slot that is not in `chosen`.
    """
    if chosen is not None and attempt.part not in chosen:
        return []
    return [task(entries_of_batches(batches, spec), attempt)]


def entries_of_batches(batches: Batches, spec: TableSpec) -> Entries:
    """Return the stored rows of batches as unsorted entries."""
    read_batches = list(batches)
    if not read_batches:
        return no_entries(len(spec.tie_break))
    rows = pa.Table.from_batches(read_batches)
    return entries_of_rows(rows, spec, hashes_from_bytes(rows[HASH]))
