"""Decisions: the mutation of each record that counts, and its action on the master."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake.operations.mutate import Mutate
from opal_lake.source import BY_SUFFIX
from opal_spark.engine.columns import columns_named
from opal_spark.mutate.record import Record, comparable
from opal_spark.mutate.rows import BLOCK, DELETED, FILE, ORDER, RANK, ROW, UNTIMED, id_columns, keys

# Columns of decisions, and of the DataFrames from which they are made
ACTION, OLD, WINNER = "action", "old", "winner"
CONFLICTS, MUTATIONS = "conflicts", "mutations"
OLD_PARTITION, OLD_ORDER = "old_partition", "old_order"
FIRST_ORDER, HAVE_LATE = "first_order", "have_late"
_COPIES = "copies"
# Actions
INSERT, UPDATE, DELETE = "inserts", "updates", "deletes"
UNCHANGED, LATE, UNKNOWN = "unchanged", "late", "deletes_of_unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules by which mutations are compared.

    `by_suffix` is set if the suffixes of files are the order. Then `suffix` is the greatest suffix
    that earlier runs merged; otherwise it is None.
    """

    record: Record
    by_suffix: bool
    suffix: int | None

    @classmethod
    def of(cls, job: Mutate, record: Record, suffix: int | None) -> "Rules":
        if record.order is None and job.order == BY_SUFFIX:
            return cls(record=record, by_suffix=True, suffix=suffix)
        return cls(record=record, by_suffix=False, suffix=None)

    @property
    def can_be_late(self) -> bool:
        return self.record.order is not None or self.suffix is not None


def winners(mutations: DataFrame, rules: Rules) -> DataFrame:
    """Return each record's latest mutation, and its count of mutations and conflicts.

    Of mutations with the same order, the last one in the files is the latest. A conflict is an
    order for which a record has mutations with different content. Spark aggregates without
    collecting the mutations of a record, which may be many.
    """
    ids = keys(rules.record)
    content = _content(mutations)
    differs = F.min(content) != F.max(content)
    if rules.by_suffix:
        # The rows of one file have an order; a conflict needs two files with the same suffix
        differs = differs & (F.min(FILE) != F.max(FILE))
    can_conflict = rules.by_suffix or rules.record.order is not None
    conflicts = F.when(F.lit(can_conflict) & differs, F.lit(1)).otherwise(F.lit(0))
    position = F.struct(FILE, BLOCK, RANK)
    last_in_files = F.max_by(F.struct(ROW, DELETED, FILE, UNTIMED, ORDER), position)
    by_order = mutations.groupBy(*ids, UNTIMED, ORDER).agg(
        last_in_files.alias(WINNER),
        F.count(F.lit(1)).alias(MUTATIONS),
        conflicts.alias(CONFLICTS),
    )
    # The null order of untimed rows does not count as the first order
    first_order = F.min(F.when(~F.col(UNTIMED), F.col(ORDER)))
    return by_order.groupBy(*ids).agg(
        F.max_by(WINNER, F.struct(UNTIMED, ORDER)).alias(WINNER),
        F.sum(MUTATIONS).alias(MUTATIONS),
        F.sum(CONFLICTS).alias(CONFLICTS),
        first_order.alias(FIRST_ORDER),
    )


def _content(mutations: DataFrame) -> Column:
    """Return a hash of a mutation's row, and of whether the mutation deletes."""
    kind = mutations.schema[ROW].dataType
    assert isinstance(kind, StructType)
    parts = [F.col(DELETED)]
    for field in kind:
        value = F.col(ROW).getField(field.name)
        # Spark's hash skips nulls, so whether a value is null is hashed as well
        parts += [value.isNull(), comparable(value, field.dataType)]
    return F.xxhash64(*parts)


def _are_equal(row: Column, other: Column, fields: StructType) -> Column:
    """Return whether all fields of two rows are equal; two nulls are equal."""
    are_equal = []
    for field in fields:
        value = comparable(row.getField(field.name), field.dataType)
        other_value = comparable(other.getField(field.name), field.dataType)
        are_equal.append(value.eqNullSafe(other_value))
    return reduce(Column.__and__, are_equal)


def touched_rows(master: DataFrame, wins: DataFrame, rules: Rules) -> DataFrame:
    """Return one row of the master for each record that has a mutation.

    If the master has several rows of a record, the row with the greatest order is returned.
    """
    record = rules.record
    ids = keys(record)
    row = F.struct(*columns_named(record.fields.names))
    if record.order is None:
        order = F.lit(rules.suffix).cast("long")
        old = F.first(OLD)
    else:
        order = record.order_of(record.order)
        old = F.max_by(OLD, OLD_ORDER)
    rows = master.select(*id_columns(record), row.alias(OLD), order.alias(OLD_ORDER))
    touched = rows.join(wins.select(*ids), ids)
    aggregates = [
        old.alias(OLD),
        F.max(OLD_ORDER).alias(OLD_ORDER),
        F.count(F.lit(1)).alias(_COPIES),
    ]
    if record.partition_by:
        folder = _folder(F.col(OLD), record)
        aggregates.append(F.collect_set(folder).alias(OLD_PARTITION))
    return touched.groupBy(*ids).agg(*aggregates)


