"""Which mutation of each record counts, and what it does to the master."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake.operations.mutate import Mutate
from opal_lake.source import BY_SUFFIX
from opal_spark.engine.columns import quoted
from opal_spark.mutate.record import Record, comparable
from opal_spark.mutate.rows import BLOCK, DELETED, FILE, ORDER, RANK, ROW, UNTIMED, key, keys

ACTION, OLD, WINNER, CONFLICTS, MUTATIONS = "action", "old", "winner", "conflicts", "mutations"
OLD_PARTITION, OLD_ORDER, FIRST_ORDER, HAVE_LATE = (
    "old_partition",
    "old_order",
    "first_order",
    "have_late",
)
INSERT, UPDATE, DELETE, UNCHANGED, LATE, UNKNOWN = (
    "inserts",
    "updates",
    "deletes",
    "unchanged",
    "late",
    "deletes_of_unknown",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How mutations are compared."""

    record: Record
    by_suffix: bool
    suffix: int | None  # of the master: the greatest of earlier runs

    @classmethod
    def of(cls, job: Mutate, record: Record, suffix: int | None) -> "Rules":
        by_suffix = record.order is None and job.order == BY_SUFFIX
        return cls(record=record, by_suffix=by_suffix, suffix=suffix if by_suffix else None)

    @property
    def can_be_late(self) -> bool:
        return self.record.order is not None or self.suffix is not None


def winners(mutations: DataFrame, rules: Rules) -> DataFrame:
    """One of each record: the latest; of equal ones the one that comes later in the files. Nothing is held for a key that has many."""
    ids = keys(rules.record)
    content = _content(mutations)
    differs = F.min(content) != F.max(content)
    if rules.by_suffix:
        differs = differs & (F.min(FILE) != F.max(FILE))
    ties = rules.by_suffix or rules.record.order is not None
    latest = F.max_by(F.struct(ROW, DELETED, FILE, UNTIMED, ORDER), F.struct(FILE, BLOCK, RANK))
    first = F.min(F.when(~F.col(UNTIMED), F.col(ORDER)))
    by_order = mutations.groupBy(*ids, UNTIMED, ORDER).agg(
        latest.alias(WINNER),
        F.count(F.lit(1)).alias(MUTATIONS),
        F.when(F.lit(ties) & differs, F.lit(1)).otherwise(F.lit(0)).alias(CONFLICTS),
    )
    last = F.max_by(WINNER, F.struct(UNTIMED, ORDER)).alias(WINNER)
    return by_order.groupBy(*ids).agg(
        last,
        F.sum(MUTATIONS).alias(MUTATIONS),
        F.sum(CONFLICTS).alias(CONFLICTS),
        first.alias(FIRST_ORDER),
    )


def _content(mutations: DataFrame) -> Column:
    """A hash of a row and of what it does. Spark's hash passes over nulls, so that each field says first whether it is one."""
    kind = mutations.schema[ROW].dataType
    assert isinstance(kind, StructType)
    values = [(F.col(ROW).getField(field.name), field.dataType) for field in kind]
    return F.xxhash64(
        F.col(DELETED),
        *(part for value, of in values for part in (value.isNull(), comparable(value, of))),
    )


def _equal(row: Column, other: Column, fields: StructType) -> Column:
    """Whether all fields are, nulls too."""
    pairs = [
        (
            comparable(row.getField(one.name), one.dataType),
            comparable(other.getField(one.name), one.dataType),
        )
        for one in fields
    ]
    return reduce(Column.__and__, (value.eqNullSafe(old) for value, old in pairs))


def touched_rows(master: DataFrame, wins: DataFrame, rules: Rules) -> DataFrame:
    """Rows of the master whose records have a mutation, one of each id."""
    record, ids = rules.record, keys(rules.record)
    order = (
        F.lit(rules.suffix).cast("long") if record.order is None else record.order_of(record.order)
    )
    columns = [F.col(quoted(name)).alias(key(number)) for number, name in enumerate(record.ids)]
    columns += [
        F.struct(*[F.col(quoted(name)) for name in record.fields.names]).alias(OLD),
        order.alias(OLD_ORDER),
    ]
    found = master.select(*columns).join(wins.select(*ids), ids)
    partition = F.collect_set(
        F.struct(
            *[F.col(OLD).getField(name).cast("string").alias(name) for name in record.partition_by]
        )
    )
    parts = [partition.alias(OLD_PARTITION)] if record.partition_by else []
    return found.groupBy(*ids).agg(
        F.max_by(OLD, OLD_ORDER).alias(OLD)
        if record.order is not None
        else F.first(OLD).alias(OLD),
        F.max(OLD_ORDER).alias(OLD_ORDER),
        F.count(F.lit(1)).alias("copies"),
        *parts,
    )


