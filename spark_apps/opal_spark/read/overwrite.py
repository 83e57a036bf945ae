"""The rows of an overwrite on Spark, and of a drop of partitions.

The rows of the source's keys are looked up in the key store, and the region's rows are scanned. The
two are joined by row id: a row of the region that no row of the source replaces is deleted.
"""

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT, arrow_type
from opal_lake.errors import InvalidInputError
from opal_lake.read.region import RegionTest
from opal_lake.read.statement import StatementPlan, region_test
from opal_spark.engine.columns import columns_named, quoted
from opal_spark.engine.failures import OUTSIDE
from opal_spark.engine.session import rows_from_arrow
from opal_spark.read.clause_scope import with_scope
from opal_spark.read.reader import rows_with_ids
from opal_spark.read.statement import (
    OF_SOURCE,
    Pairs,
    condition_column,
    made_row,
    rows_of_pairs,
    source_rows,
    with_frame,
)
from opal_spark.read.statement_rows import LookUp, rows_of_target
from opal_spark.read.understood import understood

MAX_PARTITIONS = 100_000  # of one overwrite: this process holds their values
_IN_REGION = "_opal_in_region"
_REGION_SEGMENT, _REGION_OFFSET = "_opal_region_segment", "_opal_region_offset"


def region_statement_rows(spark: SparkSession, plan: StatementPlan) -> DataFrame:
    """Return the rows that an overwrite or a drop of partitions adds.

    They have the columns of `statement_rows`.
    """
    plan.check()
    if plan.source is None:
        plan = with_scope(plan, None)
        rows = _rows_of_region(spark, plan).alias(plan.target)
        made = rows.select(made_row(plan, plan.of("matched"), rows, []).alias(DELETED))
        return made.select(f"{DELETED}.*")
    plan = with_frame(spark, plan)
    source = source_rows(plan)
    plan = with_scope(plan, source.columns)
    rows = rows_of_pairs(plan, source, _overwritten(spark, plan, source))
    return _checked(spark, rows, plan)


def touched_partitions(spark: SparkSession, plan: StatementPlan) -> pa.Table:
    """Return the partitions of the source's rows, in this process."""
    source = source_rows(with_frame(spark, plan))
    partitions = source.select(*columns_named(field.name for field in plan.spec.partition_by))
    rows = partitions.distinct().limit(MAX_PARTITIONS + 1).toArrow()
    if rows.num_rows > MAX_PARTITIONS:
        raise InvalidInputError(
            f"the new rows touch more than {MAX_PARTITIONS:,} partitions; overwrite fewer at a "
            "time, or describe the rows to replace by where=..."
        )
    types = [(field.name, arrow_type(field.type)) for field in plan.spec.partition_by]
    return rows.cast(pa.schema(types))


def spark_region_test(plan: StatementPlan) -> RegionTest | None:
    """Return the test of a region; None if only Spark understands its condition."""
    where = None if plan.region is None else plan.region.where
    condition = understood(where, plan.spec, plan.target)
    if condition is None and where is not None:
        return None
    return region_test(plan, condition)


def _overwritten(spark: SparkSession, plan: StatementPlan, source: DataFrame) -> Pairs:
    """Return pairs of the source's rows, and the other rows of the region."""
    of_source = {f"_opal_s{index}": name for index, name in enumerate(source.columns)}
    spec = plan.spec
    of_target = {f"_opal_t{index}": field.name for index, field in enumerate(spec.ordering)}
    columns = [F.col(quoted(name)).alias(joined) for joined, name in of_target.items()]
    ids = [F.col(SEGMENT).alias(_REGION_SEGMENT), F.col(OFFSET).alias(_REGION_OFFSET)]
    region = _rows_of_region(spark, plan).select(*columns, *ids)
    is_same = F.col(SEGMENT) == F.col(_REGION_SEGMENT)
    is_same &= F.col(OFFSET) == F.col(_REGION_OFFSET)
    # One join, so that the source is read once: two reads of it could differ
    joined = _with_ended(plan, source, of_source).join(region, is_same, "full")
    rows = joined.select(
        *of_target,
        *of_source,
        OF_SOURCE,
        F.coalesce(SEGMENT, _REGION_SEGMENT).alias(SEGMENT),
        F.coalesce(OFFSET, _REGION_OFFSET).alias(OFFSET),
    )
    return Pairs(rows=rows, target=of_target, source=of_source)


def _with_ended(plan: StatementPlan, source: DataFrame, of_source: Mapping[str, str]) -> DataFrame:
    """Return the source's rows, each with the id of the row of its key or with nulls."""
    keys = columns_named(key.name for key in plan.spec.keys)
    rows = LookUp(plan=plan, source=of_source, target={}).rows(source, keys)
    return rows.withColumn(OF_SOURCE, F.lit(True))


def _rows_of_region(spark: SparkSession, plan: StatementPlan) -> DataFrame:
    """Return the visible rows of the plan's region, with their row ids."""
    assert plan.region is not None
    where, partitions = plan.region.where, plan.region.partitions
    if partitions is not None:
        rows = rows_with_ids(spark, plan.snapshot, region_test(plan, None).predicate)
        values, is_same = _among(spark, rows, partitions)
        return rows.join(values, is_same, "left_semi")
    rows = rows_of_target(spark, plan, where).alias(plan.target)
    return rows if where is None else rows.where(condition_column(where))


def _among(spark: SparkSession, rows: DataFrame, partitions: pa.Table) -> tuple[DataFrame, Column]:
    """Return partitions as a broadcast, and the condition that a row is in one.

    Rows of the broadcast are marked by the column `_IN_REGION`.
    """
    schema = T.StructType([])
    is_same = F.lit(True)
    for index, name in enumerate(partitions.column_names):
        hidden = f"_opal_p{index}"
        schema.add(hidden, rows.schema[name].dataType)
        # A null is a partition value like any other
        is_same &= F.col(quoted(name)).eqNullSafe(F.col(hidden))
    values = rows_from_arrow(spark, partitions.rename_columns(schema.names), schema)
    return F.broadcast(values.withColumn(_IN_REGION, F.lit(True))), is_same


def _checked(spark: SparkSession, rows: DataFrame, plan: StatementPlan) -> DataFrame:
    """Return the rows, of which a new one outside of the region is an error."""
    assert plan.region is not None
    columns = rows.columns
    if plan.region.partitions is not None:
        # A partition that was not found before shows that the source changes from read to read
        values, is_same = _among(spark, rows, plan.region.partitions)
        rows = rows.join(values, is_same, "left")
        is_inside = F.col(_IN_REGION).isNotNull()
    elif plan.region.where is not None:
        rows = rows.alias(plan.target)
        is_inside = F.coalesce(condition_column(plan.region.where), F.lit(False))
    else:
        return rows
    key = F.to_json(F.struct(*[quoted(key.name) for key in plan.spec.keys]))
    text = F.concat(F.lit("the overwrite changed nothing: the new row of key "), key)
    failure = F.raise_error(F.concat(text, F.lit(f" is {OUTSIDE}"))).cast("boolean")
    is_outside = ~F.col(DELETED) & ~is_inside
    checked = F.when(is_outside, failure).otherwise(F.col(DELETED)).alias(DELETED)
    return rows.select(*[checked if name == DELETED else quoted(name) for name in columns])