def _folder(row: Column, record: Record) -> Column:
    """Return a struct of a row's values of the fields that folders name, as texts."""
    names = record.partition_by
    return F.struct(*[row.getField(name).cast("string").alias(name) for name in names])


def decided(wins: DataFrame, old: DataFrame | None, rules: Rules) -> DataFrame:
    """Return the winning mutations with their actions; `old` are the master's rows."""
    ids = keys(rules.record)
    winner = F.col(WINNER)
    deleted = winner.getField(DELETED)
    if old is None:
        action = F.when(deleted, F.lit(UNKNOWN)).otherwise(F.lit(INSERT))
        return wins.withColumns({ACTION: action, OLD_ORDER: F.lit(None).cast("string")})
    with_old = wins.join(old, ids, "left")
    is_new = F.col(_COPIES).isNull()
    is_late_win = is_late(winner.getField(UNTIMED), winner.getField(ORDER), rules)
    is_equal = _are_equal(winner.getField(ROW), F.col(OLD), rules.record.fields)
    # Several copies of a record in the master become one row, so they are not unchanged
    is_same = is_equal & (F.col(_COPIES) == 1)
    action = (
        F.when(is_new & deleted, F.lit(UNKNOWN))
        .when(is_new, F.lit(INSERT))
        .when(is_late_win, F.lit(LATE))
        .when(deleted, F.lit(DELETE))
        .when(is_same, F.lit(UNCHANGED))
        .otherwise(F.lit(UPDATE))
    )
    clash = F.lit(False)
    if rules.record.order is not None:
        clash = (winner.getField(ORDER) == F.col(OLD_ORDER)) & ~deleted & ~is_same
    conflicts = F.col(CONFLICTS) + F.coalesce(clash, F.lit(False)).cast("int")
    decisions = with_old.withColumns({ACTION: action, CONFLICTS: conflicts})
    return decisions.drop(OLD, _COPIES)


def is_late(untimed: Column, order: Column, rules: Rules) -> Column:
    """Return whether a mutation is older than the master's row.

    A mutation with a null order is not late, and neither is one whose master's row has none.
    """
    if not rules.can_be_late:
        return F.lit(False)
    return F.coalesce(~untimed & (order < F.col(OLD_ORDER)), F.lit(False))


def by_file(mutations: DataFrame, decisions: DataFrame, rules: Rules) -> DataFrame:
    """Return the number of late mutations of each file."""
    ids = keys(rules.record)
    known = decisions.select(*ids, OLD_ORDER)
    late = is_late(F.col(UNTIMED), F.col(ORDER), rules)
    late_count = F.sum(late.cast("int")).alias(LATE)
    return mutations.join(known, ids).groupBy(FILE).agg(late_count)


def actions_by_file(decisions: DataFrame, rules: Rules) -> DataFrame:
    """Return a row for each file and action, with counts of records.

    HAVE_LATE counts the records that have a late mutation.
    """
    late = is_late(F.lit(False), F.col(FIRST_ORDER), rules)
    file = F.col(WINNER).getField(FILE).alias(FILE)
    return decisions.groupBy(file, ACTION).agg(
        F.count(F.lit(1)).alias("records"),
        F.sum(CONFLICTS).alias(CONFLICTS),
        F.count_if(late).alias(HAVE_LATE),
    )


def touched_partitions(
    decisions: DataFrame, record: Record, *, has_master: bool
) -> set[tuple[str | None, ...]]:
    """Return the values of all folders that lose a row or get a row."""
    new_folder = _folder(F.col(WINNER).getField(ROW), record)
    written = decisions.where(F.col(ACTION).isin(INSERT, UPDATE))
    folders = written.select(new_folder.alias("folder"))
    if has_master:
        removed = decisions.where(F.col(ACTION).isin(UPDATE, DELETE))
        folders = folders.union(removed.select(F.explode(OLD_PARTITION).alias("folder")))
    return {tuple(row.folder) for row in folders.distinct().collect()}


def new_rows(decisions: DataFrame, record: Record) -> DataFrame:
    """Return the rows that are written to the new master."""
    row = F.col(WINNER).getField(ROW)
    columns = [row.getField(name).alias(name) for name in record.fields.names]
    written = decisions.where(F.col(ACTION).isin(INSERT, UPDATE))
    return written.select(*columns)


def replaced_ids(decisions: DataFrame, ids: Sequence[str]) -> DataFrame:
    """Return the ids of records whose rows in the master are removed or replaced."""
    removed = decisions.where(F.col(ACTION).isin(UPDATE, DELETE))
    return removed.select(*ids)