def decided(wins: DataFrame, old: DataFrame | None, rules: Rules) -> DataFrame:
    """What becomes of each record."""
    ids = keys(rules.record)
    deleted = F.col(WINNER).getField(DELETED)
    if old is None:
        action = F.when(deleted, F.lit(UNKNOWN)).otherwise(F.lit(INSERT))
        return wins.withColumns({ACTION: action, OLD_ORDER: F.lit(None).cast("string")})
    found = wins.join(old, ids, "left")
    won_by_old = is_late(F.col(WINNER).getField(UNTIMED), F.col(WINNER).getField(ORDER), rules)
    same = _equal(F.col(WINNER).getField(ROW), F.col(OLD), rules.record.fields) & (
        F.col("copies") == 1
    )
    action = (
        F.when(F.col("copies").isNull() & deleted, F.lit(UNKNOWN))
        .when(F.col("copies").isNull(), F.lit(INSERT))
        .when(won_by_old, F.lit(LATE))
        .when(deleted, F.lit(DELETE))
        .when(same, F.lit(UNCHANGED))
        .otherwise(F.lit(UPDATE))
    )
    clash = (
        (F.col(WINNER).getField(ORDER) == F.col(OLD_ORDER)) & ~deleted & ~same
        if rules.record.order is not None
        else F.lit(False)
    )
    more = F.coalesce(clash, F.lit(False)).cast("int")
    return found.withColumns({ACTION: action, CONFLICTS: F.col(CONFLICTS) + more}).drop(
        OLD, "copies"
    )


def is_late(untimed: Column, order: Column, rules: Rules) -> Column:
    """Whether a mutation is older than what the master has; null orders are older than all."""
    if not rules.can_be_late:
        return F.lit(False)
    return F.coalesce(~untimed & (order < F.col(OLD_ORDER)), F.lit(False))


def by_file(mutations: DataFrame, decisions: DataFrame, rules: Rules) -> DataFrame:
    """Of each file: what its mutations did. Those that are neither late nor count lost to another of the same run."""
    ids = keys(rules.record)
    known = decisions.select(*ids, OLD_ORDER)
    late = is_late(F.col(UNTIMED), F.col(ORDER), rules)
    return mutations.join(known, ids).groupBy(FILE).agg(F.sum(late.cast("int")).alias(LATE))


def actions_by_file(decisions: DataFrame, rules: Rules) -> DataFrame:
    """Counts of what was decided, and of records that have a late mutation."""
    late = is_late(F.lit(False), F.col(FIRST_ORDER), rules)
    return decisions.groupBy(F.col(WINNER).getField(FILE).alias(FILE), ACTION).agg(
        F.count(F.lit(1)).alias("records"),
        F.sum(CONFLICTS).alias(CONFLICTS),
        F.count_if(late).alias(HAVE_LATE),
    )


def touched_partitions(
    decisions: DataFrame, record: Record, *, has_master: bool
) -> set[tuple[str | None, ...]]:
    """Values of the folders whose records change: where they go, and where they were."""
    names = record.partition_by
    new = F.struct(
        *[F.col(WINNER).getField(ROW).getField(name).cast("string").alias(name) for name in names]
    )
    rows = decisions.where(F.col(ACTION).isin(INSERT, UPDATE)).select(new.alias("folder"))
    if has_master:
        changed = decisions.where(F.col(ACTION).isin(UPDATE, DELETE))
        rows = rows.union(changed.select(F.explode(OLD_PARTITION).alias("folder")))
    return {tuple(row.folder) for row in rows.distinct().collect()}


def new_rows(decisions: DataFrame, record: Record) -> DataFrame:
    """What is put into the new master."""
    row = F.col(WINNER).getField(ROW)
    columns = [row.getField(name).alias(name) for name in record.fields.names]
    return decisions.where(F.col(ACTION).isin(INSERT, UPDATE)).select(*columns)


def replaced_ids(decisions: DataFrame, ids: Sequence[str]) -> DataFrame:
    """Of records whose old rows go."""
    return decisions.where(F.col(ACTION).isin(UPDATE, DELETE)).select(*ids)
