"""The rows of an ingest that replaces a partition key on Spark, with deletes of rows that end."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.definition.schema import DELETED, ENDED_OFFSET, ENDED_SEGMENT, OFFSET, SEGMENT
from opal_lake.definition.table_spec import TableSpec
from opal_lake.read.read import plan_read
from opal_lake.read.view import View
from opal_spark.engine.columns import quoted
from opal_spark.engine.failures import OUTLASTED
from opal_spark.engine.verify import verify_files
from opal_spark.read.reader import cached_invalid, visible_rows

_NEW, _IS_NEW, _ORDER = "_opal_new", "_opal_is_new", "_opal_order"
# Deletes have few columns: more files than this would only cost requests
_MAX_FILES = 8


@contextmanager
def with_ended(spark: SparkSession, rows: DataFrame, view: View) -> Iterator[DataFrame]:
    """Yield a source's rows, and a delete for each other row of the view.

    A row of the view that has no row of its key in the source is deleted.
    The rows are persisted within the context: a second read of a source could have other keys.
    """
    spec = view.snapshot.spec
    persisted = rows.persist()
    try:
        invalid = view.narrowed(cached_invalid(view.snapshot, None))
        plan = plan_read(view.snapshot, None, None, invalid)
        verify_files(spark, view.snapshot, plan.files)
        stored = visible_rows(spark, plan, with_ids=True)
        deletes = _deletes(persisted, stored, spec).coalesce(_MAX_FILES)
        marked = persisted
        if DELETED not in persisted.columns:
            marked = persisted.withColumn(DELETED, F.lit(False))
        yield marked.unionByName(deletes, allowMissingColumns=True)
    finally:
        persisted.unpersist()


def _deletes(rows: DataFrame, stored: DataFrame, spec: TableSpec) -> DataFrame:
    """Return deletes of stored rows whose keys the rows lack.

    A stored row that comes after all rows of its key is an error.
    """
    keys = [quoted(key.name) for key in spec.keys]
    named = [F.col(key).alias(f"_opal_k{index}") for index, key in enumerate(keys)]
    last = rows.select(*named, _order_of(spec).alias(_ORDER))
    hidden = [f"_opal_k{index}" for index in range(len(keys))]
    last = last.groupBy(*hidden).agg(F.max(_ORDER).alias(_NEW), F.lit(True).alias(_IS_NEW))
    fields = spec.ordering
    own = stored.select(
        *[quoted(field.name) for field in fields],
        SEGMENT,
        OFFSET,
        _order_of(spec).alias(_ORDER),
    )
    is_same = F.lit(True)
    for key, other in zip(keys, hidden, strict=True):
        is_same &= F.col(key) == F.col(other)
    joined = own.join(last, is_same, "left")
    is_ended = F.col(_IS_NEW).isNull()
    if not spec.orders_by_commit:
        shown_key = F.to_json(F.struct(*keys))
        text = F.concat(F.lit("mode='replace': for key "), shown_key, F.lit(f", {OUTLASTED}"))
        # A row without a delta has no order: it is put aside, or fails the ingest
        is_outlasted = ~is_ended & (F.col(_NEW) < F.col(_ORDER))
        is_ended = F.when(is_outlasted, F.raise_error(text).cast("boolean")).otherwise(is_ended)
    # The job fills the built-in delta in all its rows
    ordering = [field for field in fields if not spec.orders_by_commit or field != spec.delta]
    return joined.where(is_ended).select(
        *[quoted(field.name) for field in ordering],
        F.lit(True).alias(DELETED),
        F.col(SEGMENT).cast("bigint").alias(ENDED_SEGMENT),
        F.col(OFFSET).cast("int").alias(ENDED_OFFSET),
    )


def _order_of(spec: TableSpec) -> Column:
    """Return delta and tie-breaks as a struct, which compares as rows of a key do.

    Nulls come first in it, too. It is null for a row without a delta.
    """
    if spec.orders_by_commit:
        return F.struct(F.lit(0).alias("commit"))
    order = F.struct(*[quoted(field.name) for field in (spec.delta, *spec.tie_break)])
    return F.when(F.col(quoted(spec.delta.name)).isNotNull(), order)
