"""The net rows of a partition key on Spark.

Only the files of the partition key are read, and a window finds each key's last row.
"""

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT
from opal_lake.events.bitmap import Bitmaps
from opal_lake.ids import SEQUENCE_BITS, segment_part
from opal_lake.read.partition_net import NetPlan
from opal_spark.engine.columns import quoted, read_columns, spark_schema
from opal_spark.engine.scan import not_after, scan_files

_RANK = "_opal_rank"
_MAX_RANGES = 32  # more ORs would slow Spark's parser and optimizer down


def net_rows(spark: SparkSession, plan: NetPlan, invalid: Bitmaps) -> DataFrame:
    """Return the net rows with all columns; `invalid` has the invalid rows.

    If no row of the partition key is invalid, each row is its key's last one.
    """
    spec = plan.snapshot.spec
    if not plan.files:
        return spark.createDataFrame([], spark_schema(spec, physical=False))
    rows = scan_files(spark, plan.snapshot.storage, plan.files, spec)
    if any(not plan.segments.issuperset(file.segments) for file in plan.files):
        rows = rows.where(_of_segments(plan))
    if plan.as_of is not None:
        rows = rows.where(not_after(spec, plan.as_of))
    has_invalid_rows = not plan.segments.isdisjoint(invalid)
    if plan.as_of is not None or has_invalid_rows:
        rows = _last_of_keys(rows, plan)
    return rows.select(*read_columns(spec))


def _of_segments(plan: NetPlan) -> Column:
    """Return the condition that a row is of an ingest of the partition key.

    The segments of an ingest are a range, which Spark compares with the bounds of row groups.
    """
    numbers = sorted({segment_part(segment) for segment in plan.segments})
    if len(numbers) > _MAX_RANGES:
        listed = ", ".join(map(str, numbers))
        return F.expr(f"shiftright({SEGMENT}, {SEQUENCE_BITS}) IN ({listed})")
    ranges: list[str] = []
    for number in numbers:
        first = number << SEQUENCE_BITS
        last = ((number + 1) << SEQUENCE_BITS) - 1
        ranges.append(f"{SEGMENT} BETWEEN {first}L AND {last}L")
    return F.expr(" OR ".join(ranges))


def _last_of_keys(rows: DataFrame, plan: NetPlan) -> DataFrame:
    """Return the last row of each key, unless it deletes the key."""
    spec = plan.snapshot.spec
    keys = [quoted(field.physical) for field in spec.keys]
    columns = [F.col(quoted(field.physical)) for field in (spec.delta, *spec.tie_break)]
    order = [column.desc_nulls_last() for column in columns]
    latest_first = Window.partitionBy(*keys).orderBy(*order, F.desc(SEGMENT), F.desc(OFFSET))
    ranked = rows.withColumn(_RANK, F.row_number().over(latest_first))
    last = ranked.where(f"{_RANK} = 1")
    if spec.deletes is None:
        return last
    return last.where(f"NOT coalesce({DELETED}, false)")
